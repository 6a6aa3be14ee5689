"""Whole training steps of `lockstep train`: ResNet-18 at 32x32, batch 32 per rank, synthetic images, on 1, 2, ... ranks.

Efficiency is the speed of R ranks over R times that of one. It is below 1 if ranks share cores or memory, or wait for each
other. Exposed communication is the time that a step waits for sums after its own work is done.
"""
import argparse
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

CONFIG = "jobs/configs/resnet18_cifar10.yaml"


def measure(binary, ranks, args, directory):
    overrides = ["data.train=synthetic", "data.validation=", f"train.batch_per_rank={args.batch}",
                 f"train.max_steps={args.warmup + args.steps}", "log.every_steps=1", "checkpoint.every_epochs=0",
                 *args.overrides]
    lines, _ = harness.train(binary, ranks, args.threads, CONFIG, overrides, directory)
    steps = harness.steps(lines)[args.warmup:]
    median = lambda key: statistics.median(s[key] for s in steps)
    return {"ranks": ranks, "step_seconds": median("step_seconds"),
            "samples_per_second": ranks * args.batch / median("step_seconds"),
            "exposed_communication_seconds": median("exposed_communication_seconds"),
            "data_wait_seconds": median("data_wait_seconds"), "memory_bytes": steps[-1]["memory_bytes"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder with the program lockstep")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--threads", type=int, default=1, help="threads of a rank")
    parser.add_argument("--batch", type=int, default=32, help="samples per rank")
    parser.add_argument("--steps", type=int, default=12, help="steps that are counted")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the counted ones")
    parser.add_argument("--name", default="steps", help="name of the result files")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the result files")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the configuration")
    args = parser.parse_args()
    binary = harness.lockstep(args.build)
    machine = harness.machine()
    with harness.scratch() as directory:
        found = [measure(binary, ranks, args, directory) for ranks in args.ranks]
    one = found[0]["samples_per_second"] / found[0]["ranks"]
    rows = [[f["ranks"], f"{f['samples_per_second']:.1f}", f"{1e3 * f['step_seconds']:.0f}",
             f"{f['samples_per_second'] / f['ranks'] / one:.2f}", f"{1e3 * f['exposed_communication_seconds']:.1f}",
             f"{1e3 * f['data_wait_seconds']:.2f}", f"{f['memory_bytes'] / 1e6:.0f}"] for f in found]
    text = (f"ResNet-18, CIFAR stem, 32x32, fp32, batch {args.batch} per rank, {args.threads} thread(s) per rank; medians of "
            f"{args.steps} steps.\n\n"
            + harness.table(["ranks", "images/s", "step, ms", "efficiency", "exposed communication, ms", "data wait, ms",
                             "memory of a rank, MB"], rows))
    harness.write_results(args.name, "Training steps", text,
                          {"machine": machine, "version": harness.version(binary), "threads": args.threads,
                           "batch_per_rank": args.batch, "steps": found}, args.results)


if __name__ == "__main__":
    main()
