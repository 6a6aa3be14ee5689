"""Compares the training of a small language model with that of PyTorch: the loss of steps, and of the validation text.

    python3 bench/accuracy/language.py --python PYTHON_WITH_TRANSFORMERS --picture docs/pictures/language_loss.svg

Both train jobs/configs/gpt_small_shakespeare.yaml from scratch at the same time, with initial weights and an order of
samples of their own. Takes some minutes per seed on 2 cores. Speeds are not compared here.
"""
import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "macro"))
import harness  # noqa: E402
import loss_picture  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
SIDES = {"lockstep": "Lockstep", "pytorch": "PyTorch"}
LOG_STEPS = 5


def ours(binary, seed, args, directory):
    overrides = [f"run.seed={seed}", f"log.every_steps={LOG_STEPS}", *([f"train.epochs={args.epochs}"] if args.epochs else [])]
    return harness.train(binary, 1, args.threads, args.config, overrides, directory)[0]


def theirs(python, seed, args):
    command = [python, FOLDER / "language_peer.py", args.config, "--seed", seed, "--threads", args.threads, "--log-steps",
               LOG_STEPS, *(["--epochs", args.epochs] if args.epochs else [])]
    out = harness.run(command, "PyTorch", env=harness.environment(args.threads))
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def losses_of(lines):
    """The losses that the result file and the picture need."""
    return {event: [[line["step"], round(line["loss"], 5)] for line in lines if line["event"] == event]
            for event in ("step", "evaluation")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, default=harness.ROOT / "jobs/configs/gpt_small_shakespeare.yaml")
    parser.add_argument("--build", default="build", help="folder with the program lockstep")
    parser.add_argument("--python", default="python3", help="interpreter with torch, transformers, h5py and yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--epochs", type=int, help="default: that of the configuration")
    parser.add_argument("--threads", type=int, default=1, help="of each side")
    parser.add_argument("--picture", help="SVG file to draw the curves of the first seed to")
    parser.add_argument("--name", default="language", help="name of the result files")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the result files")
    args = parser.parse_args()
    binary = harness.lockstep(args.build)
    needed = "import torch, transformers, h5py, yaml"
    if subprocess.run([args.python, "-c", needed], capture_output=True).returncode:
        harness.stop(f"{args.python} lacks one of torch, transformers, h5py and yaml; install them, or use --python")
    machine = harness.machine()
    runs = {side: {} for side in SIDES}
    with harness.scratch() as directory, concurrent.futures.ThreadPoolExecutor(2) as pool:
        for seed in args.seeds:
            started = {"lockstep": pool.submit(ours, binary, seed, args, directory),
                       "pytorch": pool.submit(theirs, args.python, seed, args)}
            for side, run in started.items():
                runs[side][str(seed)] = losses_of(run.result())
    ends = [step for step, _ in runs["lockstep"][str(args.seeds[0])]["evaluation"]]
    rows = []
    for side, title in SIDES.items():
        for seed, run in runs[side].items():
            rows.append([title, seed, *(f"{loss:.3f}" for _, loss in run["evaluation"])])
    last = {side: statistics.mean(run["evaluation"][-1][1] for run in runs[side].values()) for side in SIDES}
    text = (f"{args.config.name}, 1 rank, {args.threads} thread(s), fp32. Validation loss after each epoch.\n\n"
            + harness.table(["", "seed", *(f"epoch {i + 1}, step {step}" for i, step in enumerate(ends))], rows)
            + f"\nMeans after the last epoch: {last['lockstep']:.3f} and {last['pytorch']:.3f}.\n")
    harness.write_results(args.name, "A small language model compared with PyTorch", text,
                          {"machine": machine, "version": harness.version(binary), "runs": runs}, args.results)
    if args.picture:
        first = str(args.seeds[0])
        series = [(title, runs[side][first]) for side, title in SIDES.items()]
        pathlib.Path(args.picture).write_text(loss_picture.draw(series, "A language model of 1.8 million parameters on Shakespeare"))


if __name__ == "__main__":
    main()
