"""The cost of `trace=true`: runs the same training with and without it, one after the other in each round.

Three measures differ in what disturbs them: the median step of each round, with everything else that the machine does; the
shortest step of all rounds; and the number of spans in a step times the cost of a span (`bench/micro/trace`), relative to the
median step without a trace. Writing the file after the last step is not included.
"""
import json
import statistics
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402


def step_seconds(args, trace, directory, look=None):
    overrides = [*harness.SYNTHETIC, f"train.batch_per_rank={args.batch}", f"train.max_steps={args.warmup + args.steps}",
                 f"trace={trace}"]
    steps, _ = harness.train_steps(args, overrides, directory, threads=1, look=look)
    return [step["step_seconds"] for step in steps[args.warmup:]]


def spans_per_step(folder):
    """Spans of rank 0, including its communication, reader and checkpoint threads."""
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    mine = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    steps = [e for e in mine if e["cat"] == "step"]
    inside = [e for e in mine if steps[0]["ts"] <= e["ts"] < steps[-1]["ts"] + steps[-1]["dur"]]
    return len(inside) / len(steps)


def main():
    args = harness.begin(harness.parser(__doc__, name="trace_cost", ranks=2, batch=32, steps=8, warmup=1, rounds=8))
    counts = []
    with harness.scratch() as directory:
        rounds = harness.run_rounds(args.rounds, {
            "off": lambda: step_seconds(args, "false", directory),
            "on": lambda: step_seconds(args, "true", directory, lambda folder: counts.append(spans_per_step(folder)))})
    medians = {side: [statistics.median(steps) for steps in of] for side, of in rounds.items()}
    least = {side: min(map(min, of)) for side, of in rounds.items()}
    ratios = [on / off for on, off in zip(medians["on"], medians["off"])]
    without = statistics.median(medians["off"])
    spans = statistics.median(counts)
    span = harness.micro(args.build, "trace", "--benchmark_filter=span/on")["benchmarks"][0]["real_time"]
    table = harness.table(["without, ms per step", "with", "ratio", "spread", "shortest without, ms", "with", "ratio",
                           "spans per step", "ns per span", "% of the step"],
                          [[f"{1e3 * without:.0f}", f"{1e3 * statistics.median(medians['on']):.0f}",
                            f"{statistics.median(ratios):.4f}", f"{100 * harness.spread(ratios):.1f} %",
                            f"{1e3 * least['off']:.1f}", f"{1e3 * least['on']:.1f}", f"{least['on'] / least['off']:.4f}",
                            f"{spans:.0f}", f"{1e9 * span:.0f}", f"{100 * spans * span / without:.4f} %"]])
    text = (f"ResNet-18, CIFAR stem, 32x32, fp32, batch {args.batch} per rank, {args.ranks} ranks, 1 thread per rank; the ratio "
            f"is the median of {args.rounds} rounds, each of {args.steps} steps per side.\n\n{table}")
    harness.finish(args, "The cost of trace: true", text, ranks=args.ranks, batch_per_rank=args.batch, rounds=rounds,
                   ratio=statistics.median(ratios), ratio_of_shortest=least["on"] / least["off"], spans_a_step=spans,
                   span_seconds=span)


if __name__ == "__main__":
    main()
