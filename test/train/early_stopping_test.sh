#!/usr/bin/env bash
# timeout: 200
# evaluation.patience ends a run whose evaluations do not improve, even over several starts. checkpoint.best names the
# figure that decides which evaluation is better.
source test/support/check.sh

export LOCKSTEP_CACHE=none
small=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8
  data.synthetic_samples=240 train.global_batch=12 train.epochs=3 optimizer.learning_rate=0.05 schedule.kind=constant
  schedule.warmup_epochs=0 evaluation.every_steps=3 cpu.threads=1 reproducible=true log.every_steps=1 log.progress=false
  log.tensorboard=false run.directory="$work")
train() { "$lockstep" train "${small[@]}" run.name="$1" "${@:2}"; }
is() { [[ $1 == "$2" ]] || { echo "found '$1', expected '$2'"; return 1; }; }
evaluations() { sed -nE "/\"event\":\"evaluation\"/ s/.*\"step\":([0-9]+),.*\"$2\":([^,}]*).*/\\1 \\2/p" "$work/$1/metrics.jsonl"; }
best_step() { sed -nE 's/.*"best":[^0-9]*step-0*([0-9]+).*/\1/p' <<<"\"best\": $(readlink "$work/$1/checkpoints/best")"; }
# The step of the evaluation after which PATIENCE evaluations in a row had been no better than the best before them.
expected_end() { # expected_end RUN KEY PATIENCE SIGN: SIGN 1: greater is better
  evaluations "$1" "$2" | awk -v patience="$3" -v sign="$4" '
    NR == 1 || sign * $2 > best { best = sign * $2; none = -1 }
    ++none >= patience && !end { end = $1 } END { print end ? end : "none" }'
}
expected_best() { evaluations "$1" "$2" | awk -v sign="$3" 'NR == 1 || sign * $2 > best { best = sign * $2; step = $1 } END { print step }'; }
last_step() { evaluations "$1" loss | tail -1 | cut -d' ' -f1; }

check "trains without patience" train whole checkpoint.every_steps=3 checkpoint.keep=0
check "  to the end" is "$(last_step whole)" 60
end=$(expected_end whole accuracy 3 1)
check "  while accuracy stands still" test "$end" -lt 60
check "with patience the same run" train patient evaluation.patience=3
check "  ends after the evaluations that were not better" is "$(last_step patient)" "$end"
check "  says why" grep -q "done: stopped early after $end of 60 steps: the last 3 evaluations were not better than that after step" "$work/patient/log.txt"
check "  is done" grep -qx done "$work/patient/status"
check "  has the steps in its summary" grep -q "\"steps\": $end," "$work/patient/metrics.json"
check "  and saved them" test -s "$work/patient/checkpoints/step-$(printf %08d "$end").h5"
check "  best is the best evaluation, though no checkpoint was due there" is "$(best_step patient)" "$(expected_best patient accuracy 1)"
check "the same command has nothing to do" train patient evaluation.patience=3
check "  and says why" grep -q "done: nothing was left to do after step $end: the last 3 evaluations" "$work/patient/log.txt"
check "without patience it trains on" train patient evaluation.patience=0
check "  to the end" is "$(last_step patient)" 60

# The count survives stops between evaluations and within the sequence of evaluations without improvement.
check "stops before its patience ends" train starts evaluation.patience=3 train.max_steps=$((end - 4))
check "  stops again" train starts evaluation.patience=3 train.max_steps=$((end - 2))
check "  resumes" train starts evaluation.patience=3
check "  and ends where the uninterrupted run did" is "$(last_step starts)" "$end"

# Checkpoints only at the end: what an evaluation saves is kept only as long as it is the best. A learning rate that is too
# high makes the last ones worse.
rare=(checkpoint.every_epochs=0 checkpoint.keep=1 checkpoint.best=loss)
check "without intervals of checkpoints" train rare "${rare[@]}" train.max_steps=40
check "  and on, with another learning rate" train rare "${rare[@]}" optimizer.learning_rate=1 \
  --allow-change optimizer.learning_rate
check "  best is the best evaluation" is "$(best_step rare)" "$(expected_best rare loss -1)"
check "  which was not the last" test "$(best_step rare)" -lt 60
check "  and is all that is kept besides the last" is "$(cd "$work/rare/checkpoints" && echo *.h5)" \
  "$(printf 'step-%08d.h5\n' "$(best_step rare)" 60 | sort -u | paste -sd' ')"

for measure in loss accuracy; do
  sign=$([[ $measure == loss ]] && echo -1 || echo 1)
  check "checkpoint.best=$measure" train "by-$measure" checkpoint.best=$measure checkpoint.every_steps=3 checkpoint.keep=0
  check "  links to the best $measure" is "$(best_step "by-$measure")" "$(expected_best "by-$measure" $measure "$sign")"
done
check "auto is accuracy" is "$(best_step whole)" "$(expected_best whole accuracy 1)"
# `auto` stands for the same measure: a worse checkpoint does not become the best.
check "accuracy instead of auto, on resume" train whole checkpoint.every_steps=3 checkpoint.keep=0 train.epochs=4 checkpoint.best=accuracy \
  optimizer.learning_rate=1e-12 --allow-change optimizer.learning_rate
check "  keeps the best" is "$(best_step whole)" "$(expected_best whole accuracy 1)"
check "  without a word" bash -c '! grep -q "decides anew" "$0"' "$work/whole/log.txt"
check "and auto again" train whole checkpoint.every_steps=3 checkpoint.keep=0 train.epochs=5 \
  optimizer.learning_rate=1e-12 --allow-change optimizer.learning_rate
check "  keeps it too" is "$(best_step whole)" "$(expected_best whole accuracy 1)"
end_by_loss=$(expected_end whole loss 2 -1)
check "patience compares the same figure" train loss-patience checkpoint.best=loss evaluation.patience=2
check "  and ends by it" is "$(last_step loss-patience)" "${end_by_loss/none/60}"
check "another figure may be chosen on resume" train by-loss checkpoint.best=accuracy train.epochs=4
check "  which is reported" grep -q 'checkpoint.best is now accuracy' "$work/by-loss/log.txt"
check "the average needs ema.decay" refused 2 'checkpoint.best=ema_accuracy is measured .* needs ema.decay' train refused \
  checkpoint.best=ema_accuracy
check "an unknown figure is refused" refused 2 'checkpoint.best: expected one of auto \| loss \| accuracy, found "speed"' train refused checkpoint.best=speed
check "patience without evaluations is refused" refused 2 'evaluation.patience=2 .*data.validation' train refused evaluation.patience=2 data.validation=
check "  and with evaluations only at the end" refused 2 'evaluation.patience=2 .*set evaluation.every_epochs or evaluation.every_steps' \
  train refused evaluation.patience=2 evaluation.every_steps=0 evaluation.every_epochs=0
finish
