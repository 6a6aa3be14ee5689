"""The cost of `trace=true`: runs the same training with and without it, in alternating order.

Three measures differ in what disturbs them: the median step of each round, with everything else that the machine does; the
shortest step of all rounds; and the number of spans in a step times the cost of a span (`bench/micro/trace`), relative to the
median step without a trace. Writing the file after the last step is not included.
"""
import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

CONFIG = "jobs/configs/resnet18_cifar10.yaml"


def step_seconds(binary, args, trace, directory, look=None):
    overrides = ["data.train=synthetic", "data.validation=", f"train.batch_per_rank={args.batch}",
                 f"train.max_steps={args.warmup + args.steps}", "log.every_steps=1", "checkpoint.every_epochs=0",
                 f"trace={trace}"]
    lines, _ = harness.train(binary, args.ranks, 1, CONFIG, overrides, directory, look=look)
    return [step["step_seconds"] for step in harness.steps(lines)[args.warmup:]]


def spans_per_step(folder):
    """Spans of rank 0, including its communication, reader and checkpoint threads."""
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    mine = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    steps = [e for e in mine if e["cat"] == "step"]
    inside = [e for e in mine if steps[0]["ts"] <= e["ts"] < steps[-1]["ts"] + steps[-1]["dur"]]
    return len(inside) / len(steps)


def span_seconds(build):
    out = harness.run([pathlib.Path(build) / "bench/micro/trace", "--benchmark_filter=span/on", "--benchmark_format=json"],
                      "bench/micro/trace")
    return json.loads(out)["benchmarks"][0]["real_time"] * 1e-9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder with the programs")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="samples per rank")
    parser.add_argument("--steps", type=int, default=8, help="steps that are counted, per side and round")
    parser.add_argument("--warmup", type=int, default=1, help="steps before the counted ones")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the result files")
    args = parser.parse_args()
    binary = harness.lockstep(args.build)
    machine = harness.machine()
    counts, rounds = [], []
    with harness.scratch() as directory:
        for i in range(args.rounds):
            found = {}
            for trace in ("false", "true") if i % 2 == 0 else ("true", "false"):
                look = (lambda folder: counts.append(spans_per_step(folder))) if trace == "true" else None
                found["on" if trace == "true" else "off"] = step_seconds(binary, args, trace, directory, look)
            rounds.append(found)
    medians = {side: [statistics.median(r[side]) for r in rounds] for side in ("off", "on")}
    least = {side: min(min(r[side]) for r in rounds) for side in ("off", "on")}
    ratios = [on / off for on, off in zip(medians["on"], medians["off"])]
    without = statistics.median(medians["off"])
    span, spans = span_seconds(args.build), statistics.median(counts)
    table = harness.table(["without, ms per step", "with", "ratio", "spread", "shortest without, ms", "with", "ratio",
                           "spans per step", "ns per span", "% of the step"],
                          [[f"{1e3 * without:.0f}", f"{1e3 * statistics.median(medians['on']):.0f}",
                            f"{statistics.median(ratios):.4f}", f"{100 * harness.spread(ratios):.1f} %",
                            f"{1e3 * least['off']:.1f}", f"{1e3 * least['on']:.1f}", f"{least['on'] / least['off']:.4f}",
                            f"{spans:.0f}", f"{1e9 * span:.0f}", f"{100 * spans * span / without:.4f} %"]])
    text = (f"ResNet-18, CIFAR stem, 32x32, fp32, batch {args.batch} per rank, {args.ranks} ranks, 1 thread per rank; the ratio "
            f"is the median of {args.rounds} rounds, each of {args.steps} steps per side.\n\n{table}")
    harness.write_results("trace_cost", "The cost of trace: true", text,
                          {"machine": machine, "version": harness.version(binary), "ranks": args.ranks,
                           "batch_per_rank": args.batch, "rounds": rounds, "ratio": statistics.median(ratios),
                           "ratio_of_shortest": least["on"] / least["off"],
                           "spans_a_step": spans, "span_seconds": span}, args.results)


if __name__ == "__main__":
    main()
