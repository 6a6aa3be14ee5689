"""Compares Lockstep with PyTorch in training a language model: the sizes of SmolLM-135M, AdamW, random tokens.

A round runs Lockstep and then each variant of PyTorch (peer.py) with the same number of ranks and threads, and with
several ranks also as one process with all of the threads and the same batch. Each round gives the median step after a
warm-up; the figures are the medians of the rounds. PyTorch counts with the fastest of its variants. On a machine that others
use too, the shortest step and the processor time of a step say more than the median.

The floor is computed from rates that are measured just before on as many processors as there are ranks: the products of the
model (6 operations per weight and token, and attention) at the rate of a large matrix product of PyTorch's oneDNN, the bytes
of AdamW (30 per parameter with bf16 weights, 28 without) and of the sum over ranks at the rate of a copy.
"""
import json
import statistics
import subprocess
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import sides  # noqa: E402
from harness import median  # noqa: E402

CONFIG = "bench/peers/language.yaml"
VARIANTS = ["fp32", "autocast", "masters"]
PARAMETERS, LAYERS, WIDTH = 134_515_008, 30, 576


def ours(directory, args):
    """The normal `lockstep train` with loader and metrics."""
    overrides = [f"data.sequence_length={args.sequence}", f"train.batch_per_rank={args.batch}",
                 f"train.max_steps={args.steps}", f"precision={args.precision}", *args.overrides]
    steps, _ = harness.train_steps(args, overrides, directory, config=CONFIG)
    work = [s["step_seconds"] * max(s["per_rank"]["utilisation"]) * args.threads for s in steps[args.warmup:]]
    return {**sides.figures(steps, args), "processor_seconds": statistics.median(work)}


