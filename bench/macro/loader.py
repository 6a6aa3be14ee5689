"""Is the loader fast enough? Compares one reader thread alone with the demand of 2 ranks, and measures their wait for data.

Uses ResNet-18 on the committed images of CIFAR-10 and, with --jpeg, also ResNet-50 on random crops of that set of JPEG
images.
"""
import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

RANKS = 2
CONFIG = "jobs/configs/resnet18_cifar10.yaml"


def alone(build, path, cropped):
    """Samples per second of the loader."""
    name = "loader/file/resized_crop" if cropped else "loader/file"
    out = harness.run([pathlib.Path(build).resolve() / "bench/micro/loader", path, f"--benchmark_filter=^{name}/process_time/real_time$",
                       "--benchmark_format=json", "--benchmark_min_time=1"], "bench/micro/loader")
    (found,) = json.loads(out)["benchmarks"]
    return found["items_per_second"]


def measure(binary, title, path, batch, cropped, overrides, args, directory):
    settings = [f"data.train={path}", "data.validation=", f"train.batch_per_rank={batch}", "data.shuffle=true",
                f"data.augment=[{'resized_crop' if cropped else 'crop'},flip]", "checkpoint.every_epochs=0",
                f"train.max_steps={args.warmup + args.steps}", "train.epochs=1000", "log.every_steps=1", *overrides]
    lines, _ = harness.train(binary, RANKS, 1, CONFIG, settings, directory)
    steps = harness.steps(lines)[args.warmup:]
    seconds = statistics.median(step["step_seconds"] for step in steps)
    wait = statistics.median(step["data_wait_seconds"] for step in steps)
    loader, needed = alone(args.build, path, cropped), RANKS * batch / seconds
    return {"what": title, "loader_samples_per_second": loader, "samples_per_second": needed, "times": loader / needed,
            "data_wait_seconds": wait, "wait_share": wait / seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder with the program lockstep and the benchmarks")
    parser.add_argument("--jpeg", type=pathlib.Path, help="an imported set of JPEG images of one size, --store jpeg")
    parser.add_argument("--steps", type=int, default=20, help="steps that are counted")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the counted ones")
    parser.add_argument("--name", default="loader", help="name of the result files")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the result files")
    args = parser.parse_args()
    binary = harness.lockstep(args.build)
    machine = harness.machine()
    with harness.scratch() as directory:
        rows = [measure(binary, "ResNet-18, batch 32 per rank, decoded images of 32x32",
                        harness.ROOT / "data/samples/cifar10_train.h5", 32, False, [], args, directory)]
        if args.jpeg:
            path = args.jpeg.resolve()
            info = json.loads(harness.run([binary, "data", "info", path, "--json"], "lockstep data info"))
            if info["encoding"] != "jpeg" or not info["height"]:
                harness.stop(f"{path} is not a set of JPEG images of one size")
            title = f"ResNet-50, batch 16 per rank, random crops of JPEG images of {info['height']}x{info['width']}"
            model = ["model.depth=50", "model.stem=imagenet", f"model.classes={info['classes']}"]
            rows.append(measure(binary, title, path, 16, True, model, args, directory))
    cells = [[row["what"], f"{row['loader_samples_per_second']:,.0f}", f"{row['samples_per_second']:.1f}",
              f"{row['times']:,.0f}", f"{1e3 * row['data_wait_seconds']:.3f}", f"{100 * row['wait_share']:.3f}"]
             for row in rows]
    text = (f"One reader thread alone, and {RANKS} ranks x 1 thread that train, one reader each; fp32, medians of {args.steps} "
            "steps.\n\n"
            + harness.table(["", "loader alone, images/s", "demand of the steps, images/s", "ratio", "wait per step, ms",
                             "wait, % of the step"], cells))
    harness.write_results(args.name, "Speed of the loader", text,
                          {"machine": machine, "version": harness.version(binary), "rows": rows}, args.results)


if __name__ == "__main__":
    main()
