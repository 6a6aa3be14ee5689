"""Is the loader fast enough? Compares one reader thread alone with the demand of 2 ranks, and measures their wait for data.

Uses ResNet-18 on the committed images of CIFAR-10 and, with --jpeg, also ResNet-50 on random crops of that set of JPEG
images.
"""
import json
import pathlib
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

RANKS = 2


def alone(build, path, cropped):
    """Samples per second of the loader."""
    name = "loader/file/resized_crop" if cropped else "loader/file"
    (found,) = harness.micro(build, "loader", path, f"--benchmark_filter=^{name}/process_time/real_time$",
                             seconds=1)["benchmarks"]
    return found["items_per_second"]


def measure(title, path, batch, cropped, overrides, args, directory):
    settings = [f"data.train={path}", "data.validation=", f"train.batch_per_rank={batch}", "data.shuffle=true",
                f"data.augment=[{'resized_crop' if cropped else 'crop'},flip]", f"train.max_steps={args.warmup + args.steps}",
                "train.epochs=1000", *overrides]
    steps = harness.train_steps(args, settings, directory, ranks=RANKS, threads=1)[0][args.warmup:]
    seconds, wait = harness.median(steps, "step_seconds"), harness.median(steps, "data_wait_seconds")
    loader, needed = alone(args.build, path, cropped), RANKS * batch / seconds
    return {"what": title, "loader_samples_per_second": loader, "samples_per_second": needed, "times": loader / needed,
            "data_wait_seconds": wait, "wait_share": wait / seconds}


def main():
    parser = harness.parser(__doc__, name="loader", steps=20, warmup=3)
    parser.add_argument("--jpeg", type=pathlib.Path, help="an imported set of JPEG images of one size, --store jpeg")
    args = harness.begin(parser)
    with harness.scratch() as directory:
        rows = [measure("ResNet-18, batch 32 per rank, decoded images of 32x32",
                        harness.ROOT / "data/samples/cifar10_train.h5", 32, False, [], args, directory)]
        if args.jpeg:
            path = args.jpeg.resolve()
            info = json.loads(harness.run([args.binary, "data", "info", path, "--json"], "lockstep data info"))
            if info["encoding"] != "jpeg" or not info["height"]:
                harness.stop(f"{path} is not a set of JPEG images of one size")
            title = f"ResNet-50, batch 16 per rank, random crops of JPEG images of {info['height']}x{info['width']}"
            model = ["model.depth=50", "model.stem=imagenet", f"model.classes={info['classes']}"]
            rows.append(measure(title, path, 16, True, model, args, directory))
    cells = [[row["what"], f"{row['loader_samples_per_second']:,.0f}", f"{row['samples_per_second']:.1f}",
              f"{row['times']:,.0f}", f"{1e3 * row['data_wait_seconds']:.3f}", f"{100 * row['wait_share']:.3f}"]
             for row in rows]
    text = (f"One reader thread alone, and {RANKS} ranks x 1 thread that train, one reader each; fp32, medians of {args.steps} "
            "steps.\n\n"
            + harness.table(["", "loader alone, images/s", "demand of the steps, images/s", "ratio", "wait per step, ms",
                             "wait, % of the step"], cells))
    harness.finish(args, "Speed of the loader", text, rows=rows)


if __name__ == "__main__":
    main()