def theirs(python, variant, ranks, threads, args):
    return sides.run_ranks(python, "language", ["--variant", variant, "--sequence", args.sequence, "--batch",
                                                args.batch * args.ranks // ranks], args, ranks, threads)


RATES = """
import json, sys, time, torch
torch.set_num_threads(1)
dtype = torch.bfloat16 if sys.argv[1] == "bf16" else torch.float32
def shortest(work):
    times = []
    for _ in range(20):
        begin = time.thread_time(); work(); times.append(time.thread_time() - begin)
    return min(times)
a, b = torch.randn(1024, 1024, dtype=dtype), torch.randn(1024, 1024, dtype=dtype)
source, target = torch.ones(1 << 25), torch.ones(1 << 25)
print(json.dumps([2 * 1024**3 / shortest(lambda: a @ b), 2 * 4 * (1 << 25) / shortest(lambda: target.copy_(source))]))
"""


def rates(python, args):
    """Operations of a product, and bytes of a copy, per second of a rank's processor time. All ranks run at once."""
    ranks = [subprocess.Popen([python, "-c", RATES, args.precision], env=harness.environment(1), stdout=subprocess.PIPE,
                              text=True) for _ in range(args.ranks)]
    found = [json.loads(rank.communicate()[0]) for rank in ranks]
    return [min(values) for values in zip(*found)]


def floor(flops, bytes_per_second, args):
    """The least seconds of a step, by part."""
    tokens = args.batch * args.sequence
    products = 6 * tokens * PARAMETERS + 6 * tokens * LAYERS * 2 * WIDTH * (args.sequence + 1) / 2
    adamw = (30 if args.precision == "bf16" else 28) * PARAMETERS
    # Each rank sums its part of the arena, reading it from all ranks, and then all ranks read the result.
    exchange = 0 if args.ranks == 1 else 4 * PARAMETERS * (2 + 1 / args.ranks)
    return {"products": products / flops, "adamw": adamw / bytes_per_second, "sum": exchange / bytes_per_second}


def row(name, rounds, args):
    tokens = args.ranks * args.batch * args.sequence
    return [name, f"{tokens / median(rounds, 'median_step_seconds'):.1f}", *sides.speeds(rounds, args),
            f"{median(rounds, 'processor_seconds'):.2f}", f"{median(rounds, 'memory_bytes') / 1e6:.0f}"]


def main():
    parser = harness.parser(__doc__, name="", python="torch and transformers", ranks=2, threads=1, batch=1, steps=8, warmup=3,
                            rounds=3)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="of Lockstep")
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="of PyTorch")
    parser.add_argument("--alike", action="store_true", help="do not run PyTorch with other numbers of ranks")
    parser.add_argument("--overrides", nargs="*", default=[], help="further settings of Lockstep, as key=value")
    args = harness.begin(parser)
    python, torch = harness.torch_python(args.python, "transformers")
    if not python:
        harness.stop(torch)

    flops, bytes_per_second = rates(python, args)
    # Name, variant, ranks, threads.
    arrangements = [(variant, variant, args.ranks, args.threads) for variant in args.variants]
    if args.ranks > 1 and not args.alike:
        arrangements += [(f"{variant}, 1 rank x {args.ranks * args.threads} threads, the same batch", variant, 1,
                          args.ranks * args.threads) for variant in args.variants]
    runs = {"lockstep": lambda: ours(directory, args),
            **{name: lambda one=one: theirs(python, *one, args) for name, *one in arrangements}}
    with harness.scratch() as directory:
        rounds = harness.run_rounds(args.rounds, runs, "s/step", lambda r: f"{r['median_step_seconds']:.2f}")

    alike = [name for name, _, ranks, _ in arrangements if ranks == args.ranks]
    fastest = min(alike, key=lambda name: median(rounds[name], "median_step_seconds"))
    of_all = min((name for name, *_ in arrangements), key=lambda name: median(rounds[name], "median_step_seconds"))
    ratio = lambda name, key: median(rounds[name], key) / median(rounds["lockstep"], key)
    smallest = min(alike, key=lambda name: median(rounds[name], "memory_bytes"))
    parts = floor(flops, bytes_per_second, args)
    tokens = args.ranks * args.batch * args.sequence
    text = (
        f"SmolLM-135M (134.5 million parameters), windows of {args.sequence} tokens, {args.batch} per rank, Lockstep in "
        f"{', '.join([args.precision, *args.overrides])}, AdamW, {args.ranks} rank(s) x {args.threads} thread(s), random tokens. Medians of {args.rounds} "
        f"rounds of {args.steps} steps, the first {args.warmup} not counted; spread: half the distance between the quartiles "
        "of the rounds.\nProcessor time: of the rank that needs most, in a step. Memory: peak of the rank that needs most "
        "(VmHWM).\n\n"
        + harness.table(["", "tokens/s", "s/step", "spread", "shortest, s", "processor time, s", "memory, MB"],
                        [row("Lockstep", rounds["lockstep"], args),
                         *(row(f"PyTorch {torch}, {name}", rounds[name], args) for name, *_ in arrangements)])
        + f"\nLockstep trains **{ratio(fastest, 'median_step_seconds'):.2f} times** as fast as PyTorch's fastest variant "
        f"({fastest}; {sides.speed_text(rounds['lockstep'], rounds[fastest], args)}; by processor time {ratio(fastest, 'processor_seconds'):.2f}), in "
        f"**{1 / ratio(fastest, 'memory_bytes'):.2f} times** its memory and {1 / ratio(smallest, 'memory_bytes'):.2f} times "
        f"that of the smallest variant ({smallest}).\n"
        + (f"It trains {ratio(of_all, 'median_step_seconds'):.2f} times as fast as PyTorch's best arrangement ({of_all}).\n"
           if of_all != fastest else "")
        + f"\nFloor of a step on this machine: products {parts['products']:.2f} s at {flops / 1e9:.0f} GFLOP/s per rank, "
        f"AdamW {parts['adamw']:.2f} s and sums over ranks {parts['sum']:.2f} s at {bytes_per_second / 1e9:.1f} GB/s per "
        f"rank: {sum(parts.values()):.2f} s, {tokens / sum(parts.values()):.0f} tokens/s.\n")
    harness.finish(args, "Language model compared with PyTorch", text, args.name or f"language_{args.precision}", torch=torch,
                   precision=args.precision, ranks=args.ranks, threads=args.threads, sequence=args.sequence,
                   windows_per_rank=args.batch, fastest=fastest, speed_ratio=ratio(fastest, "median_step_seconds"),
                   processor_time_ratio=ratio(fastest, "processor_seconds"),
                   memory_ratio=1 / ratio(fastest, "memory_bytes"), floor_seconds=parts, flops_per_second=flops,
                   bytes_per_second=bytes_per_second, rounds=rounds)


if __name__ == "__main__":
    main()
