"""The checks of the part speed: comparisons with PyTorch, weight gradients on a second stream, and where time goes."""
import json
import pathlib
import re
import statistics

import harness
from context import CONFIG, QUIET, Failure, Item, Skip

# The trainings that are timed, with the smallest acceptable ratio to the best of PyTorch.
SPEEDS = {
    "ResNet-50, 224x224, batch 256, fp16": dict(depth=50, stem="imagenet", image_size=224, batch=256, precision="fp16", min_ratio=1.5),
    "ResNet-50, 224x224, batch 256, bf16": dict(depth=50, stem="imagenet", image_size=224, batch=256, precision="bf16", min_ratio=1.2),
    "ResNet-18, 32x32, batch 512, fp16": dict(depth=18, stem="cifar", image_size=32, batch=512, precision="fp16", min_ratio=1.5),
    "ResNet-18, 32x32, batch 512, bf16": dict(depth=18, stem="cifar", image_size=32, batch=512, precision="bf16", min_ratio=1.5),
}

SPAN_NAME = 38  # characters of a layer's name that a trace keeps (include/lockstep/trace.h)


def speed_overrides(work):
    return ["data.train=synthetic", "data.validation=", f"data.image_size={work['image_size']}", "device=cuda",
                 f"data.synthetic_samples={2 * work['batch']}", f"model.depth={work['depth']}",
                 f"model.classes={1000 if work['stem'] == 'imagenet' else 10}", f"model.stem={work['stem']}",
                 f"precision={work['precision']}", f"train.global_batch={work['batch']}", "train.epochs=20",
                 "train.max_steps=40", "log.every_steps=1", "checkpoint.every_epochs=0", "data.augment=[]",
                 "data.readers=8", "data.prefetch=8"]  # drawing synthetic 224x224 images takes longer than training on them


def timed_training(context, config, overrides, folder, **environment):
    """Trains with autotuned algorithms, which are cached in the build folder unless `environment` names another cache."""
    context.train(folder, "speed", overrides, config=config, base=QUIET,
                  **{"LOCKSTEP_CACHE": str(context.build / "gpu-check-cache"), **environment})


def measured_training(context, config, overrides, skipped=10, **environment):
    """The time of a step and more, after the first steps."""
    with harness.scratch() as folder:
        timed_training(context, config, overrides, folder, **environment)
        steps = harness.steps_of(pathlib.Path(folder, "speed"))[skipped:]
    if len(steps) < 10:
        raise Failure(f"metrics.jsonl has {len(steps)} steps after the first {skipped}; expected at least 10")
    used = [step["model_flops_utilization"] for step in steps if step.get("model_flops_utilization")]
    return {"step_seconds": harness.median(steps, "step_seconds"), "memory_bytes": steps[-1]["memory_bytes"],
            "utilization": statistics.median(used) if used else None,
            "data_wait": sum(step["data_wait_seconds"] for step in steps) / sum(step["step_seconds"] for step in steps)}


def run_lockstep(context, work, *more):
    found = measured_training(context, CONFIG, [*speed_overrides(work), *more])
    return {**found, "samples_per_second": work["batch"] / found["step_seconds"]}


def kind_of(name, description):
    """The class of a layer, from its name and description in the output of `lockstep plan`."""
    last = name.split(".")[-1] if not name.endswith("downsample.1") else "bn"
    if description.startswith("conv2d"):
        return "convolutions with fused ops"
    if description.startswith("matmul"):
        return "linear"
    if last.endswith("norm"):
        return "RMS norm"
    return "batch norm" if last.startswith("bn") else "pooling" if "pool" in last else last


