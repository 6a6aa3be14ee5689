"""Predicts the time of a training step, and of decoding a token, on a GPU that is not here, from what they launch.

    python3 bench/gpu/model.py --build build [--device h200]      # the cases of expectations.json
    python3 bench/gpu/model.py --launches bench/gpu/launches.json  # from a list that was recorded earlier
    python3 bench/gpu/model.py --build build --record FILE.json    # keeps the list

`lockstep plan --device` counts the launches, bytes and floating-point operations in the code. The parts of the device's
rates that a kind of kernel reaches are those below. They were set once, so that the kernels of 2026-11-27 give the times by
class of kernels and the rates in expectations.json, and do not change when kernels do: a better kernel moves fewer bytes, or
is of another kind. Nothing here was measured on a GPU.
"""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, sys.path[0] + "/..")
import context  # noqa: E402
import harness  # noqa: E402
import language  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
NARROW = ["train.gradient_type=bf16", "optimizer.moments=bf16", "optimizer.masters=none"]
# The shape of each case, and keys beside those of the measurement.
CASES = {"Qwen2.5-0.5B, bf16, 16 x 1,024": ("Qwen2.5-0.5B", []),
         "Qwen2.5-0.5B, bf16, 16 x 1,024, gradients, moments and weights in bf16 only": ("Qwen2.5-0.5B", NARROW),
         "Qwen2.5-0.5B, fp8, 16 x 1,024": ("Qwen2.5-0.5B", ["precision=fp8"]),
         "SmolLM-135M, bf16, 32 x 1,024": ("SmolLM-135M", [])}
DECODING = {f"decoding, batch 1, {shape}": (shape, []) for shape, _ in CASES.values()}  # with a full cache of 1,024 tokens
# What a large copy, large products in 16 bits and, where there are any, in fp8 reach: bytes and floating-point operations per
# second. The tensor cores compute twice as fast in fp8 (H200: 1,979 instead of 989 TFLOP/s), and products reach the same part.
RATES = {"h200": (4.3e12, 790e12, 1580e12), "h100": (3.0e12, 790e12, 1580e12), "a100": (1.75e12, 270e12), "rtx4090": (0.93e12, 160e12, 320e12)}
LAUNCH = 1.5e-6  # seconds from one kernel of a captured step to the next
# Of each kind: the parts of both rates, and seconds that are added to each launch. A grid of one block per row is limited by
# the rate at which blocks follow each other, and threads that walk down columns by the time from one load to the next.
KINDS = {
    "matmul": {"bytes": 0.80, "flops": 0.797, "seconds": 9.5e-6},  # the last wave of its blocks is incomplete
    "matmul, fp8": {"bytes": 0.80, "flops": 0.797, "seconds": 9.5e-6, "rate": 2},
    "attention, forward": {"bytes": 0.80, "flops": 0.365},
    "attention, backward": {"bytes": 0.80, "flops": 0.25},
    "convolution": {"bytes": 0.62, "flops": 0.62},
    "packs": {"bytes": 0.80},  # 16-byte loads, by a grid that fills the device
    "rows": {"bytes": 0.80, "block": 4.4e-9},
    "columns": {"bytes": 0.80, "step": 124e-9},
    "elements": {"bytes": 0.24},  # loads of 2 bytes, and divisions
    "small": {},
    "": {},  # not counted
}
CALIBRATION = 0.949  # llmq's published rate for the same model, relative to the sum over these kinds


def seconds_of(launch, rates):
    """Of one launch."""
    kind = KINDS[launch["kind"]]
    times = [launch["bytes"] / rates[0] / kind.get("bytes", 1), launch["flops"] / rates[kind.get("rate", 1)] / kind.get("flops", 1),
             launch["blocks"] * kind.get("block", 0), launch["steps"] * kind.get("step", 0)]
    return CALIBRATION * (max(times) + kind.get("seconds", 0) + LAUNCH)


def floor_of(launch, rates):
    """The seconds of one launch if it moved each byte once at the full rates."""
    return max(launch["bytes"] / rates[0], launch["flops"] / rates[KINDS[launch["kind"]].get("rate", 1)])


def predict(launches, rates):
    """{kind: (launches, bytes, flops, floor, seconds)}; the floor moves each byte once at the full rates."""
    kinds = {}
    for launch in launches:
        n = launch["launches"]
        row = (n, n * launch["bytes"], n * launch["flops"], n * floor_of(launch, rates), n * seconds_of(launch, rates))
        kinds[launch["kind"]] = [a + b for a, b in zip(kinds.get(launch["kind"], [0] * len(row)), row)]
    return kinds


def launches_of(case, args):
    shape, keys = {**CASES, **DECODING}[case]
    overrides = language.overrides_of(language.SHAPES[shape], "data.cross_documents=true", *keys)
    planned = harness.run([args.binary, "plan", context.LANGUAGE_CONFIG, *overrides, "--device", args.device, "--steps", "--json"], "lockstep plan")
    return json.loads(planned)["decoding" if case in DECODING else "launches"]


def bandwidth_of(kinds, rates):
    """The part of the rate of a copy at which the bytes are moved."""
    return sum(row[1] for row in kinds.values()) / rates[0] / sum(row[-1] for row in kinds.values())


def table(kinds):
    rows = [[kind or "not counted", n, f"{1e-9 * moved:.1f}", f"{1e-12 * flops:.2f}", f"{1e3 * floor:.1f}", f"{1e3 * seconds:.1f}"]
            for kind, (n, moved, flops, floor, seconds) in sorted(kinds.items(), key=lambda entry: -entry[1][-1])]
    return harness.table(["kind of kernel", "launches", "GB", "TFLOP", "floor, ms", "predicted, ms"], rows)


def rate_of(case, kinds):
    """Tokens per second."""
    return language.SHAPES[CASES[case][0]]["batch"] * language.SEQUENCE / sum(row[-1] for row in kinds.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder with the program lockstep")
    parser.add_argument("--device", choices=RATES, default="h200")
    parser.add_argument("--launches", type=pathlib.Path, help="a list that --record wrote")
    parser.add_argument("--record", type=pathlib.Path, help="file to write the list to")
    args = parser.parse_args()
    if args.launches:
        lists = json.loads(args.launches.read_text())
    else:
        args.binary = harness.lockstep(args.build)
        lists = {case: launches_of(case, args) for case in (*CASES, *DECODING)}
    if args.record:
        args.record.write_text(json.dumps(lists).replace("}, {", "},\n{") + "\n")
    for case, launches in lists.items():
        kinds = predict(launches, RATES[args.device])
        seconds = sum(row[-1] for row in kinds.values())
        rate = (f"{1 / seconds:,.0f} tokens/s, {100 * bandwidth_of(kinds, RATES[args.device]):.0f} % of the bandwidth" if case in DECODING
                else f"{rate_of(case, kinds):,.0f} tokens/s")
        print(f"{case}, {args.device}: {1e3 * seconds:.2f} ms, {rate}\n\n{table(kinds)}")


if __name__ == "__main__":
    main()
