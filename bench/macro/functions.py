"""Which functions a training step spends its time in, in fp32 and in bf16, from samples of `perf record`.

One rank trains on synthetic images, in fp32 and in bf16 in alternation. Only the steps after the warm-up count, with all
threads of the rank. Needs perf (Debian: linux-perf).
"""
import collections
import os
import pathlib
import re
import shutil
import statistics
import sys
import time

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import precision  # noqa: E402
import sides  # noqa: E402

SAMPLES_PER_SECOND = 999
PRECISIONS = ("fp32", "bf16")
GENERATED = "code that oneDNN generates"


def function(symbol, library):
    """A row of the table: the function without namespaces of the project, template and other arguments, or what it belongs to."""
    if symbol == "[unknown]":
        return GENERATED if re.search(r"perf-\d+\.map|anon|jit", library) else f"others in {pathlib.Path(library).name}"
    plain = symbol.replace("(anonymous namespace)::", "")
    if re.search(r"\bdnnl::", plain):
        return "other code of oneDNN"
    name, depth = "", 0
    for character in plain:
        if character == "(" and depth == 0:
            break
        depth -= character == ">"
        name += character if depth == 0 and character not in "<>" else ""
        depth += character == "<"
    isa = "|".join(precision.ISAS)
    return re.sub(rf"\b(lockstep|cpu|{isa})::", "", name.split()[-1])


def profile(work, of_precision, args, directory):
    """Milliseconds per step and function, and the seconds of the counted steps."""
    args.work, args.precision = work, of_precision
    samples = pathlib.Path(directory) / "perf.data"
    record = ["perf", "record", "--quiet", "--event=cpu-clock:u", f"--freq={SAMPLES_PER_SECOND}", "--clockid=CLOCK_MONOTONIC",
              f"--output={samples}", "--"]
    steps, _ = harness.train_steps(args, [*sides.overrides_of(args), f"train.max_steps={args.warmup + args.steps}"], directory,
                                   ranks=1, command=record)
    to_monotonic = time.clock_gettime(time.CLOCK_MONOTONIC) - time.time()
    # The loss of a step is read, and the step is reported, when the next one has been run.
    begin, end = (steps[at]["time_unix"] + to_monotonic for at in (args.warmup, -2))
    n_steps = len(steps) - 2 - args.warmup
    found = collections.Counter()
    listing = harness.run(["perf", "script", f"--input={samples}", "--fields=time,period,ip,sym,dso", "--demangle"],
                          "perf script")
    for line in listing.splitlines():
        parts = re.match(r"\s*([\d.]+):\s+(\d+)\s+[0-9a-f]+ (.*) \((.*)\)$", line)
        if parts and begin <= float(parts[1]) < end:
            found[function(parts[3], parts[4])] += int(parts[2]) / 1e6 / n_steps
    return found, [step["step_seconds"] for step in steps[args.warmup:]]


def main():
    parser = harness.parser(__doc__, name="", threads=1, rounds=3, steps=60, warmup=3)
    parser.add_argument("--work", choices=sides.WORKS, default="resnet50")
    parser.add_argument("--isa", choices=precision.ISAS, help="default: the best of this processor")
    parser.add_argument("--least", type=float, default=0.2, help="least share of a step, in percent, of a function that is listed")
    args = harness.begin(parser)
    if not shutil.which("perf"):
        harness.stop("perf is missing; install it (Debian: linux-perf)")
    if args.steps < 3:
        harness.stop("--steps must be at least 3")
    args.batch = None
    isa = args.isa or precision.available()[0]
    os.environ["LOCKSTEP_MAX_ISA"] = isa
    work = args.work
    rounds = {each: [] for each in PRECISIONS}
    with harness.scratch() as directory:
        for _ in range(args.rounds):
            for each in PRECISIONS:
                rounds[each].append(profile(work, each, args, directory))
    # Of several rounds, the one of median length: the medians of the functions would not add up to a step.
    middle = {each: sorted(rounds[each], key=lambda r: sum(r[0].values()))[len(rounds[each]) // 2][0] for each in PRECISIONS}
    length = {each: sum(middle[each].values()) for each in PRECISIONS}
    names = sorted(set(middle["fp32"]) | set(middle["bf16"]), key=lambda name: -middle["fp32"][name] - middle["bf16"][name])

    def row(name, ms):
        return [name, *(text for each in PRECISIONS for text in (f"{ms[each]:.2f}", f"{100 * ms[each] / length[each]:.1f} %")),
                f"{100 * (ms['bf16'] - ms['fp32']) / length['fp32']:+.1f} %"]

    listed = [name for name in names if any(100 * middle[each][name] >= args.least * length[each] for each in PRECISIONS)]
    rest = {each: length[each] - sum(middle[each][name] for name in listed) for each in PRECISIONS}
    rows = [row(name if " " in name else f"`{name}`", {each: middle[each][name] for each in PRECISIONS}) for name in listed]
    rows += [row("all others", rest), row("a step", length)]
    wall = {each: statistics.median(s for _, steps in rounds[each] for s in steps) for each in PRECISIONS}
    text = (f"{precision.TITLES[work]}, {precision.ISAS[isa][0]}, 1 rank x {args.threads} thread(s); {args.rounds} rounds of "
            f"{args.steps} steps, {SAMPLES_PER_SECOND} samples per second of processor time; of each precision, the round of "
            f"median length. Median step: {wall['fp32']:.3f} s in fp32, {wall['bf16']:.3f} s in bf16.\n\n"
            + harness.table(["function", "fp32, ms per step", "share", "bf16, ms per step", "share",
                             "difference, of a step in fp32"], rows))
    harness.finish(args, "Functions that a step spends its time in", text, args.name or f"functions_{work}_{isa}", work=work,
                   isa=isa, threads=args.threads,
                   rounds={each: [{"ms": dict(ms.most_common()), "step_seconds": steps} for ms, steps in rounds[each]]
                           for each in PRECISIONS})


if __name__ == "__main__":
    main()
