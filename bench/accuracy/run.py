"""Compares the accuracy of a training with that of PyTorch, with several seeds each.

    python3 bench/accuracy/run.py --data cifar-10-batches-bin --python PYTHON_WITH_TORCH
    python3 bench/accuracy/run.py --recipe resnet18_2gpu --data cifar-10-batches-bin --python PYTHON_WITH_TORCH --picture FILE.svg
    python3 bench/accuracy/run.py --recipe mnist --data FOLDER_WITH_IDX_FILES --python PYTHON_WITH_TORCH
    python3 bench/accuracy/run.py --recipe resnet50|resnet50_v2 --data FOLDER_WITH_TRAIN_AND_VAL --python PYTHON_WITH_TORCH

A recipe is RECIPE.yaml, or a configuration of jobs/configs/ with overrides. Each side draws its own order of samples, augmentation and initial weights. Finished runs are kept
in the result file. If the script is started again with the same recipe, it does the missing runs, or writes the table again
if none is missing. Takes hours.
"""
import hashlib
import json
import math
import pathlib
import statistics
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import language  # noqa: E402
import sides  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
SIDES = {"lockstep": "Lockstep", "pytorch": "PyTorch"}
# The figures that are compared after the last epoch: heading and format.
FIGURES = {"train_loss": ("training loss", "{:.4f}".format),
           "train_accuracy": ("training accuracy, %", lambda a: f"{100 * a:.2f}"),
           "loss": ("test loss", "{:.4f}".format),
           "accuracy": ("test accuracy, %", lambda a: f"{100 * a:.2f}"),
           "ema_loss": ("test loss of the average", "{:.4f}".format),
           "ema_accuracy": ("test accuracy of the average, %", lambda a: f"{100 * a:.2f}")}
CIFAR10 = {"import": ["cifar10"], "sources": {"train": "data_batch_1.bin", "test": "test_batch.bin"}}
RECIPES = {
    "resnet18": {
        **CIFAR10, "epochs": 10,
        "figures": ["accuracy"], "results": "accuracy",
        "text": "ResNet-18 (CIFAR stem) on {train_images} images of CIFAR-10, {epochs} epochs, evaluated on {test_images} "
                "test images after the last:\nbatch 128, SGD 0.1, momentum 0.9, weight decay 5e-4, warm-up of 1 epoch, "
                "cosine, crop and flip; 1 rank, {threads} thread(s), fp32."},
    "resnet18_2gpu": {  # that of jobs/resnet18_2gpu.sh
        **CIFAR10, "config": "jobs/configs/resnet18_cifar10.yaml", "ranks": 2, "epochs": 3,
        "overrides": ["train.batch_per_rank=128", "checkpoint.every_epochs=0"],
        "figures": ["train_loss", "train_accuracy", "loss", "accuracy"], "results": "accuracy_resnet18_2gpu",
        "text": "jobs/resnet18_2gpu.sh on CPUs: ResNet-18 (CIFAR stem) on {train_images} images of CIFAR-10, {epochs} epochs, "
                "evaluated on {test_images} test images after the last:\n2 ranks with batches of 128, SGD 0.1, momentum 0.9, "
                "weight decay 5e-4, warm-up of 1 epoch, cosine, crop and flip; {threads} thread(s) per rank, fp32.\nPyTorch is "
                "DistributedDataParallel. Training loss and accuracy are means over the last epoch."},
    "mnist": {
        "import": ["mnist"], "sources": {"train": ".", "test": "."}, "epochs": 3,
        "config": "jobs/configs/mnist.yaml", "overrides": ["checkpoint.every_epochs=0"],
        "figures": ["train_loss", "train_accuracy", "accuracy"], "results": "accuracy_mnist",
        "text": "jobs/configs/mnist.yaml on {train_images} images of 28x28 in files of MNIST's format ({source}), {epochs} epochs, "
                "evaluated on {test_images} test images after the last:\nbatch 128, SGD 0.05, momentum 0.9, weight decay 5e-4, "
                "warm-up of 50 steps, cosine, crop; 1 rank, {threads} thread(s), fp32. Training loss and accuracy are means "
                "over the last epoch."},
    "resnet50": {
        "import": ["imagefolder", "--store", "jpeg"], "sources": {"train": "train", "test": "val"}, "epochs": 20,
        "figures": ["train_loss", "train_accuracy", "accuracy"], "results": "accuracy_resnet50",
        "text": "ResNet-50 on {train_images} JPEG files of 20 classes of Tiny ImageNet (64x64; chance is 5 %), {epochs} "
                "epochs, evaluated on {test_images} others after the last:\nbatch 16, SGD 0.01, momentum 0.9, weight decay "
                "1e-4, warm-up of 1 epoch, cosine, crop and flip, last gamma of a block 0; 1 rank, {threads} thread(s), fp32. Training loss and "
                "accuracy are means over the last epoch."},
    "resnet50_v2": {
        "import": ["imagefolder", "--store", "jpeg"], "sources": {"train": "train", "test": "val"}, "epochs": 12,
        "results": "accuracy_resnet50_v2",
        "figures": ["train_loss", "loss", "accuracy", "ema_loss", "ema_accuracy"],
        "text": "ResNet-50 with the recipe of torchvision's IMAGENET1K_V2 weights, scaled to {train_images} JPEG files of 20 "
                "classes of Tiny ImageNet\n(64x64; chance is 5 % and a loss of 2.996) and {epochs} epochs: crops of 48x48, "
                "TrivialAugmentWide, random erasing, mixup, cutmix, label smoothing, average of the weights; batch 16, SGD "
                "0.01, warm-up of 1 epoch, cosine, a learning rate per epoch. Evaluated on {test_images} others after the last "
                "epoch; 1 rank, {threads} thread(s), fp32.\nPyTorch uses torchvision's own transforms and model. Training "
                "loss is the mean over the last epoch."},
}


