"""Compares the training of a small language model with that of PyTorch: the loss of steps, and of the validation text.

    python3 bench/accuracy/language.py --python PYTHON_WITH_TRANSFORMERS --picture docs/pictures/language_loss.svg
    python3 bench/accuracy/language.py --name language_fp8 --variants precision=fp8 --seeds 1 2 3 4 5 \
        --base precision=bf16 train.global_batch=8 train.max_steps=500 schedule.steps=500 evaluation.every_epochs=0

Both train jobs/configs/gpt_small_shakespeare.yaml from scratch at the same time, with initial weights and an order of
samples of their own. Takes some minutes per seed on 2 cores. Speeds are not compared here. With --variants, Lockstep is
compared with itself: does a training with other keys end where the seeds end?
"""
import concurrent.futures
import html
import json
import math
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
SIDES = {"lockstep": "Lockstep", "pytorch": "PyTorch"}
LOG_STEPS = 5
# The picture.
WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 34, 40
# For each run: the colours of its training loss and validation loss.
COLOURS = [("#3b7dbd", "#d9822b"), ("#7f9f7f", "#6a3d9a")]


def ours(seed, args, directory, *more):
    overrides = [*more, f"run.seed={seed}", f"log.every_steps={LOG_STEPS}", *([f"train.epochs={args.epochs}"] if args.epochs else [])]
    return harness.train(args.binary, 1, args.threads, args.config, overrides, directory)[0]


def theirs(script, arguments, args, **variables):
    """The events that a script with PyTorch prints."""
    out = harness.run([args.python, FOLDER / script, *arguments], script, env=harness.environment(args.threads) | variables)
    return [json.loads(line) for line in out.splitlines() if line.startswith('{"event"')]


def losses_of(lines):
    """The losses that the result file and the picture need, and what each step took."""
    return ({event: [[line["step"], round(line["loss"], 6)] for line in lines if line["event"] == event] for event in ("step", "evaluation")}
            | {key: [line[key] for line in lines if line["event"] == "step" and key in line] for key in ("step_seconds", "memory_bytes")})


def side_by_side(ours, theirs):
    """Runs both sides at the same time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [losses_of(run.result()) for run in (pool.submit(ours), pool.submit(theirs))]


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


def tick_distance(span):
    """A round distance that divides `span` into four to ten parts."""
    power = 10 ** math.floor(math.log10(span))
    return next(factor * power for factor in (0.1, 0.2, 0.5, 1) if span / (factor * power) <= 10)


def curves(runs, title):
    """`runs`: at most two, each with its name and {"step": [(step, loss)], "evaluation": [(step, loss)]}. The name of a single
    run is not shown."""
    points = [point for _, losses in runs for event in ("step", "evaluation") for point in losses[event]]
    last_step, greatest = max(step for step, _ in points), max(loss for _, loss in points)
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / last_step
    y = lambda loss: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * loss / (1.05 * greatest)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
           f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{html.escape(title)}</text>']
    distance = tick_distance(1.05 * greatest)
    for i in range(int(1.05 * greatest / distance) + 1):
        at = y(i * distance)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e0e0e0"/>'
                   f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{i * distance:g}</text>')
    distance = tick_distance(last_step)
    for i in range(int(last_step / distance) + 1):
        out.append(f'<text x="{x(i * distance):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                   f'{i * distance:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text x="14" y="{middle:g}" text-anchor="middle" transform="rotate(-90 14 {middle:g})">loss</text>')
    legend = []
    for (name, losses), (training, validation) in zip(runs, COLOURS):
        of_run = f"{name}: " if len(runs) > 1 else ""
        line = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in losses["step"])
        out.append(f'<polyline points="{line}" fill="none" stroke="{training}" stroke-width="2"/>')
        legend.append((training, of_run + "training loss of a step"))
        for step, loss in losses["evaluation"]:
            out.append(f'<circle cx="{x(step):.1f}" cy="{y(loss):.1f}" r="4" fill="{validation}"/>')
        if losses["evaluation"]:
            legend.append((validation, of_run + "validation loss"))
    left = WIDTH - (190 if len(runs) == 1 else 240)
    for row, (colour, text) in enumerate(legend):
        at = 16 + 16 * row
        out.append(f'<rect x="{left}" y="{at - 9}" width="12" height="10" fill="{colour}"/>'
                   f'<text x="{left + 18}" y="{at}">{html.escape(text)}</text>')
    return "\n".join(out) + "\n</svg>\n"


def draw(args, runs, titles, title):
    if args.picture:
        series = [(titles[side], runs[side][str(args.seeds[0])]) for side in titles]
        pathlib.Path(args.picture).write_text(curves(series, title))


def variants(args):
    """Trains with all seeds, and each variant with the first one, two at a time."""
    base = " ".join(args.base)
    plans = [(base, seed, args.base) for seed in args.seeds] + [(keys, args.seeds[0], [*args.base, *keys.split()]) for keys in args.variants]
    with harness.scratch() as directory, concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda plan: losses_of(ours(plan[1], args, directory, *plan[2])), plans))
    ends = [[statistics.mean(loss for _, loss in run["step"][-10:]), run["evaluation"][-1][1]] for run in runs]
    spreads = [(min(column), max(column)) for column in zip(*ends[:len(args.seeds)])]
    rows = [["" if keys == base else keys, seed, *(f"{end:.3f}" for end in found)] for (keys, seed, _), found in zip(plans, ends)]
    verdicts = [f"{keys}: {'within' if all(low <= end <= high for end, (low, high) in zip(found, spreads)) else 'outside'} the spread of the seeds"
                for (keys, _, _), found in zip(plans[len(args.seeds):], ends[len(args.seeds):])]
    text = (f"{args.config.name} with {base}: {runs[0]['evaluation'][-1][0]} steps, 1 rank, {args.threads} thread(s). The\ntraining loss "
            f"is the mean of every {LOG_STEPS}th of the last {10 * LOG_STEPS} steps.\n\n"
            + harness.table(["", "seed", "training loss at the end", "validation loss"], rows) + "\n" + ".\n".join(verdicts) + ".\n")
    harness.finish(args, "A small language model with several settings", text,
                   runs=[{"keys": keys, "seed": seed, **run} for (keys, seed, _), run in zip(plans, runs)])


def main():
    parser = harness.parser(__doc__, name="language", python="torch, transformers, h5py and yaml", threads=1)
    parser.add_argument("--config", type=pathlib.Path, default=harness.ROOT / "jobs/configs/gpt_small_shakespeare.yaml")
    parser.add_argument("--base", nargs="*", default=[], metavar="KEY=VALUE", help="with --variants: keys of all trainings")
    parser.add_argument("--variants", nargs="+", metavar="'KEY=VALUE...'", help="keys that are compared, instead of PyTorch")
    args = begin(parser, lambda args: "json" if args.variants else "torch, transformers, h5py, yaml")
    if args.variants:
        return variants(args)
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
