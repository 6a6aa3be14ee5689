"""Compares the training of a small language model with that of PyTorch: the loss of steps, and of the validation text.

    python3 bench/accuracy/language.py --python PYTHON_WITH_TRANSFORMERS --picture docs/pictures/language_loss.svg

Both train jobs/configs/gpt_small_shakespeare.yaml from scratch at the same time, with initial weights and an order of
samples of their own. Takes some minutes per seed on 2 cores. Speeds are not compared here.
"""
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
from macro import loss_picture  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
SIDES = {"lockstep": "Lockstep", "pytorch": "PyTorch"}
LOG_STEPS = 5


def ours(seed, args, directory):
    overrides = [f"run.seed={seed}", f"log.every_steps={LOG_STEPS}", *([f"train.epochs={args.epochs}"] if args.epochs else [])]
    return harness.train(args.binary, 1, args.threads, args.config, overrides, directory)[0]


def theirs(script, arguments, args):
    """The events that a script with PyTorch prints."""
    out = harness.run([args.python, FOLDER / script, *arguments], script, env=harness.environment(args.threads))
    return [json.loads(line) for line in out.splitlines() if line.startswith('{"event"')]


def side_by_side(ours, theirs):
    """Runs both sides at the same time. Returns the losses that the result file and the picture need."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = [run.result() for run in (pool.submit(ours), pool.submit(theirs))]
    return [{event: [[line["step"], round(line["loss"], 5)] for line in lines if line["event"] == event]
             for event in ("step", "evaluation")} for lines in found]


def begin(parser, modules):
    """Adds the arguments of both comparisons, reads all, and makes sure that the interpreter has the modules."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--epochs", type=int, help="default: that of the training")
    parser.add_argument("--picture", help="SVG file to draw the curves of the first seed to")
    args = harness.begin(parser)
    needed = f"import {modules(args)}"
    if subprocess.run([args.python, "-c", needed], capture_output=True).returncode:
        harness.stop(f"{args.python} lacks one of the modules of `{needed}`; install them, or use --python")
    return args


def draw(args, runs, titles, title):
    if args.picture:
        series = [(titles[side], runs[side][str(args.seeds[0])]) for side in titles]
        pathlib.Path(args.picture).write_text(loss_picture.draw(series, title))


def main():
    parser = harness.parser(__doc__, name="language", python="torch, transformers, h5py and yaml", threads=1)
    parser.add_argument("--config", type=pathlib.Path, default=harness.ROOT / "jobs/configs/gpt_small_shakespeare.yaml")
    args = begin(parser, lambda _: "torch, transformers, h5py, yaml")
    runs = {side: {} for side in SIDES}
    with harness.scratch() as directory:
        for seed in args.seeds:
            options = [args.config, "--seed", seed, "--threads", args.threads, "--log-steps", LOG_STEPS,
                       *(["--epochs", args.epochs] if args.epochs else [])]
            found = side_by_side(lambda: ours(seed, args, directory), lambda: theirs("language_peer.py", options, args))
            for side, losses in zip(SIDES, found):
                runs[side][str(seed)] = losses
    ends = [step for step, _ in runs["lockstep"][str(args.seeds[0])]["evaluation"]]
    rows = []
    for side, title in SIDES.items():
        for seed, run in runs[side].items():
            rows.append([title, seed, *(f"{loss:.3f}" for _, loss in run["evaluation"])])
    last = {side: statistics.mean(run["evaluation"][-1][1] for run in runs[side].values()) for side in SIDES}
    text = (f"{args.config.name}, 1 rank, {args.threads} thread(s), fp32. Validation loss after each epoch.\n\n"
            + harness.table(["", "seed", *(f"epoch {i + 1}, step {step}" for i, step in enumerate(ends))], rows)
            + f"\nMeans after the last epoch: {last['lockstep']:.3f} and {last['pytorch']:.3f}.\n")
    harness.finish(args, "A small language model compared with PyTorch", text, runs=runs)
    draw(args, runs, SIDES, "A language model of 1.8 million parameters on Shakespeare")


if __name__ == "__main__":
    main()
