#!/usr/bin/env bash
# timeout: 300
# lockstep report RUN: the page of a finished run, of one in progress, and of one whose files are damaged; names that
# contain markup; the figures as files. report_browser_test.sh tests the layout.
source test/support/check.sh

export LOCKSTEP_CACHE=none
run=$work/a
mpirun --oversubscribe -n 2 "$lockstep" train jobs/configs/quickstart.yaml model.width=16 data.train=synthetic \
  data.validation=synthetic data.image_size=8 data.synthetic_samples=48 train.global_batch=12 train.epochs=4 \
  cpu.threads=1 log.every_steps=1 log.progress=false run.directory="$work" run.name=a trace=true >"$work/train" 2>&1
report() { "$lockstep" report "$@" >"$work/text" 2>"$work/errors" || { cat "$work/errors"; return 1; }; }
has() { grep -qE -- "$1" "$page" || { echo "$page has no $1"; return 1; }; }
has_not() { ! grep -qE -- "$1" "$page"; }

page=$run/report.html
check "writes the page of a run" report "$run/"
check "  and says where" grep -qE "^$run/report.html: [0-9]+ figures, [0-9]+ kB$" "$work/text"
for figure in loss accuracy learning-rate gradient-norm throughput time time-per-rank memory-per-rank timeline; do
  check "  with the figure $figure" has "<figure id=\"$figure\""
done
check "  with the status" has '<dt>status</dt><dd>done</dd>'
check "  with all steps" has '<dt>steps</dt><dd>16</dd>'
check "  with the hosts" has "<td>$(hostname)"
check "  with the configuration" has '<th scope="row">train.global_batch</th><td>12</td>'
check "  without requests to other files" has_not '(src|href)=|url\(|@import|<script|<link'

# The page as XML: each chart has its points, and each point its coordinates.
cat >"$work/parse.py" <<'PYTHON'
import re, sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
html, svg = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
names = [figure.get("id") for figure in root.iter(html + "figure")]
assert len(names) == len(set(names)) and names, names
for figure in root.iter(html + "figure"):
    pictures = list(figure.iter(svg + "svg"))
    assert len(pictures) == 2, figure.get("id")
    for picture in pictures:
        x, y, width, height = map(float, picture.get("viewBox").split())
        shapes = [e for e in picture.iter() if e.tag.split("}")[1] in ("polyline", "rect", "circle", "polygon")]
        assert shapes, figure.get("id")
        for line in picture.iter(svg + "polyline"):
            for point in line.get("points").split():
                px, py = map(float, point.split(","))
                assert 0 <= px <= width and 0 <= py <= height, (figure.get("id"), point)
ids = [e.get("id") for e in root.iter() if e.get("id")]
assert len(ids) == len(set(ids))
losses = next(f for f in root.iter(html + "figure") if f.get("id") == "loss")
points = next(losses.iter(svg + "polyline")).get("points").split()
assert len(points) == int(sys.argv[2]), len(points)
PYTHON
check "  as well-formed XML, with all steps in the curve" python3 "$work/parse.py" "$page" 16

# The figures in machine-readable form.
cat >"$work/figures.py" <<'PYTHON'
import json, statistics, sys
figures = json.load(open(sys.argv[1]))
events = [json.loads(line) for line in open(sys.argv[2] + "/metrics.jsonl")]
steps = [event for event in events if event["event"] == "step"]
for key in ("step", "time_unix", "loss", "accuracy", "learning_rate", "step_seconds", "samples_per_second", "memory_bytes"):
    assert figures["step"][key] == [event[key] for event in steps], key
