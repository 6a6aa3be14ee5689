#!/usr/bin/env bash
# timeout: 200
# The figures of a run over several starts: metrics.json covers the whole run, the speed of an epoch is that of its
# steps, and the last line of the log says how the run ended.
source test/support/check.sh

export LOCKSTEP_CACHE=none
small=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8
  data.synthetic_samples=96 train.global_batch=12 train.epochs=3 optimizer.learning_rate=0.05 cpu.threads=1
  log.every_steps=1 log.progress=false log.tensorboard=false run.directory="$work")
train() { "$lockstep" train "${small[@]}" run.name="$1" "${@:2}"; }
number() { sed -nE "s/^  \"$2\": ([^,]*),?\$/\\1/p" "$work/$1/metrics.json"; } # number RUN KEY: from the summary
is() { [[ $1 == "$2" ]] || { echo "found '$1', expected '$2'"; return 1; }; }
less() { awk -v a="$1" -v b="$2" 'BEGIN { print a, "<", b; exit !(a < b) }'; }
best_of_events() { # best_of_events RUN KEY LEAST|GREATEST
  sed -nE "/\"event\":\"evaluation\"/ s/.*\"$2\":([^,}]*).*/\\1/p" "$work/$1/metrics.jsonl" | sort -g | if [[ $3 == LEAST ]]; then head -1; else tail -1; fi
}
summary_is_of_all_starts() { # summary_is_of_all_starts RUN
  check "$1: counts the steps of all starts" is "$(number "$1" steps)" 24
  check "  and their samples" is "$(number "$1" samples)" 288
  check "  the best loss is that of all evaluations" is "$(number "$1" best_loss)" "$(best_of_events "$1" loss LEAST)"
  check "  and so is the best accuracy" is "$(number "$1" best_accuracy)" "$(best_of_events "$1" accuracy GREATEST)"
  check "  the memory is the greatest of all steps" is "$(number "$1" memory_bytes)" \
    "$(grep -oE '"memory_bytes":[0-9]+' "$work/$1/metrics.jsonl" | cut -d: -f2 | sort -n | tail -1)"
}

check "trains in three starts" train starts train.max_steps=8
check "  has the rate of its operations" less 1e6 "$(number starts model_flops_rate)"
check "  which the log says" grep -qE 'step 8/.* [|] [0-9.]+ [GT]FLOP/s [|]' "$work/starts/log.txt"
check "  and no utilization" bash -c "! grep -q model_flops_utilization '$work/starts/metrics.jsonl' '$work/starts/metrics.json'"
first_seconds=$(number starts seconds)
check "  the second ends inside an epoch" train starts train.max_steps=13
check "  a start adds its seconds" less "$first_seconds" "$(number starts seconds)"
second_seconds=$(number starts seconds)
# The best figures must not be lost when the start that reached them ends: from here on, nothing is learned.
check "  the third learns nothing" train starts optimizer.learning_rate=1e-12 --allow-change optimizer.learning_rate
summary_is_of_all_starts starts
check "  the third adds its seconds" less "$second_seconds" "$(number starts seconds)"

last_of() { sed -nE "/\"event\":\"$2\"/ s/.*\"$3\":([^,}]*).*/\1/p" "$work/$1/metrics.jsonl" | tail -1; } # last_of RUN EVENT KEY
check "  the final loss is that of the last evaluation" is "$(number starts final_loss)" "$(last_of starts evaluation loss)"
check "a run without a validation set" train alone train.max_steps=5 data.validation=
check "  has no figures of evaluations" is "$(number alone final_loss)$(number alone best_loss)" ""
check "  but those of the last step" is "$(number alone final_train_accuracy)" "$(last_of alone step accuracy)"
check "evaluates after an epoch" train early train.max_steps=8
check "  and no more when it is resumed" train early train.max_steps=11 data.validation=
check "  has the figures of the evaluation" is "$(number early final_loss)" "$(last_of early evaluation loss)"
check "  and those of the last step" is "$(number early final_train_accuracy)" "$(last_of early step accuracy)"

