#!/usr/bin/env bash
# timeout: 120
# cores: 2
# lockstep scaling report with finished runs instead of a study: its tables, repeats of a configuration, runs that cannot
# be compared, and what is refused. Also studies of whole epochs.
source test/support/check.sh

export LOCKSTEP_CACHE=none TMPDIR=$work
export LOCKSTEP_MPIRUN="${MPIRUN:-mpirun} --oversubscribe --bind-to none"
tiny=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8
  data.synthetic_samples=48 cpu.threads=1 train.epochs=2 checkpoint.every_epochs=0)
train() { # NAME RANKS KEY=VALUE...
  $LOCKSTEP_MPIRUN -n "$2" "$lockstep" train "${tiny[@]}" log.progress=false log.usage_seconds=0.2 run.directory="$work" run.name="$1" \
    "${@:3}" >"$work/train" 2>&1 || cat "$work/train"
}
report() { "$lockstep" scaling report "$@" >"$work/text" 2>"$work/errors"; }
shows() { grep -Eq -- "$1" "$work/text" || { cat "$work/text" "$work/errors"; return 1; }; }

train one 1 train.batch_per_rank=6
train again 1 train.batch_per_rank=6 run.seed=2
train two 2 train.batch_per_rank=6 optimizer.learning_rate=0.04
train other 2 train.batch_per_rank=6 model.width=32
train strong 2 train.global_batch=6
runs=("$work/one" "$work/again" "$work/two")

check "the report of finished runs" report "${runs[@]}"
check "  names the batch that they share" shows '^weak scaling, a batch per rank of 6 samples; 3 finished runs$'
check "  the baseline, in seconds, over its repeats" shows '^Baseline \(Single rank\): [0-9]+\.[0-9]{2} seconds, the mean of 2 cases$'
check "  the configurations" shows '^Multi-rank \(2 ranks, 1 node\)  1 of 1  +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$'
check "  one row of figures per configuration" shows '^configuration +training loss  training accuracy, %  validation loss  validation accuracy, %  samples/s  rank 0 peak, MiB  rank 0 average, MiB  rank 0 mode, MiB  throughput scaling  memory average scaling$'
check "  settings that differ, which do not prevent a comparison" shows "^$work/two has other settings than the baseline: optimizer.learning_rate is 0.04, not 0.02\.$"
check "as JSON" report "${runs[@]}" --format json
"$lockstep" report memory "$work"/two/usage/process_log_*.csv --json="$work/memory.json" >"$work/memory"
check "  with the figures of the last epoch, the time, and the memory of \`report memory\`" python3 - "$work" <<'PYTHON'
import json, sys
work = sys.argv[1]
report = json.load(open(work + "/text"))
def last(run, event): return [e for e in map(json.loads, open(f"{work}/{run}/metrics.jsonl")) if e["event"] == event][-1]
def near(a, b): assert abs(a - b) <= 1e-9 * abs(b), (a, b)
one, two = (size["figures"] for size in report["sizes"])
assert [s["averaged"] for s in report["sizes"]] == [2, 1] and report["scaling"] == "weak" and report["batch"] == 6, report
for key in ("loss", "accuracy", "samples_per_second", "validation_loss", "validation_accuracy"):
    near(two[key]["mean"], last("two", "epoch")[key])
    near(one[key]["mean"], (last("one", "epoch")[key] + last("again", "epoch")[key]) / 2)