def import_data(recipe, sources, args, directory):
    """Makes a data set from each source."""
    made = {}
    for split, source in sources.items():
        made[split] = pathlib.Path(directory) / f"{split}.h5"
        kind, *options = recipe["import"]
        command = [args.binary, "data", "import", kind, source, made[split], "--split", split, *options]
        limit = getattr(args, f"{split}_limit")
        if limit:
            command += ["--limit", limit]
        if split == "test":
            command += ["--statistics-from", made["train"]]
        harness.run(command, "lockstep data import")
    return made


def config_of(recipe):
    return harness.ROOT / RECIPES[recipe].get("config", f"bench/accuracy/{recipe}.yaml")


def hash_of(recipe):
    """The hash of its configuration without comments, so that runs of an older recipe are not mixed in."""
    lines = config_of(recipe).read_text().splitlines() + RECIPES[recipe].get("overrides", [])
    text = "\n".join(line.split("#")[0].rstrip() for line in lines)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ours(made, seed, args, directory):
    recipe = RECIPES[args.recipe]
    overrides = [f"data.train={made['train']}", f"data.validation={made['test']}", f"run.seed={seed}",
                 f"train.epochs={args.epochs}", "log.every_steps=1", *recipe.get("overrides", [])]
    lines, launched = harness.train(args.binary, recipe.get("ranks", 1), args.threads, config_of(args.recipe), overrides, directory)
    last = {line["event"]: line for line in lines}
    evaluated = {key: last["evaluation"][key] for key in ("loss", "accuracy", "ema_loss", "ema_accuracy")
                 if key in last["evaluation"]}
    return {**evaluated, "train_loss": last["epoch"]["loss"], "train_accuracy": last["epoch"]["accuracy"],
            **language.losses_of(lines), "accuracies": [line["accuracy"] for line in lines if line["event"] == "evaluation"],
            "seconds": lines[-1]["time_unix"] - launched, "version": harness.version(args.binary)["commit"]}


def theirs(python, sources, seed, args):
    command = [python, FOLDER / "peer.py", "--recipe", args.recipe,
               "--train", sources["train"], "--test", sources["test"], "--seed", seed, "--epochs", args.epochs,
               "--threads", args.threads]
    for name in ("train_limit", "test_limit"):
        if getattr(args, name):
            command += ["--" + name.replace("_", "-"), getattr(args, name)]
    return sides.start_ranks(command, RECIPES[args.recipe].get("ranks", 1), args.threads)


def draw(args, data):
    """The curves of the first seed, once both sides have it. After few steps, running statistics are far from those of the data,
    and test losses can be a thousand times too great: those above the training losses are left out."""
    seed = str(args.seeds[0])
    if args.picture and all(seed in data["runs"][side] for side in SIDES):
        runs = {}
        for side in SIDES:
            run = data["runs"][side][seed]
            greatest = max(loss for _, loss in run["step"])
            runs[side] = {seed: {**run, "evaluation": [point for point in run["evaluation"] if point[1] <= greatest]}}
        language.draw(args, runs, SIDES, f"{args.recipe.partition('_')[0]}: {data['train_images']} images, {args.epochs} epochs")