# A start that has nothing to do changes nothing.
cp "$work/starts/metrics.json" "$work/before.json"
again=(train starts optimizer.learning_rate=1e-12 --allow-change optimizer.learning_rate)
check "a finished run has nothing to do" "${again[@]}"
check "  and keeps its summary" cmp "$work/starts/metrics.json" "$work/before.json"
check "  nor has one that is beyond train.max_steps" "${again[@]}" train.max_steps=2
check "  which keeps it too" cmp "$work/starts/metrics.json" "$work/before.json"
check "  and does not claim two steps" bash -c '! grep -q "done: 2 steps" "$0"' "$work/starts/log.txt"
check "  but says where the run is" grep -q 'done: nothing was left to do after step 24' "$work/starts/log.txt"
rm "$work/starts/metrics.json"
check "a summary that is missing is written again" "${again[@]}"
summary_is_of_all_starts starts

# As left by a process that was killed after it wrote a checkpoint and before it could record that.
check "killed: trains to step 10" train killed train.max_steps=10
sed -i -E '/"step":(9|10),/d' "$work/killed/metrics.jsonl"
rm "$work/killed/metrics.json"
check "  resumes" train killed
summary_is_of_all_starts killed

# The speed of an epoch is that of its steps, although the evaluation takes longer than an epoch.
check "evaluates longer than it trains" train slow train.epochs=4 data.train=data/samples/cifar10_train.h5 data.image_size=32 \
  data.validation=data/samples/cifar10_test.h5 data.start=0 data.end=48 evaluation.every_epochs=2
check "  within an epoch it stops" train resumed train.epochs=4 train.max_steps=7
check "  and resumes" train resumed train.epochs=4
# The speed of each epoch, relative to that of its steps: far from 1 only if it is not computed from them. The first
# step may be slow.
speeds() {
  awk '{
    match($0, /"samples_per_second":[^,}]*/); speed = substr($0, RSTART + 21, RLENGTH - 21)
    if ($0 ~ /"event":"step"/) { match($0, /"step_seconds":[^,}]*/); seconds += substr($0, RSTART + 15, RLENGTH - 15); samples += 12 }
    if ($0 ~ /"event":"epoch"/) { print NR, speed * seconds / samples; n++; if (speed * seconds < samples / 20 || speed * seconds > 20 * samples) bad = 1; seconds = samples = 0 }
  } END { exit bad || n != 4 }' "$work/$1/metrics.jsonl"
}
check "  the epochs are as fast as their steps" speeds slow
# This check is exact: the speed of an epoch is computed from all the time spent in steps. That includes neither the
# evaluation nor the time that training waited for the previous epoch's checkpoint.
only_steps() {
  python3 - "$work/$1/metrics.jsonl" <<'PYTHON'
import json, sys
steps = evaluation = before = 0.0
n_epochs = n_evaluations = n_checkpoints = 0
for event in map(json.loads, open(sys.argv[1])):
    if event["event"] == "step": steps += event["step_seconds"]
    if event["event"] == "evaluation": evaluation, n_evaluations = event["evaluation_seconds"], n_evaluations + 1
    if event["event"] == "checkpoint": n_checkpoints += 1
    if event["event"] != "epoch": continue
    trained = event["training_seconds"] - before
    assert abs(event["samples_per_second"] * trained / event["samples"] - 1) < 1e-6, event
    assert steps <= trained * (1 + 1e-9), (steps, trained)
    assert trained <= event["epoch_seconds"] - evaluation + 1e-6, (trained, event, evaluation)
    assert event["training_seconds"] <= event["run_seconds"], event
    before, steps, evaluation, n_epochs = event["training_seconds"], 0.0, 0.0, n_epochs + 1
assert n_epochs == 4 and n_evaluations == 2 and n_checkpoints >= 4, (n_epochs, n_evaluations, n_checkpoints)
PYTHON
}
check "  which alone count" only_steps slow
check "  resumed or not" speeds resumed

# Results are read one step late, but the time of the exchanges belongs to the step in which they took place.
two_ranks() {
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n 2 "$lockstep" train "${small[@]}" run.name=two train.max_steps=6 data.validation=
}
steps_with_exchanges() { grep '"event":"step"' "$work/two/metrics.jsonl" | grep -cE '"exchange_seconds":(0\.0*[1-9]|[0-9.]+e-|[1-9])'; }
check "two ranks exchange gradients" two_ranks
check "  in every step, the last one included" is "$(steps_with_exchanges)" 6
finish
