"""Compares the settings of train.shard, and Lockstep with PyTorch's FSDP2, in training a language model on CPUs: the sizes of
SmolLM-135M, AdamW, random tokens. Measures the time and the peak memory of a step, and compares that with `lockstep plan`.

A round runs Lockstep with each setting, and then PyTorch (peer.py, gloo) without shards, which is DistributedDataParallel, and
with fully_shard on each layer: with reshard_after_forward=False, which shards gradients and the optimizer (zero2), and with
True (zero3). PyTorch runs the variant of language.py that is given: fp32, or the mixed precision of FSDP2 in bf16. In fp32, it
also runs DeepSpeed's stages 2 and 3, if the interpreter has it (DS_BUILD_OPS=0 pip install deepspeed).
"""
import json
import subprocess
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import sides  # noqa: E402
from harness import median  # noqa: E402

CONFIG = "bench/peers/language.yaml"
OURS = ["none", "optimizer", "gradients", "parameters"]
THEIRS = {"none": "DDP", "zero2": "FSDP2, zero2", "zero3": "FSDP2, zero3"}
DEEPSPEED = {"deepspeed2": "stage 2", "deepspeed3": "stage 3"}


def overrides(shard, args):
    return [f"data.sequence_length={args.sequence}", f"train.batch_per_rank={args.batch}",
            f"train.max_steps={args.steps}", f"precision={args.precision}", f"train.shard={shard}", *args.overrides]


def ours(directory, shard, args):
    steps, _ = harness.train_steps(args, overrides(shard, args), directory, config=CONFIG)
    return sides.figures(steps, args)


def theirs(python, shard, args):
    return sides.run_ranks(python, "language", ["--variant", "fp32" if args.precision == "fp32" else "autocast", "--shard", shard,
                                                "--sequence", args.sequence, "--batch", args.batch], args, args.ranks,
                           args.threads)


def deepspeed_version(python):
    """None: it is not installed."""
    found = subprocess.run([python, "-c", "import importlib.metadata as m; print(m.version('deepspeed'))"], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def planned(shard, args):
    """What `lockstep plan` predicts that a rank needs, in bytes."""
    text = harness.run([args.binary, "plan", CONFIG, *overrides(shard, args), "--ranks", str(args.ranks), "--json"],
                       "lockstep plan", env=harness.environment(args.threads))
    return json.loads(text)["memory_bytes"]["total"]


def main():
    parser = harness.parser(__doc__, name="", python="torch and transformers", ranks=2, threads=1, batch=4, steps=8, warmup=3,
                            rounds=3)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--overrides", nargs="*", default=[], help="further settings of Lockstep, as key=value")
    args = harness.begin(parser)
    python, torch = harness.torch_python(args.python, "transformers")
    if not python:
        harness.stop(torch)
    runs = {**{f"Lockstep, {shard}": lambda shard=shard: ours(directory, shard, args) for shard in OURS},
            **{f"PyTorch {torch}, {name}": lambda shard=shard: theirs(python, shard, args) for shard, name in THEIRS.items()}}
    if args.precision == "fp32" and (version := deepspeed_version(python)):
        runs.update({f"DeepSpeed {version}, {name}": lambda shard=shard: theirs(python, shard, args) for shard, name in DEEPSPEED.items()})
    with harness.scratch() as directory:
        rounds = harness.run_rounds(args.rounds, runs, "s/step", lambda r: f"{r['median_step_seconds']:.2f}")
    plans = {f"Lockstep, {shard}": planned(shard, args) for shard in OURS}
    # The program, its libraries and MPI are not part of a plan: the setting without shards tells how much they take.
    rest = median(rounds["Lockstep, none"], "memory_bytes") - plans["Lockstep, none"]
    names = list(runs)
    tokens = args.ranks * args.batch * args.sequence

    def row(name):
        whole = names[0] if name in plans else names[len(OURS)]
        cost = median(rounds[name], "median_step_seconds") / median(rounds[whole], "median_step_seconds") - 1
        memory = median(rounds[name], "memory_bytes")
        plan = plans.get(name)
        return [name, f"{tokens / median(rounds[name], 'median_step_seconds'):.1f}", *sides.speeds(rounds[name], args),
                f"{100 * cost:+.0f} %", f"{memory / 1e6:.0f}", f"{(plan + rest) / 1e6:.0f}" if plan else "",
                f"{100 * ((plan + rest) / memory - 1):+.1f} %" if plan else ""]

    text = (
        f"SmolLM-135M (134.5 million parameters), windows of {args.sequence} tokens, {args.batch} per rank, {args.precision}, AdamW, "
        f"{args.ranks} ranks x {args.threads} thread(s) in shared memory, random tokens. Medians of {args.rounds} rounds of "
        f"{args.steps} steps, the first {args.warmup} not counted; spread: half the distance between the quartiles of the rounds. "
        "Cost: in time, compared with the same side without shards. Memory: peak of the rank that needs most (VmHWM). Planned: by "
        f"`lockstep plan`, and {rest / 1e6:.0f} MB that the first row needs besides.\n\n"
        + harness.table(["", "tokens/s", "s/step", "spread", "shortest, s", "cost", "memory, MB", "planned, MB", "error"],
                        [row(name) for name in names]))
    figures = {name: {"seconds": median(rounds[name], "median_step_seconds"), "memory_bytes": median(rounds[name], "memory_bytes"),
                      "planned_bytes": plans.get(name)} for name in names}
    harness.finish(args, "Shards compared with FSDP2", text, args.name or f"sharding_{args.precision}", torch=torch,
                   precision=args.precision, ranks=args.ranks, threads=args.threads, figures=figures, rounds=rounds)


if __name__ == "__main__":
    main()