evaluations = [event for event in events if event["event"] == "evaluation"]
assert figures["evaluation"]["loss"] == [event["loss"] for event in evaluations]
assert figures["best"]["loss"] == min(event["loss"] for event in evaluations), figures["best"]
assert figures["best"]["accuracy"] == max(event["accuracy"] for event in evaluations), figures["best"]
assert len(figures["epoch"]["loss"]) == 4 and figures["status"] == "done" and figures["starts"] == 1
seconds = [event["step_seconds"] for event in steps]
assert figures["medians"]["step_seconds"] == statistics.median(seconds), figures["medians"]
assert len(figures["per_rank"]) == 2
for rank, of_rank in enumerate(figures["per_rank"]):
    waits = [event["per_rank"]["data_wait_seconds"][rank] for event in steps]
    assert abs(of_rank["data_wait_seconds"] - sum(waits) / len(waits)) < 1e-12, of_rank
    assert of_rank["memory_bytes"] == max(event["per_rank"]["memory_bytes"][rank] for event in steps)
assert figures["run"] == sys.argv[2] and figures["page"].endswith(".html")
PYTHON
check "--json prints the figures" report "$run" --json
check "  as one object" python3 "$work/figures.py" "$work/text" "$run"
check "  and the rest on standard error" grep -qE "^$run/report.html: [0-9]+ figures" "$work/errors"
check "--json=FILE writes them" report "$run" --json="$work/figures.json"
check "  to the file" python3 "$work/figures.py" "$work/figures.json" "$run"
check "  and the rest on standard output" grep -qE "^$run/report.html: [0-9]+ figures" "$work/text"
check "--json does not replace an input" refused 2 'metrics.jsonl' "$lockstep" report "$run" --json="$run/metrics.jsonl"

# Figures as files. Without the converter, the command reports that.
png_signature() { [[ $(head -c 4 "$1" | tail -c 3) == PNG ]]; }
check "writes the figures" report "$run" --html "$work/other.html" --figures "$work/some figures"
check "  the page under another name" test -s "$work/other.html"
check "  as SVG" python3 -c "import sys, xml.etree.ElementTree as t; t.parse(sys.argv[1])" "$work/some figures/loss.svg"
if command -v rsvg-convert >/dev/null; then
  check "  as PNG" png_signature "$work/some figures/timeline.png"
  check "  and lists them" grep -qxF "$work/some figures/loss.png" "$work/text"
else
  check "  and says that there are no PNG files" grep -q 'rsvg-convert is not installed' "$work/text"
fi
mkdir "$work/bin"
check "without rsvg-convert" env PATH="$work/bin" "$lockstep" report "$run" --figures "$work/figures"
check "  there are SVG files only" bash -c '[[ $(ls "$0" | sed "s/.*[.]//" | sort -u) == svg ]]' "$work/figures"

# A run in progress, which has no trace and no metrics.json, and whose last line is incomplete.
cp -r "$run" "$work/b"
page=$work/b/report.html
echo running >"$work/b/status"
rm "$work/b/metrics.json" "$work/b/trace.json"
grep '"event":"step"' "$run/metrics.jsonl" | head -n 5 >"$work/b/metrics.jsonl"
printf '{"event":"step","step":6,"lo' >>"$work/b/metrics.jsonl"
check "a run in progress" report "$work/b"
check "  is running" has '<dd>running</dd>'
check "  has a third of its steps" has '<dt>steps</dt><dd>5 of 16</dd>'
check "  explains how to get a timeline" has 'With trace=true, a run writes it'
check "  is well-formed" python3 "$work/parse.py" "$page" 5

sed -i 's/"time_unix":[0-9.]*,/"time_unix":1700000000.5,/' "$work/b/metrics.jsonl"
check "a run that was killed long ago" report "$work/b"
check "  may not be running" has '<dd>running, but no event for [0-9,]+ h</dd>'

# Resumed on one rank: the bars are those of the current ranks.
sed -e 's/"loss":\[\([^],]*\),[^]]*\]/"loss":[\1]/' -e 's/"ranks":2,/"ranks":1,/' -e 's/"step":\([0-9]*\),/"step":10\1,/' "$work/b/metrics.jsonl" |
  grep '}$' >"$work/resumed"
