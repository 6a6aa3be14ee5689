"""The cost of bitwise identical results on any number of ranks: compares `train.micro_batches=M reproducible=true` with the
fast mode on the same number of ranks and with micro-batches of the same size (`train.accumulate=M/N`). Both run one after
the other in each round.
"""
import argparse
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

CONFIG = "jobs/configs/resnet18_cifar10.yaml"


def median_step(binary, ranks, args, mode, directory):
    overrides = ["data.train=synthetic", "data.validation=", f"train.global_batch={args.micro_batches * args.samples}",
                 f"train.max_steps={args.warmup + args.steps}", "log.every_steps=1", "checkpoint.every_epochs=0", *mode]
    lines, _ = harness.train(binary, ranks, 1, CONFIG, overrides, directory)
    return statistics.median(step["step_seconds"] for step in harness.steps(lines)[args.warmup:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder with the program lockstep")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--micro-batches", type=int, default=4, help="M; ranks divide it")
    parser.add_argument("--samples", type=int, default=16, help="samples of a micro-batch")
    parser.add_argument("--steps", type=int, default=6, help="steps that are counted, per side and round")
    parser.add_argument("--warmup", type=int, default=1, help="steps before the counted ones")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the result files")
    args = parser.parse_args()
    if any(args.micro_batches % ranks for ranks in args.ranks):
        harness.stop("--ranks must divide --micro-batches, since the fast mode accumulates the same number on each rank")
    binary = harness.lockstep(args.build)
    machine = harness.machine()
    found = []
    with harness.scratch() as directory:
        for ranks in args.ranks:
            same = [f"train.micro_batches={args.micro_batches}", "reproducible=true"]
            fast = [f"train.accumulate={args.micro_batches // ranks}"]
            rounds = [{"fast": median_step(binary, ranks, args, fast, directory),
                       "reproducible": median_step(binary, ranks, args, same, directory)} for _ in range(args.rounds)]
            ratios = [r["reproducible"] / r["fast"] for r in rounds]
            found.append({"ranks": ranks, "rounds": rounds, "ratio": statistics.median(ratios),
                          "spread": harness.spread(ratios)})
    rows = [[f["ranks"], *(f"{1e3 * statistics.median(r[side] for r in f['rounds']):.0f}"
                           for side in ("fast", "reproducible")), f"{f['ratio']:.3f}", f"{100 * f['spread']:.1f} %"]
            for f in found]
    text = (f"ResNet-18, CIFAR stem, 32x32, fp32, {args.micro_batches} micro-batches of {args.samples} samples, 1 thread per "
            f"rank; the ratio is the median of {args.rounds} rounds, each of {args.steps} steps per side.\n\n"
            + harness.table(["ranks", "fast, ms per step", "reproducible, ms per step", "ratio", "spread"], rows))
    harness.write_results("reproducible", "The cost of bitwise identical results on any number of ranks", text,
                          {"machine": machine, "version": harness.version(binary), "micro_batches": args.micro_batches,
                           "samples_per_micro_batch": args.samples, "found": found}, args.results)


if __name__ == "__main__":
    main()
