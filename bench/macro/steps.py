"""Whole training steps of `lockstep train`: ResNet-18 at 32x32, batch 32 per rank, synthetic images, on 1, 2, ... ranks.

Efficiency is the speed of R ranks over R times that of one. It is below 1 if ranks share cores or memory, or wait for each
other. Exposed communication is the time that a step waits for sums after its own work is done.
"""
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402


def measure(ranks, args, directory):
    overrides = [*harness.SYNTHETIC, f"train.batch_per_rank={args.batch}", f"train.max_steps={args.warmup + args.steps}",
                 *args.overrides]
    steps = harness.train_steps(args, overrides, directory, ranks=ranks)[0][args.warmup:]
    median = lambda key: harness.median(steps, key)
    return {"ranks": ranks, "step_seconds": median("step_seconds"),
            "samples_per_second": ranks * args.batch / median("step_seconds"),
            "exposed_communication_seconds": median("exposed_communication_seconds"),
            "data_wait_seconds": median("data_wait_seconds"), "memory_bytes": steps[-1]["memory_bytes"]}


def main():
    parser = harness.parser(__doc__, name="steps", threads=1, batch=32, steps=12, warmup=2)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the configuration")
    args = harness.begin(parser)
    with harness.scratch() as directory:
        found = [measure(ranks, args, directory) for ranks in args.ranks]
    one = found[0]["samples_per_second"] / found[0]["ranks"]
    rows = [[f["ranks"], f"{f['samples_per_second']:.1f}", f"{1e3 * f['step_seconds']:.0f}",
             f"{f['samples_per_second'] / f['ranks'] / one:.2f}", f"{1e3 * f['exposed_communication_seconds']:.1f}",
             f"{1e3 * f['data_wait_seconds']:.2f}", f"{f['memory_bytes'] / 1e6:.0f}"] for f in found]
    text = (f"ResNet-18, CIFAR stem, 32x32, fp32, batch {args.batch} per rank, {args.threads} thread(s) per rank; medians of "
            f"{args.steps} steps.\n\n"
            + harness.table(["ranks", "images/s", "step, ms", "efficiency", "exposed communication, ms", "data wait, ms",
                             "memory of a rank, MB"], rows))
    harness.finish(args, "Training steps", text, threads=args.threads, batch_per_rank=args.batch, steps=found)


if __name__ == "__main__":
    main()
