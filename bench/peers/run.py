"""Compares Lockstep with PyTorch DistributedDataParallel: ResNet-18 or 50, fp32 or bf16, on this machine.

Both train with the same number of ranks and threads. A round runs Lockstep, then PyTorch contiguous, then PyTorch
channels_last, and with --compile both under torch.compile as well. With --before, a round also runs an earlier build of
Lockstep, to show whether a change made training slower. Each round gives the median step after a warm-up; the
figures are the medians of the rounds. PyTorch counts with the best of its variants.
"""
import argparse
import os
import statistics

import sides
from sides import harness, median, shortest

LAYOUTS = ["contiguous", "channels_last"]
# The settings that limit Lockstep, PyTorch's own kernels and its oneDNN to the instructions of an older processor.
MAX_ISA = {"avx2": {"LOCKSTEP_MAX_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
           "avx512": {"LOCKSTEP_MAX_ISA": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}}


def row(name, rounds, args):
    seconds = [r["median_step_seconds"] for r in rounds]
    return [name, f"{median(rounds, 'samples_per_second'):.1f}", f"{statistics.median(seconds):.3f}",
            f"{100 * harness.spread(seconds):.1f} %", f"{shortest(rounds, args):.3f}",
            f"{median(rounds, 'memory_bytes') / 1e6:.0f}",
            f"{median(rounds, 'launch_to_first_step_seconds'):.2f}"]


def compared_with_before(rounds, args):
    in_turn = [a["samples_per_second"] / b["samples_per_second"] for a, b in zip(rounds["lockstep"], rounds["before"])]
    undisturbed = shortest(rounds["before"], args) / shortest(rounds["lockstep"], args)
    memory = median(rounds["lockstep"], "memory_bytes") / median(rounds["before"], "memory_bytes")
    return (f"It trains **{statistics.median(in_turn):.2f} times** as fast as the build before (in single rounds "
            f"{min(in_turn):.2f} to {max(in_turn):.2f}; by the shortest step of each {undisturbed:.2f}) in {memory:.2f} times its "
            "memory.\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides.add_arguments(parser, steps=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="also run PyTorch under torch.compile")
    parser.add_argument("--before", metavar="BUILD", help="folder with an earlier build of lockstep to compare with")
    parser.add_argument("--max-isa", choices=MAX_ISA, help="limit both sides to these instructions, as on an older processor")
    parser.add_argument("--name", default="peers", help="name of the result files")
    args = parser.parse_args()
    limits = MAX_ISA.get(args.max_isa, {})
    os.environ.update(limits)
    binary = harness.lockstep(args.build)
    python, torch = harness.torch_python(args.python)
    if not python:
        harness.stop(torch)

    machine = harness.machine()
    theirs = LAYOUTS + ([f"{layout}, compiled" for layout in LAYOUTS] if args.compile else [])
    before = harness.lockstep(args.before) if args.before else None
    rounds = {"lockstep": [], **({"before": []} if before else {}), **{side: [] for side in theirs}}
    with harness.scratch() as directory:
        for number in range(args.rounds):
            rounds["lockstep"].append(sides.ours(binary, directory, args))
            if before:
                rounds["before"].append(sides.ours(before, directory, args))
            for side in theirs:
                rounds[side].append(sides.theirs(python, side, args))
            print(f"round {number + 1} of {args.rounds}, images/s:", ", ".join(
                f"{name} {rounds[name][-1]['samples_per_second']:.1f}" for name in rounds), flush=True)

    better = max(theirs, key=lambda side: median(rounds[side], "samples_per_second"))
    work = sides.WORKS[args.work]
    speed = median(rounds["lockstep"], "samples_per_second") / median(rounds[better], "samples_per_second")
    memory = median(rounds["lockstep"], "memory_bytes") / median(rounds[better], "memory_bytes")
    undisturbed = min(shortest(rounds[side], args) for side in theirs) / shortest(rounds["lockstep"], args)
    in_turn = [a["samples_per_second"] / b["samples_per_second"] for a, b in zip(rounds["lockstep"], rounds[better])]
    text = (
        f"ResNet-{work['depth']}, {work['stem']} stem, {work['image_size']}x{work['image_size']}, {args.precision}, SGD "
        f"with momentum, {args.ranks} rank(s) x {args.threads} thread(s), batch {sides.batch(args)} per rank.\nMedians of {args.rounds} rounds of {args.steps} steps, the first {args.warmup} not "
        "counted; spread: half the distance between the quartiles of the rounds.\nMemory: peak of the rank that needs most (VmHWM). "
        "Launch: from the launch to the end of step 1.\n\n"
        + harness.table(["", "images/s", "s/step", "spread", "shortest, s", "memory, MB", "launch, s"],
                        [row("Lockstep", rounds["lockstep"], args),
                         *([row("Lockstep before", rounds["before"], args)] if before else []),
                         *(row(f"PyTorch {torch}, {side}", rounds[side], args) for side in theirs)])
        + f"\nLockstep trains **{speed:.2f} times** as fast as PyTorch's best ({better}; in single rounds "
        f"{min(in_turn):.2f} to {max(in_turn):.2f}; by the shortest step of each side {undisturbed:.2f}) in **{memory:.2f} "
        "times** its memory.\n"
        + (compared_with_before(rounds, args) if before else "")
        + (f"PyTorch ran with {' '.join(map('='.join, sides.LIMITED.items()))}, since without it PyTorch ends with an illegal "
           "instruction on this machine.\n" if sides.limited else "")
        + (f"Both sides were limited with {' '.join(map('='.join, limits.items()))}.\n" if limits else ""))
    harness.write_results(args.name, "Compared with PyTorch", text,
                          {"machine": machine, "version": harness.version(binary), "torch": torch,
                           "work": args.work, "precision": args.precision, "ranks": args.ranks,
                           "threads": args.threads, "batch_per_rank": sides.batch(args), "torch_limited": sides.limited,
                           "max_isa": args.max_isa,
                           "speed_ratio": speed, "shortest_step_ratio": undisturbed, "memory_ratio": memory,
                           "better_side": better, "rounds": rounds},
                          args.results)


if __name__ == "__main__":
    main()
