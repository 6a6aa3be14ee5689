"""The cost of bitwise identical results on any number of ranks: compares `train.micro_batches=M reproducible=true` with the
fast mode on the same number of ranks and with micro-batches of the same size (`train.accumulate=M/N`). Both run one after
the other in each round.
"""
import statistics
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402


def median_step(ranks, args, mode, directory):
    overrides = [*harness.SYNTHETIC, f"train.global_batch={args.micro_batches * args.samples}",
                 f"train.max_steps={args.warmup + args.steps}", *mode]
    steps, _ = harness.train_steps(args, overrides, directory, ranks=ranks, threads=1)
    return harness.median(steps[args.warmup:], "step_seconds")


def main():
    parser = harness.parser(__doc__, name="reproducible", rounds=5, steps=6, warmup=1)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--micro-batches", type=int, default=4, help="M; ranks divide it")
    parser.add_argument("--samples", type=int, default=16, help="samples of a micro-batch")
    args = harness.begin(parser)
    if any(args.micro_batches % ranks for ranks in args.ranks):
        harness.stop("--ranks must divide --micro-batches, since the fast mode accumulates the same number on each rank")
    found = []
    with harness.scratch() as directory:
        for ranks in args.ranks:
            same = [f"train.micro_batches={args.micro_batches}", "reproducible=true"]
            fast = [f"train.accumulate={args.micro_batches // ranks}"]
            rounds = [{"fast": median_step(ranks, args, fast, directory),
                       "reproducible": median_step(ranks, args, same, directory)} for _ in range(args.rounds)]
            ratios = [r["reproducible"] / r["fast"] for r in rounds]
            found.append({"ranks": ranks, "rounds": rounds, "ratio": statistics.median(ratios),
                          "spread": harness.spread(ratios)})
    rows = [[f["ranks"], *(f"{1e3 * harness.median(f['rounds'], side):.0f}"
                           for side in ("fast", "reproducible")), f"{f['ratio']:.3f}", f"{100 * f['spread']:.1f} %"]
            for f in found]
    text = (f"ResNet-18, CIFAR stem, 32x32, fp32, {args.micro_batches} micro-batches of {args.samples} samples, 1 thread per "
            f"rank; the ratio is the median of {args.rounds} rounds, each of {args.steps} steps per side.\n\n"
            + harness.table(["ranks", "fast, ms per step", "reproducible, ms per step", "ratio", "spread"], rows))
    harness.finish(args, "The cost of bitwise identical results on any number of ranks", text,
                   micro_batches=args.micro_batches, samples_per_micro_batch=args.samples, found=found)


if __name__ == "__main__":
    main()
