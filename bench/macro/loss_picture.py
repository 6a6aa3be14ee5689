"""Draws the loss of a run from its RUN/metrics.jsonl as an SVG: training steps as a line, evaluations as points.

    python3 bench/macro/loss_picture.py runs/NAME/metrics.jsonl                  # writes runs/NAME/loss.svg
    python3 bench/macro/loss_picture.py runs/NAME/metrics.jsonl --title "ResNet-18 on CIFAR-10" --output docs/pictures/loss.svg
"""
import html
import json
import math
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 34, 40
# For each run: the colours of its training loss and validation loss.
COLOURS = [("#3b7dbd", "#d9822b"), ("#7f9f7f", "#6a3d9a")]


def read_losses(lines):
    """{"step": [(step, loss)], "evaluation": [(step, loss)]} of the finite losses."""
    losses = {"step": [], "evaluation": []}
    for line in lines:
        event = json.loads(line)
        if event["event"] in losses and math.isfinite(event["loss"]):
            losses[event["event"]].append((event["step"], event["loss"]))
    if not losses["step"]:
        sys.exit("the file has no event \"step\" with a finite loss")
    return losses


def tick_distance(span):
    """A round distance that divides `span` into four to ten parts."""
    power = 10 ** math.floor(math.log10(span))
    return next(factor * power for factor in (0.1, 0.2, 0.5, 1) if span / (factor * power) <= 10)


def draw(runs, title):
    """`runs`: at most two, each with its name and what read_losses() returns. The name of a single run is not shown."""
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


def main():
    parser = harness.picture_parser(__doc__, "RUN/metrics.jsonl")
    parser.add_argument("--title", default="", help="text above the curve")
    args = parser.parse_args()
    with args.source.open() as file:
        losses = read_losses(file)
    harness.write_picture(draw([("", losses)], args.title), args, "loss.svg")


if __name__ == "__main__":
    main()
