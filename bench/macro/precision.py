"""fp32 compared with bf16 on several kinds of processor: this one, and lesser ones emulated with LOCKSTEP_MAX_ISA.

In each round, each kind of processor trains each network in fp32 and then in bf16, on synthetic images. With --before, an
earlier build does the same in alternation. Algorithms are timed and stored by a run before the first round. Takes some
minutes per round.
"""
import argparse
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
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
    overrides = [*sides.overrides_of(args), f"train.max_steps={args.warmup + steps}", "log.every_steps=1",
                 "checkpoint.every_epochs=0"]
    lines, _ = harness.train(binary, args.ranks, args.threads, sides.CONFIG, overrides, directory)
    return [step["step_seconds"] for step in harness.steps(lines)[args.warmup:]]


def medians(of_case):
    """Of the steps of each round, for both precisions."""
    return {precision: [statistics.median(steps) for steps in rounds] for precision, rounds in of_case.items()}


def spread(ratios):
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def compared_with_before(found, isa, work):
    after, before = found["this", isa, work], found["before", isa, work]
    of = []
    for precision in after:
        ratios = [b / a for a, b in zip(medians(after)[precision], medians(before)[precision])]
        shortest = min(map(min, before[precision])) / min(map(min, after[precision]))
        of.append(f"{spread(ratios)} times as fast in {precision} (by the shortest step {shortest:.2f})")
    return f"{TITLES[work]}, {ISAS[isa][0]}: compared with the build before, it trains {' and '.join(of)}.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder with the program lockstep")
    parser.add_argument("--before", metavar="BUILD", help="folder with an earlier build of lockstep to compare with")
    parser.add_argument("--isas", nargs="+", choices=ISAS, help="default: all that this processor has")
    parser.add_argument("--works", nargs="+", choices=sides.WORKS, default=list(sides.WORKS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of a rank")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="steps that are counted")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the counted ones")
    parser.add_argument("--name", default="precision", help="name of the result files")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the result files")
    args = parser.parse_args()
    args.batch = None
    builds = {"this": harness.lockstep(args.build), **({"before": harness.lockstep(args.before)} if args.before else {})}
    machine = harness.machine()
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
        ratios = [a / b for a, b in zip(median["fp32"], median["bf16"])]
        shortest = {precision: min(map(min, rounds)) for precision, rounds in of_case.items()}
        rows.append([ISAS[isa][0], TITLES[work] + (", before" if build == "before" else ""),
                     *(f"{images / statistics.median(median[p]):.1f}" for p in median), spread(ratios),
                     *(f"{shortest[p]:.3f}" for p in median), f"{shortest['fp32'] / shortest['bf16']:.2f}"])
    text = (f"{args.ranks} rank(s) x {args.threads} thread(s); medians of {args.rounds} rounds of {args.steps} steps. Above 1, bf16 is "
            "faster.\n\n"
            + harness.table(["instructions", "network", "fp32, images/s", "bf16, images/s", "bf16 : fp32 (single rounds)",
                             "shortest step, fp32, s", "bf16, s", "ratio"], rows)
            + "".join("\n" + compared_with_before(found, isa, work) for build, isa, work in cases if build == "before"))
    harness.write_results(args.name, "bf16 compared with fp32", text,
                          {"machine": machine, "version": harness.version(builds["this"]),
                           "rows": [{"build": build, "isa": isa, "work": work, "seconds": of_case}
                                    for (build, isa, work), of_case in found.items()]},
                          args.results)


if __name__ == "__main__":
    main()
