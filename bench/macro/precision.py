"""fp32 compared with bf16 on several kinds of processor: this one, and lesser ones emulated with LOCKSTEP_MAX_ISA.

In each round, each kind of processor trains each network in fp32 and then in bf16, on synthetic images. With --before, an
earlier build does the same in alternation. Algorithms are timed and stored by a run before the first round. Takes some
minutes per round.
"""
import os
import statistics
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import sides  # noqa: E402

# The values of LOCKSTEP_MAX_ISA, in descending order, and the flag of /proc/cpuinfo that each needs.
ISAS = {"amx": ("AMX", "amx_bf16"), "avx512_bf16": ("AVX-512 with bf16", "avx512_bf16"),
        "avx512": ("AVX-512 without bf16", "avx512f"), "avx2": ("AVX2", "avx2")}
TITLES = {"resnet18": "ResNet-18, 32x32", "resnet50": "ResNet-50, 64x64"}


def available():
    """The entries of ISAS that this processor supports."""
    with open("/proc/cpuinfo") as cpuinfo:
        flags = next((line.split() for line in cpuinfo if line.startswith("flags")), [])
    return [isa for isa, (_, flag) in ISAS.items() if flag in flags]


def measure(binary, isa, work, precision, steps, args, directory):
    """The seconds of the steps after the warm-up."""
    os.environ["LOCKSTEP_MAX_ISA"] = isa
    args.work, args.precision = work, precision
    found, _ = harness.train_steps(args, [*sides.overrides_of(args), f"train.max_steps={args.warmup + steps}"], directory,
                                   binary=binary)
    return [step["step_seconds"] for step in found[args.warmup:]]


def medians(of_case):
    """Of the steps of each round, for both precisions."""
    return {precision: [statistics.median(steps) for steps in rounds] for precision, rounds in of_case.items()}


def ratio_text(slow, fast):
    ratio, least, most = harness.ratios(slow, fast)
    return f"{ratio:.2f} ({least:.2f} to {most:.2f})"


def compared_with_before(found, isa, work):
    after, before = found["this", isa, work], found["before", isa, work]
    of = []
    for precision in after:
        shortest = min(map(min, before[precision])) / min(map(min, after[precision]))
        of.append(f"{ratio_text(medians(before)[precision], medians(after)[precision])} times as fast in {precision} (by the shortest step {shortest:.2f})")
    return f"{TITLES[work]}, {ISAS[isa][0]}: compared with the build before, it trains {' and '.join(of)}.\n"


def main():
    parser = harness.parser(__doc__, name="precision", ranks=2, threads=1, rounds=3, steps=6, warmup=2)
    parser.add_argument("--before", metavar="BUILD", help="folder with an earlier build of lockstep to compare with")
    parser.add_argument("--isas", nargs="+", choices=ISAS, help="default: all that this processor has")
    parser.add_argument("--works", nargs="+", choices=sides.WORKS, default=list(sides.WORKS))
    args = harness.begin(parser)
    args.batch = None
    builds = {"this": args.binary, **({"before": harness.lockstep(args.before)} if args.before else {})}
    cases = [(build, isa, work) for isa in args.isas or available() for work in args.works for build in builds]
    found = {case: {"fp32": [], "bf16": []} for case in cases}
    with harness.scratch() as directory:
        for build, isa, work in cases:
            for precision in ("fp32", "bf16"):
                measure(builds[build], isa, work, precision, 1, args, directory)
        for _ in range(args.rounds):
            for (build, isa, work), of_case in found.items():
                for precision, rounds in of_case.items():
                    rounds.append(measure(builds[build], isa, work, precision, args.steps, args, directory))
    rows = []
    for (build, isa, work), of_case in found.items():
        median = medians(of_case)
        images = args.ranks * sides.WORKS[work]["batch"]
        shortest = {precision: min(map(min, rounds)) for precision, rounds in of_case.items()}
        rows.append([ISAS[isa][0], TITLES[work] + (", before" if build == "before" else ""),
                     *(f"{images / statistics.median(median[p]):.1f}" for p in median), ratio_text(median["fp32"], median["bf16"]),
                     *(f"{shortest[p]:.3f}" for p in median), f"{shortest['fp32'] / shortest['bf16']:.2f}"])
    text = (f"{args.ranks} rank(s) x {args.threads} thread(s); medians of {args.rounds} rounds of {args.steps} steps. Above 1, bf16 is "
            "faster.\n\n"
            + harness.table(["instructions", "network", "fp32, images/s", "bf16, images/s", "bf16 : fp32 (single rounds)",
                             "shortest step, fp32, s", "bf16, s", "ratio"], rows)
            + "".join("\n" + compared_with_before(found, isa, work) for build, isa, work in cases if build == "before"))
    harness.finish(args, "bf16 compared with fp32", text,
                   rows=[{"build": build, "isa": isa, "work": work, "seconds": of_case}
                         for (build, isa, work), of_case in found.items()])


if __name__ == "__main__":
    main()
