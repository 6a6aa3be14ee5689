"""Where the time of a step goes: the spans of rank 0 of a traced training, by kind, with the least time of the convolutions.

The least time (floor) is the number of multiplications and additions over the multiply rate that bench/micro measures in
registers just before. Ops are timed as they run in the step: a convolution includes the normalisation of its input and the
statistics of its output.
"""
import json
import os
import re
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import sides  # noqa: E402

REST = "the rest: time between ops, and time without a span"


def kind(event):
    category, name = event["cat"], event["name"]
    if category in ("forward", "backward"):
        if re.search(r"conv\d$|downsample\.0$", name):
            return f"convolutions, {category}, normalisation and statistics with them"
        if re.search(r"bn\d$|downsample\.1$", name):
            return f"batch norm, {category}"
        if name == "input":
            return "image input: crop, flip, normalisation"
        return f"pooling, last layer, loss, {category}"
    if category == "update":
        return {"gradient norm": "norm of the gradient", "sum of squares": "norm of the gradient",
                "optimizer": "optimizer"}.get(name, "running statistics")
    return {"data": "waiting for data"}.get(name, "waiting for sums over ranks")


def spans(events):
    """(step, kind -> ms) of each step: the spans of the main row that contain no other span."""
    events.sort(key=lambda e: (e["ts"], -e["dur"]))
    steps = [e for e in events if e["cat"] == "step"]
    for step, following in zip(steps, [*steps[1:], None]):
        end = following["ts"] if following else step["ts"] + step["dur"]
        inside = [e for e in events if step["ts"] <= e["ts"] < end and e is not step]
        found = {}
        for event, then in zip(inside, [*inside[1:], None]):
            holds = then is not None and then["ts"] < event["ts"] + event["dur"]
            if not holds:
                found[kind(event)] = found.get(kind(event), 0) + event["dur"] / 1e3
        yield step["dur"] / 1e3, found


def convolution_flops(args, overrides):
    """The FLOPs of a step of one rank, forward and backward, from the plan's description of each layer."""
    out = harness.run([args.binary, "plan", harness.RESNET_CONFIG, *overrides], "lockstep plan", env=harness.environment(1))
    found = {"forward": 0.0, "backward": 0.0}
    shapes = re.findall(r"conv2d \((\d+), (\d+), (\d+), (\d+)\) -> (\d+), (\d+)x\d+/(\d+)", out)
    for number, shape in enumerate(shapes):
        n, h, w, c, k, window, stride = map(int, shape)
        flops = 2.0 * n * -(-h // stride) * -(-w // stride) * c * k * window * window
        found["forward"] += flops
        found["backward"] += flops * (2 if number else 1)  # the first convolution needs no gradient of the images
    return found


def multiply_rate(args):
    environment = dict(os.environ, LOCKSTEP_BENCH_DTYPE=args.precision, LOCKSTEP_BENCH_THREADS=str(args.threads))
    # One benchmark is enough; if none runs, the program prints no context.
    out = harness.micro(args.build, "conv2d", "--benchmark_filter=conv/4x4x1024-256_1x1/forward", seconds=0.01, env=environment)
    return 1e9 * float(out["context"]["multiply rate"].split()[0])


def main():
    args = harness.begin(sides.parser(__doc__, steps=12, name=""))
    work = sides.WORKS[args.work]
    overrides = [*sides.overrides_of(args), f"cpu.threads={args.threads}"]
    rate = multiply_rate(args)
    flops = convolution_flops(args, overrides)
    steps = []

    def look(folder):
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        main = [e for e in events if e["ph"] == "X" and e["pid"] == 0 and e["tid"] == 0 and e["cat"] != "checkpoint"]
        steps.extend(list(spans(main))[args.warmup:])

    with harness.scratch() as directory:
        harness.train_steps(args, [*overrides, f"train.max_steps={args.steps}", "trace=true"], directory, look=look)
    # The parts of one step, the one of median length: the medians of the parts would not add up to it.
    length, parts = sorted(steps, key=lambda step: step[0])[len(steps) // 2]
    covered = sum(parts.values())
    floors = {name: 1e3 * flops[direction] / rate for direction in flops for name in parts
              if name.startswith(f"convolutions, {direction}")}
    rows = [[name, f"{ms:.1f}", f"{100 * ms / length:.1f} %",
             f"{floors[name]:.1f}" if name in floors else "", f"{100 * floors[name] / ms:.0f} %" if name in floors else ""]
            for name, ms in sorted(parts.items(), key=lambda part: -part[1])]
    rows.append([REST, f"{length - covered:.1f}", f"{100 * (length - covered) / length:.1f} %", "", ""])
    rows.append(["a step", f"{length:.1f}", "100 %", f"{sum(floors.values()):.1f}",
                 f"{100 * sum(floors.values()) / length:.0f} %"])
    text = (f"ResNet-{work['depth']}, {work['stem']} stem, {work['image_size']}x{work['image_size']}, {args.precision}, "
            f"{args.ranks} rank(s) x {args.threads} thread(s), batch {sides.batch(args)} per rank; rank 0, the step of median "
            f"length of {len(steps)} ({100 * harness.spread([s[0] for s in steps]):.1f} % spread).\nMultiply rate of a rank, "
            f"measured in registers: {rate / 1e9:.0f} GFLOP/s. Spans account for {100 * covered / length:.1f} %.\n\n"
            + harness.table(["", "ms", "% of the step", "floor, ms", "% of the multiply rate"], rows))
    harness.finish(args, "Where the time of a step goes", text, args.name or f"where_{args.work}_{args.precision}",
                   ranks=args.ranks, threads=args.threads, batch_per_rank=sides.batch(args), work=args.work,
                   precision=args.precision, flops_per_second=rate, convolution_flops=flops,
                   steps=[{"ms": ms, "parts": found} for ms, found in steps])


if __name__ == "__main__":
    main()
