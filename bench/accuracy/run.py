"""Does it learn as well? ResNet-18 on CIFAR-10's first batch of 10,000 images, ours beside PyTorch, several seeds each.

    python3 bench/accuracy/run.py --data cifar-10-batches-bin --python PYTHON_WITH_TORCH

The recipe is resnet18.yaml; orders, augmentation and weights are each side's own draws. Finished runs are kept in the
result file: started again with the same recipe, it goes on with those that are missing. Takes hours.
"""
import argparse
import json
import math
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

CONFIG = "bench/accuracy/resnet18.yaml"
SIDES = {"lockstep": "Lockstep", "pytorch": "PyTorch"}


def import_data(binary, args, directory):
    """train.h5 and test.h5 of the binary batches."""
    made = {}
    for split, source, limit in (("train", "data_batch_1.bin", args.train_limit),
                                 ("test", "test_batch.bin", args.test_limit)):
        made[split] = pathlib.Path(directory) / f"{split}.h5"
        command = [binary, "data", "import", "cifar10", pathlib.Path(args.data).resolve() / source, made[split],
                   "--split", split]
        if limit:
            command += ["--limit", limit]
        if split == "test":
            command += ["--statistics-from", made["train"]]
        harness.run(command, "lockstep data import")
    return made


def ours(binary, data, seed, args, directory):
    overrides = [f"data.train={data['train']}", f"data.validation={data['test']}", f"run.seed={seed}",
                 f"train.epochs={args.epochs}"]
    lines, launched = harness.train(binary, 1, args.threads, CONFIG, overrides, directory)
    evaluations = [line for line in lines if line["event"] == "evaluation"]
    return {"accuracy": evaluations[-1]["accuracy"], "seconds": lines[-1]["time_unix"] - launched,
            "version": harness.version(binary)["commit"]}


def theirs(python, seed, args):
    command = [python, pathlib.Path(__file__).parent / "peer.py", "--data", args.data, "--seed", seed,
               "--epochs", args.epochs, "--threads", args.threads]
    for name in ("train_limit", "test_limit"):
        if getattr(args, name):
            command += ["--" + name.replace("_", "-"), getattr(args, name)]
    return json.loads(harness.run(command, "PyTorch", env=harness.environment(args.threads)).splitlines()[-1])


def report(data, args):
    finals = {side: [run["accuracy"] for run in data["runs"][side].values()] for side in SIDES}
    rows, error = [], {}
    for side, name in SIDES.items():
        runs = list(data["runs"][side].values())
        if not runs:
            continue
        error[side] = statistics.stdev(finals[side]) / math.sqrt(len(runs)) if len(runs) > 1 else math.nan
        rows.append([name, ", ".join(data["runs"][side]), ", ".join(f"{100 * a:.2f}" for a in finals[side]),
                     f"{100 * statistics.mean(finals[side]):.2f}",
                     f"{100 * error[side]:.2f}" if len(runs) > 1 else "-"])
    text = (f"ResNet-18 (CIFAR stem) on {data['train_images']} images of CIFAR-10, {args.epochs} epochs, evaluated on "
            f"{data['test_images']} test images after the last:\nbatch 128, SGD 0.1, momentum 0.9, weight decay 5e-4, "
            "warm-up of 1 epoch, cosine, crop and flip; 1 rank, "
            f"{args.threads} thread(s), fp32.\n\n"
            + harness.table(["", "seeds", "accuracy, %", "mean", "standard error"], rows))
    if len(error) == 2 and not any(map(math.isnan, error.values())):
        difference = statistics.mean(finals["lockstep"]) - statistics.mean(finals["pytorch"])
        of_difference = math.hypot(*error.values())
        data["difference"], data["standard_error_of_difference"] = difference, of_difference
        apart = f"{abs(difference) / of_difference:.2f}" if of_difference else "infinitely many"
        text += (f"\nDifference of the means: {100 * difference:+.2f} points, **{apart} standard errors** of the "
                 f"difference ({100 * of_difference:.2f} points).\n")
    harness.write_results(args.name, "Accuracy beside PyTorch", text, data, args.results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with data_batch_1.bin and test_batch.bin")
    parser.add_argument("--build", default="build", help="folder with the program lockstep")
    parser.add_argument("--python", default="python3", help="interpreter with torch and torchvision")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train-limit", type=int, default=0, help="images; 0: all")
    parser.add_argument("--test-limit", type=int, default=0)
    parser.add_argument("--name", default="accuracy", help="of the result files")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the result files")
    args = parser.parse_args()
    binary = harness.lockstep(args.build)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        if not (pathlib.Path(args.data) / name).exists():
            harness.stop(f"{args.data} has no {name}; --data names the folder of CIFAR-10's binary version")
    args.data = pathlib.Path(args.data).resolve()
    python, torch = harness.torch_python(args.python)
    if not python and "pytorch" in args.sides:
        harness.stop(torch)

    size = lambda name, limit: limit or (args.data / name).stat().st_size // 3073
    recipe = {"train_images": size("data_batch_1.bin", args.train_limit),
              "test_images": size("test_batch.bin", args.test_limit), "epochs": args.epochs, "threads": args.threads}
    data = {"machine": harness.machine(), "version": harness.version(binary), "torch": torch if python else None,
            **recipe, "runs": {side: {} for side in SIDES}}
    kept = pathlib.Path(args.results) / f"{args.name}.json"
    if kept.exists():
        old = json.loads(kept.read_text())
        if all(old.get(key) == value for key, value in recipe.items()):
            data["runs"] = old["runs"]
    with harness.scratch() as directory:
        imported = import_data(binary, args, directory)
        for seed in args.seeds:
            for side in args.sides:
                if str(seed) in data["runs"][side]:
                    continue
                data["runs"][side][str(seed)] = (ours(binary, imported, seed, args, directory) if side == "lockstep"
                                                 else theirs(python, seed, args))
                report(data, args)


if __name__ == "__main__":
    main()
