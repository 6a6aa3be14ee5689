"""ResNet-18 at 32x32, fp32, data parallel: ours beside PyTorch DistributedDataParallel, in turn, on this machine.

Both train on the same machine with as many ranks and threads; a round runs ours, then PyTorch contiguous, then
PyTorch channels_last. Each round gives the median step after a warm-up; the figures are the medians of the rounds.
PyTorch counts with the better of its two layouts.
"""
import argparse
import statistics

import sides
from sides import harness

LAYOUTS = ("contiguous", "channels_last")


def median(rounds, key):
    return statistics.median(r[key] for r in rounds)


def row(name, rounds):
    seconds = [r["median_step_seconds"] for r in rounds]
    return [name, f"{median(rounds, 'samples_per_second'):.1f}", f"{statistics.median(seconds):.3f}",
            f"{100 * harness.spread(seconds):.1f} %", f"{median(rounds, 'memory_bytes') / 1e6:.0f}",
            f"{median(rounds, 'launch_to_first_step_seconds'):.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides.add_arguments(parser, steps=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="peers", help="of the result files")
    args = parser.parse_args()
    binary = harness.lockstep(args.build)
    python, torch = harness.torch_python(args.python)
    if not python:
        harness.stop(torch)

    machine = harness.machine()
    rounds = {"lockstep": [], **{layout: [] for layout in LAYOUTS}}
    with harness.scratch() as directory:
        for number in range(args.rounds):
            rounds["lockstep"].append(sides.ours(binary, directory, args))
            for layout in LAYOUTS:
                rounds[layout].append(sides.theirs(python, layout, args))
            print(f"round {number + 1} of {args.rounds}, images/s:", ", ".join(
                f"{name} {rounds[name][-1]['samples_per_second']:.1f}" for name in rounds), flush=True)

    better = max(LAYOUTS, key=lambda layout: median(rounds[layout], "samples_per_second"))
    speed = median(rounds["lockstep"], "samples_per_second") / median(rounds[better], "samples_per_second")
    memory = median(rounds["lockstep"], "memory_bytes") / median(rounds[better], "memory_bytes")
    in_turn = [a["samples_per_second"] / b["samples_per_second"] for a, b in zip(rounds["lockstep"], rounds[better])]
    text = (
        f"ResNet-18, CIFAR stem, 32x32, fp32, SGD with momentum, {args.ranks} ranks x {args.threads} thread(s), batch "
        f"{args.batch} a rank.\nMedians of {args.rounds} rounds of {args.steps} steps, the first {args.warmup} not "
        "counted; spread: half the distance of the rounds' quartiles.\nMemory: peak of the rank that needs most (VmHWM). "
        "Launch: from the launch to the end of step 1.\n\n"
        + harness.table(["", "images/s", "s/step", "spread", "memory, MB", "launch, s"],
                        [row("Lockstep", rounds["lockstep"]),
                         *(row(f"PyTorch {torch}, {layout}", rounds[layout]) for layout in LAYOUTS)])
        + f"\nLockstep trains **{speed:.2f} times** as fast as PyTorch's better layout ({better}; in single rounds "
        f"{min(in_turn):.2f} to {max(in_turn):.2f}) in **{memory:.2f} times** its memory.\n")
    harness.write_results(args.name, "Beside PyTorch", text,
                          {"machine": machine, "version": harness.version(binary), "torch": torch,
                           "ranks": args.ranks, "threads": args.threads, "batch_per_rank": args.batch,
                           "speed_ratio": speed, "memory_ratio": memory, "better_layout": better, "rounds": rounds},
                          args.results)


if __name__ == "__main__":
    main()
