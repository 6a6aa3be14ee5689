"""Draws some steps of a RUN/trace.json as an SVG: a row for each rank's thread, spans in the colour of their kind.

    python3 bench/macro/trace_picture.py runs/NAME/trace.json --steps 5 6        # writes runs/NAME/trace.svg
    python3 bench/macro/trace_picture.py runs/NAME/trace.json --steps 5 6 --output docs/pictures/trace.svg
"""
import collections
import html
import json
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

COLOURS = {"forward": "#7fb3d5", "backward": "#f0b27a", "update": "#82c99d", "wait": "#e26d6d", "all-reduce": "#b39ddb",
           "read": "#9e9e9e", "evaluation": "#cddc9a", "checkpoint": "#8d6e63"}
WIDTH, LEFT, ROW, GAP = 1200, 150, 18, 6
LEAST_WIDTH = 0.4  # pixels; narrower spans are not drawn


def spans_of(trace, first, last):
    """{(rank, thread): [(depth, span)]} of the steps, and the interval that the steps cover."""
    names, rows, steps = {}, collections.defaultdict(list), []
    for event in trace["traceEvents"]:
        if event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
            if event["cat"] == "step" and first <= int(event["name"].split()[1]) <= last:
                steps.append(event)
    if not steps:
        sys.exit(f"steps {first} to {last} are not in the trace")
    begin, end = min(s["ts"] for s in steps), max(s["ts"] + s["dur"] for s in steps)
    drawn = {}
    for key, spans in rows.items():
        open_until, found = [], []
        for span in spans:
            while open_until and open_until[-1] <= span["ts"] + 1e-6:
                open_until.pop()
            if span["cat"] != "step" and span["ts"] < end and span["ts"] + span["dur"] > begin:
                found.append((len(open_until), span))
            if span["cat"] != "step":
                open_until.append(span["ts"] + span["dur"])
        if found:
            drawn[(*key, names[key])] = found
    return drawn, begin, end


def draw(drawn, begin, end):
    scale = (WIDTH - LEFT) / (end - begin)
    out, y, kinds = [], GAP, set()
    for (rank, _, name), spans in sorted(drawn.items()):
        out.append(f'<text x="4" y="{y + 13}">rank {rank}, {html.escape(name)}</text>')
        for depth, span in spans:
            left = max(0.0, span["ts"] - begin) * scale
            width = min(end - begin, span["ts"] + span["dur"] - begin) * scale - left
            if width < LEAST_WIDTH:
                continue
            kinds.add(span["cat"])
            title = f'{span["name"]} ({span["cat"]}), {span["dur"] / 1e3:.2f} ms'
            out.append(f'<rect x="{LEFT + left:.1f}" y="{y + depth * ROW}" width="{width:.1f}" height="{ROW - 1}" '
                       f'fill="{COLOURS[span["cat"]]}" stroke="white" stroke-width="0.6">'
                       f'<title>{html.escape(title)}</title></rect>')
            if width > 7 * len(span["name"]):
                out.append(f'<text x="{LEFT + left + 2:.1f}" y="{y + depth * ROW + 13}">{html.escape(span["name"])}</text>')
        y += (max(depth for depth, _ in spans) + 1) * ROW + GAP
    out.append(f'<text x="{LEFT}" y="{y + 13}">{(end - begin) / 1e3:.1f} ms</text>')
    x = LEFT + 80
    for kind, colour in COLOURS.items():
        if kind not in kinds:
            continue
        out.append(f'<rect x="{x}" y="{y}" width="12" height="{ROW - 1}" fill="{colour}"/>'
                   f'<text x="{x + 16}" y="{y + 13}">{kind}</text>')
        x += 110
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + ROW + GAP}" font-family="sans-serif" '
            f'font-size="11"><rect width="100%" height="100%" fill="white"/>\n' + "\n".join(out) + "\n</svg>\n")


def main():
    parser = harness.picture_parser(__doc__, "RUN/trace.json")
    parser.add_argument("--steps", type=int, nargs=2, required=True, metavar=("FIRST", "LAST"))
    args = parser.parse_args()
    drawn = spans_of(json.loads(args.source.read_text()), *args.steps)
    harness.write_picture(draw(*drawn), args, "trace.svg")


if __name__ == "__main__":
    main()
