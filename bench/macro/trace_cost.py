"""What `trace=true` costs a step: the same training with it and without, in turn, first the one, then the other.

Three measures that differ in what disturbs them: the median step of each round, with all that the machine does besides; the
shortest step of all rounds; and the spans of a step, counted, times what a span costs (`bench/micro/trace`), over the median
step without. The writing of the file after the last step is no part of them.
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


def spans_a_step(folder):
    """Of rank 0, communication, reader and checkpoint threads included."""
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
    parser.add_argument("--batch", type=int, default=32, help="samples a rank")
    parser.add_argument("--steps", type=int, default=8, help="counted, of each side and round")
    parser.add_argument("--warmup", type=int, default=1, help="steps before those")
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
                look = (lambda folder: counts.append(spans_a_step(folder))) if trace == "true" else None
                found["on" if trace == "true" else "off"] = step_seconds(binary, args, trace, directory, look)
            rounds.append(found)
    medians = {side: [statistics.median(r[side]) for r in rounds] for side in ("off", "on")}
    least = {side: min(min(r[side]) for r in rounds) for side in ("off", "on")}
    ratios = [on / off for on, off in zip(medians["on"], medians["off"])]
    without = statistics.median(medians["off"])
    span, spans = span_seconds(args.build), statistics.median(counts)
    table = harness.table(["without, ms a step", "with", "ratio", "spread", "shortest without, ms", "with", "ratio",
                           "spans a step", "ns a span", "their share"],
                          [[f"{1e3 * without:.0f}", f"{1e3 * statistics.median(medians['on']):.0f}",
                            f"{statistics.median(ratios):.4f}", f"{100 * harness.spread(ratios):.1f} %",
                            f"{1e3 * least['off']:.1f}", f"{1e3 * least['on']:.1f}", f"{least['on'] / least['off']:.4f}",
                            f"{spans:.0f}", f"{1e9 * span:.0f}", f"{100 * spans * span / without:.4f} %"]])
    text = (f"ResNet-18, CIFAR stem, 32x32, fp32, batch {args.batch} a rank, {args.ranks} ranks, 1 thread a rank; the ratio "
            f"is the median of {args.rounds} rounds, each of {args.steps} steps a side.\n\n{table}")
    harness.write_results("trace_cost", "The cost of trace: true", text,
                          {"machine": machine, "version": harness.version(binary), "ranks": args.ranks,
                           "batch_per_rank": args.batch, "rounds": rounds, "ratio": statistics.median(ratios),
                           "ratio_of_shortest": least["on"] / least["off"],
                           "spans_a_step": spans, "span_seconds": span}, args.results)


if __name__ == "__main__":
    main()