def compare(figure, runs):
    """Returns the rows of the table and, once both sides have a standard error, the difference of the means."""
    name, text = FIGURES[figure]
    rows, mean, error = [], {}, {}
    for side, title in SIDES.items():
        values = [run[figure] for run in runs[side].values()]
        if not values:
            continue
        mean[side] = statistics.mean(values)
        row = [name, title, ", ".join(runs[side]), ", ".join(map(text, values)), text(mean[side]), "-"]
        if len(values) > 1:
            error[side] = statistics.stdev(values) / math.sqrt(len(values))
            row[-1] = text(error[side])
        rows.append(row)
    if len(error) < 2:
        return rows, None
    return rows, {"difference": mean["lockstep"] - mean["pytorch"],
                  "standard_error_of_difference": math.hypot(*error.values())}


def report(recipe, data, args):
    rows, sentences = [], []
    data["comparison"] = {}
    accuracies = {side: [run["accuracies"] for run in data["runs"][side].values() if len(run.get("accuracies", [])) > 1] for side in SIDES}
    for figure in recipe["figures"]:
        more, found = compare(figure, data["runs"])
        rows += more
        if not found:
            continue
        data["comparison"][figure] = found
        name, text = FIGURES[figure]
        difference, error = found.values()
        apart = f"{abs(difference) / error:.2f}" if error else "infinitely many" if difference else "no"
        sentences.append(f"- {name}: the means differ by {text(difference)}, **{apart} standard errors** of the difference "
                         f"({text(error)}).")
    page = (recipe["text"].format(**data) + "\n\n"
            + harness.table(["", "", "seeds", "each", "mean", "standard error"], rows))
    if sentences:
        page += "\n" + "\n".join(sentences) + "\n"
    if all(accuracies.values()):
        page += "\nTest accuracy after each epoch, in %, means over the seeds:\n\n" + harness.table(
            ["", *range(1, args.epochs + 1)], [[title, *(f"{100 * statistics.mean(epoch):.2f}" for epoch in zip(*accuracies[side]))]
                                               for side, title in SIDES.items()])
    harness.write_results(args.name, "Accuracy compared with PyTorch", page, data, args.results)
    draw(args, data)


def main():
    parser = harness.parser(__doc__, python="torch and torchvision", threads=2)
    parser.add_argument("--recipe", choices=RECIPES, default="resnet18")
    parser.add_argument("--data", type=pathlib.Path, required=True,
                        help="folder with data_batch_1.bin and test_batch.bin; resnet50 and resnet50_v2: with the "
                             "folders train and val of class folders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--epochs", type=int, help="default: that of the recipe")
    parser.add_argument("--train-limit", type=int, default=0, help="number of images to use, from the first; 0: all")
    parser.add_argument("--test-limit", type=int, default=0)
    parser.add_argument("--picture", help="SVG file to draw the losses of the first seed to")
    parser.add_argument("--name", help="name of the result files; default: that of the recipe")
    args = harness.begin(parser)
    recipe = RECIPES[args.recipe]
    args.epochs = args.epochs or recipe["epochs"]
    args.name = args.name or recipe["results"]
    sources = {split: args.data.resolve() / name for split, name in recipe["sources"].items()}
    for source in sources.values():
        if not source.exists():
            harness.stop(f"{source} is missing; see --help for the content of --data")
    python, torch = harness.torch_python(args.python)
    if not python and "pytorch" in args.sides:
        harness.stop(torch)

    with harness.scratch() as directory:
        made = import_data(recipe, sources, args, directory)
        settings = {"recipe": hash_of(args.recipe), "epochs": args.epochs, "threads": args.threads}
        for split, path in made.items():
            info = json.loads(harness.run([args.binary, "data", "info", path, "--json"], "lockstep data info"))
            settings[f"{split}_images"] = info["samples"]
        data = {"machine": args.machine, "version": harness.version(args.binary), "torch": torch if python else None,
                **settings, "source": args.data.name, "runs": {side: {} for side in SIDES}}
        kept = pathlib.Path(args.results) / f"{args.name}.json"
        if kept.exists():
            old = json.loads(kept.read_text())
            if all(old.get(key) == value for key, value in settings.items()):
                data["runs"] = old["runs"]
        missing = [(seed, side) for seed in args.seeds for side in args.sides if str(seed) not in data["runs"][side]]
        for seed, side in missing:
            data["runs"][side][str(seed)] = (ours(made, seed, args, directory) if side == "lockstep"
                                             else theirs(python, sources, seed, args))
            report(recipe, data, args)
        if not missing:
            report(recipe, data, args)


if __name__ == "__main__":
    main()