seconds = {run: last(run, "step")["training_seconds"] for run in ("one", "again", "two")}
baseline = (seconds["one"] + seconds["again"]) / 2
near(one["training_seconds"]["mean"], baseline)
near(two["speedup"]["mean"], baseline / seconds["two"])
near(two["efficiency"]["mean"], baseline / seconds["two"] / 2)
near(two["throughput_scaling"]["mean"], two["samples_per_second"]["mean"] / one["samples_per_second"]["mean"])
near(two["memory_mean_scaling"]["mean"], two["memory_mean_bytes"]["mean"] / one["memory_mean_bytes"]["mean"])
memory = json.load(open(work + "/memory.json"))["memory"][0]
assert memory["rank"] == 0
near(two["memory_mean_bytes"]["mean"], memory["mean_mib"] * 2**20)
near(two["memory_mode_bytes"]["mean"], memory["mode_mib"] * 2**20)
assert two["memory_peak_bytes"]["mean"] >= memory["peak_mib"] * 2**20
PYTHON
check "as a table in Markdown" report "${runs[@]}" --format markdown
check "  with a row per configuration" shows '^\| Multi-rank \(2 ranks, 1 node\)( \| [0-9.]+){10} \|$'
check "as CSV" report "${runs[@]}" --format csv
check "  with a line per figure" shows '^2,1,1,1,memory_mean_scaling,[0-9.]+,'
check "as a page" report "${runs[@]}" --format html --output "$work/page.html"
check "  that is XML" python3 -c "import xml.etree.ElementTree as tree; tree.parse('$work/page.html')"

# ---- Runs that cannot be compared ----
check "a run of another model" report "$work/one" "$work/two" "$work/other"
check "  is named" shows "^$work/other: rejected \(settings\): model.width is 32, not 16\.$"
check "  and not averaged" shows '^Multi-rank \(2 ranks, 1 node\)  1 of 2 '
check "  unless it is accepted" report "$work/one" "$work/two" "$work/other" --accept settings
check "  and averaged" shows '^Multi-rank \(2 ranks, 1 node\)  2 of 2 '
check "another batch" report "${runs[@]}" "$work/strong"
check "  is named" shows "^$work/strong: rejected \(settings\): its batch is 6 samples, 3 per rank\.$"
check "the global batch may be the one that is kept" report "$work/one" "$work/strong"
check "  for strong scaling" shows '^strong scaling, a global batch of 6 samples; 2 finished runs$'
echo stopped >"$work/other/status"
check "a run that is not finished" refused 2 'other is not a finished run: its status is stopped; resume it, or leave it out' \
  "$lockstep" scaling report "$work/one" "$work/other"
check "a run that is given twice" refused 2 'one is given twice' "$lockstep" scaling report "$work/one" "$work/two" "$work/one/"
check "a directory that is no run" refused 2 'is not a run directory' "$lockstep" scaling report "$work/one" "$work"
check "predictions from runs" refused 2 '\-\-predict needs the directory of one study' "$lockstep" scaling report "${runs[@]}" --predict 4
check "a page without a name" refused 2 'name the page of several runs with --output' "$lockstep" scaling report "${runs[@]}" --format html
check "a report does not replace a file of a run" refused 2 'metrics.json' "$lockstep" scaling report "${runs[@]}" --output "$work/one/metrics.json"

# ---- Whole epochs ----
study=("$lockstep" scaling run "${tiny[@]}" train.global_batch=6 --out "$work/study" --ranks 1,2 --repeat 1 --epochs 3)
check "epochs instead of steps" refused 2 'excludes' "${study[@]}" --steps 20
check "a study of whole epochs" "${study[@]}"
check "  its report" report "$work/study" --accept neighbours
check "  says so" shows '^strong scaling, a global batch of 6 samples; 3 epochs; 1 repeat$'
check "  compares seconds of training" shows '^Baseline \(Single rank\): [0-9.]+ seconds, the mean of 1 case$'
check "  with the results of the last epoch, and validation" python3 - "$work" <<'PYTHON'
import glob, json, subprocess, sys
study = sys.argv[1] + "/study"
for path in glob.glob(study + "/cases/*"):
    epochs = [e for e in map(json.loads, open(path + "/run/metrics.jsonl")) if e["event"] == "epoch"]
    finished = json.load(open(path + "/finished.json"))
    assert [e["epoch"] for e in epochs] == [1, 2, 3] and finished["epoch_loss"] == epochs[-1]["loss"], epochs
    assert finished["validation_accuracy"] == epochs[-1]["validation_accuracy"]
PYTHON
check "  cannot be predicted" refused 2 '\-\-predict needs a study with a number of steps' "$lockstep" scaling report "$work/study" --predict 4
finish
