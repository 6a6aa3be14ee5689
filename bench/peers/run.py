"""Compares Lockstep with PyTorch DistributedDataParallel: ResNet-18 or 50, fp32 or bf16, on this machine.

Both train with the same number of ranks and threads. A round runs Lockstep, then PyTorch contiguous, then PyTorch
channels_last, and with --compile both under torch.compile as well. Each round gives the median step after a warm-up; the
figures are the medians of the rounds. PyTorch counts with the best of its variants. macro/precision.py compares with an
earlier build.
"""
import os
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import sides  # noqa: E402
from harness import median  # noqa: E402

LAYOUTS = ["contiguous", "channels_last"]
# The settings that limit Lockstep, PyTorch's own kernels and its oneDNN to the instructions of an older processor.
MAX_ISA = {"avx2": {"LOCKSTEP_MAX_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
           "avx512": {"LOCKSTEP_MAX_ISA": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}}


def row(name, rounds, args):
    return [name, f"{median(rounds, 'samples_per_second'):.1f}", *sides.speeds(rounds, args),
            f"{median(rounds, 'memory_bytes') / 1e6:.0f}", f"{median(rounds, 'launch_to_first_step_seconds'):.2f}"]


def main():
    parser = sides.parser(__doc__, steps=20, rounds=5, name="peers")
    parser.add_argument("--compile", action="store_true", help="also run PyTorch under torch.compile")
    parser.add_argument("--max-isa", choices=MAX_ISA, help="limit both sides to these instructions, as on an older processor")
    args = harness.begin(parser)
    limits = MAX_ISA.get(args.max_isa, {})
    os.environ.update(limits)
    python, torch = harness.torch_python(args.python)
    if not python:
        harness.stop(torch)

    theirs = LAYOUTS + ([f"{layout}, compiled" for layout in LAYOUTS] if args.compile else [])
    runs = {"lockstep": lambda: sides.ours(directory, args),
            **{side: lambda side=side: sides.theirs(python, side, args) for side in theirs}}
    with harness.scratch() as directory:
        rounds = harness.run_rounds(args.rounds, runs, "images/s", lambda r: f"{r['samples_per_second']:.1f}")

    better = max(theirs, key=lambda side: median(rounds[side], "samples_per_second"))
    work = sides.WORKS[args.work]
    speed = median(rounds["lockstep"], "samples_per_second") / median(rounds[better], "samples_per_second")
    memory = median(rounds["lockstep"], "memory_bytes") / median(rounds[better], "memory_bytes")
    text = (
        f"ResNet-{work['depth']}, {work['stem']} stem, {work['image_size']}x{work['image_size']}, {args.precision}, SGD "
        f"with momentum, {args.ranks} rank(s) x {args.threads} thread(s), batch {sides.batch(args)} per rank.\nMedians of {args.rounds} rounds of {args.steps} steps, the first {args.warmup} not "
        "counted; spread: half the distance between the quartiles of the rounds.\nMemory: peak of the rank that needs most (VmHWM). "
        "Launch: from the launch to the end of step 1.\n\n"
        + harness.table(["", "images/s", "s/step", "spread", "shortest, s", "memory, MB", "launch, s"],
                        [row("Lockstep", rounds["lockstep"], args),
                         *(row(f"PyTorch {torch}, {side}", rounds[side], args) for side in theirs)])
        + f"\nLockstep trains **{speed:.2f} times** as fast as PyTorch's best ({better}; "
        f"{sides.speed_text(rounds['lockstep'], rounds[better], args)}) in **{memory:.2f} times** its memory.\n"
        + (f"PyTorch ran with {' '.join(map('='.join, sides.LIMITED.items()))}, since without it PyTorch ends with an illegal "
           "instruction on this machine.\n" if sides.limited else "")
        + (f"Both sides were limited with {' '.join(map('='.join, limits.items()))}.\n" if limits else ""))
    harness.finish(args, "Compared with PyTorch", text, torch=torch, work=args.work, precision=args.precision, ranks=args.ranks,
                   threads=args.threads, batch_per_rank=sides.batch(args), torch_limited=sides.limited, max_isa=args.max_isa,
                   speed_ratio=speed, memory_ratio=memory, better_side=better, rounds=rounds)


if __name__ == "__main__":
    main()