def layers_of(plan):
    """{layer: (class, MB moved forward, MB moved backward, MB saved by fusion)} from the output of `lockstep plan`; 0 if
    unknown."""
    layers, in_table = {}, False
    for line in plan.splitlines():
        in_table = in_table or line.startswith("How each layer runs")
        found = re.match(r"  (\S+) +(\S.*)", line)
        if in_table and found:
            moved = re.search(r"moves ([\d.]+) MB forward, ([\d.]+) MB backward", found[2])
            forward, backward = map(float, moved.groups()) if moved else (0.0, 0.0)
            passes = re.search(r"\(by passes ([\d.]+) and ([\d.]+)\)", found[2])
            saved = sum(map(float, passes.groups())) - forward - backward if passes else 0.0
            layers[found[1]] = (kind_of(*found.groups()), forward, backward, saved)
    return layers


def class_of(layers, category, name):
    """Of a span: "linear, backward", "update: optimizer"."""
    layer = layers.get(name[:SPAN_NAME])
    return f"{layer[0]}, {category}" if layer else f"{category}: {name[:SPAN_NAME]}"


def device_spans(events):
    """{(category, name): median seconds} of the spans in the second half of the row `device`."""
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    spans = {}
    for e in events:
        if e.get("ph") == "X" and rows.get((e["pid"], e["tid"])) == "device":
            spans.setdefault((e["cat"], e["name"]), []).append(e["dur"] * 1e-6)
    return {key: statistics.median(seconds[len(seconds) // 2:]) for key, seconds in spans.items()}


def peer(context, python, kind, mode, *options, limit=240):
    """The result of peer.py, or {"problem": the reason why there is none}."""
    try:
        output = context.output([python, pathlib.Path(__file__).with_name("peer.py"), kind, "--mode", mode, *options],
                                limit=limit, launcher=[])
        return json.loads(output.strip().splitlines()[-1])
    except (Failure, ValueError, IndexError) as problem:
        return {"problem": str(problem)}


def beside_pytorch(context, name, run, run_pytorch, modes):
    """The figures of Lockstep before and after PyTorch, because clocks and temperature drift, those of PyTorch by mode, and
    its problems. Without PyTorch, Lockstep runs once."""
    python, _ = harness.torch_python(context.args.python)
    first = context.figure(f"{name}: Lockstep, first", run)
    found = {mode: context.figure(f"{name}: PyTorch, {mode}", lambda mode=mode: run_pytorch(python, mode))
             for mode in modes if python}
    again = context.figure(f"{name}: Lockstep, again", run) if python else first
    problems = "".join(f"; {mode}: {x['problem']}" for mode, x in found.items() if "problem" in x)
    return first, again, {mode: x for mode, x in found.items() if "problem" not in x}, problems


def copy_rate(context, python):
    """Bytes/s that the device reads and writes when it copies; None if that fails."""
    return peer(context, python, "resnet", "copy", limit=120).get("copy_bytes_per_second")


def where_time_goes(context, config, overrides, planned_for=("device=cuda",), **environment):
    """The seconds of a step on the device by class of work, the bytes that each class of convolutions moves, and their rate."""
    with harness.scratch() as folder:
        timed_training(context, config, [*overrides, "trace=true", "train.max_steps=24"], folder, **environment)
        events = json.loads(pathlib.Path(folder, "speed/trace.json").read_text())["traceEvents"]
    plan = context.output([context.binary, "plan", config, *(o for o in overrides if o != "device=cuda"), *planned_for],
                          **{"LOCKSTEP_CACHE": str(context.build / "gpu-check-cache"), **environment})
    layers = {name[:SPAN_NAME]: layer for name, layer in layers_of(plan).items()}
    spans = device_spans(events)
    if not spans:
        raise Failure("trace.json has no row `device`")
    shares, moved, moving = {}, {}, 0.0
    for (category, name), seconds in spans.items():
        _, *megabytes, _ = layers.get(name, (name, 0.0, 0.0, 0.0))
        kind = class_of(layers, category, name)
        shares[kind] = shares.get(kind, 0.0) + seconds
        if megabytes[category == "backward"] > 0:
            moved[kind] = moved.get(kind, 0.0) + 1e6 * megabytes[category == "backward"]
            moving += seconds
    return {"seconds": shares, "layers": layers, "bytes": moved, "bytes_per_second": sum(moved.values()) / moving if moving else 0.0,
            "moved_megabytes": sum(forward + backward for _, forward, backward, _ in layers.values()),
            "saved_megabytes": sum(layer[3] for layer in layers.values())}


def where_time_goes_text(found):
    step = sum(found["seconds"].values())
    parts = sorted(found["seconds"].items(), key=lambda part: -part[1])
    return f"{1e3 * step:.2f} ms per uncaptured step: " + ", ".join(f"{kind} {100 * seconds / step:.1f} %" for kind, seconds in parts)


def run_pytorch(context, python, mode, work):
    return peer(context, python, "resnet", mode, "--depth", work["depth"], "--stem", work["stem"], "--image-size", work["image_size"],
                "--precision", work["precision"], "--batch", work["batch"])


def speed(context):
    def measure(name, work):
        def checked(context):
            first, again, good, problems = beside_pytorch(
                context, name, lambda: run_lockstep(context, work),
                lambda python, mode: run_pytorch(context, python, mode, work), ("eager", "compile", "graph"))
            if not good and not problems:
                raise Skip(f"Lockstep {first['samples_per_second']:.0f} images/s; {harness.torch_python(context.args.python)[1]}")
            mine = (first["samples_per_second"] + again["samples_per_second"]) / 2
            if not good:
                raise Failure(f"Lockstep {mine:.0f} images/s; PyTorch failed{problems}")
            mode, best = max(good.items(), key=lambda side: side[1]["samples_per_second"])
            ratio = mine / best["samples_per_second"]
            return ratio >= work["min_ratio"], (f"{mine:.0f} images/s, PyTorch {best['torch']} {best['samples_per_second']:.0f} "
                                            f"({mode}): {ratio:.2f} times, {work['min_ratio']} required; memory "
                                            f"{first['memory_bytes'] / best['memory_bytes']:.2f} times; "
                                            f"{100 * again['data_wait']:.1f} % of the time spent waiting for data{problems}")
        return checked

    def second_stream(name, work):
        """The time of a step with weight gradients on one stream and on two. Both kinds of training alternate. No
        ratio is required: autotuning takes the faster one."""
        def checked(context):
            rate, memory = {"off": 0.0, "on": 0.0}, {}
            for turn in ("first", "again"):
                for mode in rate:
                    found = context.figure(f"{name}: {mode}, {turn}", lambda mode=mode: run_lockstep(
                        context, work, f"cuda.weight_gradient_stream={mode}"))
                    rate[mode] = max(rate[mode], found["samples_per_second"])
                    memory[mode] = found["memory_bytes"]
            off, on = (1e3 * work["batch"] / rate[mode] for mode in rate)
            return True, (f"{off:.2f} ms per step on one stream, {on:.2f} ms on two: {off / on:.2f} times as fast; memory "
                          f"{memory['on'] / memory['off']:.2f} times")
        return checked

    def split(work):
        def checked(context):
            found = where_time_goes(context, CONFIG, speed_overrides(work))
            python, version = harness.torch_python(context.args.python)
            rate = context.figure("copy rate", lambda: copy_rate(context, python)) if python else None
            of_rate = f", {100 * found['bytes_per_second'] / rate:.0f} % of the {rate * 1e-9:.0f} GB/s of a copy" if rate else ""
            text = (f"{where_time_goes_text(found)}; convolutions move "
                    f"{found['bytes_per_second'] * 1e-9:.0f} GB/s{of_rate}, {found['moved_megabytes']:.0f} MB per step; fusion "
                    f"saves {found['saved_megabytes']:.0f} MB")
            if not python:
                raise Skip(f"{text}; the rate of a copy is unknown: {version}")
            return True, text
        return checked
    return [item for name, work in SPEEDS.items()
            for item in (Item(name, measure(name, work)),
                         Item(f"{name}: weight gradients", second_stream(f"{name}: weight gradients", work)),
                         Item(f"{name}: where the time goes", split(work)))]