sed -i '$d' "$work/b/metrics.jsonl"
cat "$work/resumed" >>"$work/b/metrics.jsonl"
grep ' | Lockstep ' "$run/log.txt" >>"$work/b/log.txt"
check "a resumed run" report "$work/b"
check "  says how often it was started" has '<dt>starts</dt><dd>2</dd>'
check "  and on how many ranks" has '<dt>ranks</dt><dd>2, then 1 from step 101 on</dd>'
check "  shows the ranks of the last start" has_not '<title>1, computing'

# Names, hosts and log lines are shown as text, whatever they contain.
page=$work/b/report.html
evil='</title><script>alert(1)</script><img src=x onerror=alert(2)>&"'"'"
sed -i "s|^  name: a  # .*$|  name: \"</h1><script>alert(1)</script>\"|" "$work/b/config.yaml"
printf '2026-01-01 00:00:00 | %s \033[31m \xff\n' "$evil" >>"$work/b/log.txt"
check "a name with markup" report "$work/b"
check "  is text" has '<h1>&lt;/h1&gt;&lt;script&gt;alert\(1\)&lt;/script&gt;</h1>'
check "  also in the log" has '&lt;/title&gt;&lt;script&gt;alert\(1\)&lt;/script&gt;&lt;img src=x'
check "  and makes no element" has_not '<script|<img'
check "  is well-formed" python3 "$work/parse.py" "$page" 10

# A language model reports perplexity and tokens.
sed -e 's/"accuracy":[^,]*,/"perplexity":12.5,/' -e 's/samples_per_second/tokens_per_second/g' "$run/metrics.jsonl" \
  >"$work/b/metrics.jsonl"
check "a language model" report "$work/b"
check "  has the perplexity" has '<figure id="perplexity"'
check "  has its speed in tokens" has 'tokens/s'
check "  has no accuracy" has_not 'id="accuracy"'

# Damaged files.
{ printf 'null\n{"event":3}\n\0\0\n'; cat "$run/metrics.jsonl"; } >"$work/b/metrics.jsonl"
echo '{"status":' >"$work/b/metrics.json"
head -c 1000 "$run/trace.json" >"$work/b/trace.json"
check "damaged lines are left out" report "$work/b"
check "  and reported" grep -qE 'metrics.jsonl: 3 of [0-9]+ lines are damaged and left out' "$work/errors"
check "  also on the page" has '3 of [0-9]+ lines are damaged'
check "  a damaged metrics.json" has 'metrics.json is damaged: the versions of libraries are missing'
check "  a damaged trace" has 'trace.json is damaged; train some steps with trace=true'
remedy='write the report when the run has logged a step'
: >"$work/b/metrics.jsonl"
is_refused() { refused 2 "$1" "$lockstep" report "${@:2}"; }
check "an empty metrics.jsonl" is_refused "metrics.jsonl has no complete line: $remedy" "$work/b"
echo nothing >"$work/b/metrics.jsonl"
check "no event in it" is_refused "none of the 1 lines of .* is an event .*: $remedy" "$work/b"
rm "$work/b/metrics.jsonl"
check "no metrics.jsonl" is_refused "metrics.jsonl does not exist or cannot be read: $remedy" "$work/b"
check "no run" is_refused 'there is no run .*/c: expected a run directory' "$work/c"
check "a folder that is no run" is_refused 'is not a run directory' "$work"
check "no argument" is_refused 'RUN is missing'
check "  and the remedy is the help of the command" is_refused 'remedy: see `lockstep report --help`'
check "a run and another command" is_refused '.lockstep report memory. does not take the options of .lockstep report RUN.' --html "$work/x" memory "$page"
check "does not replace a file of the run" is_refused 'metrics.jsonl' "$run" --html "$run/metrics.jsonl"
check "a page that cannot be written" \
  refused 1 'cannot write .*nowhere/x.html' "$lockstep" report "$run" --html "$work/nowhere/x.html"

finish
