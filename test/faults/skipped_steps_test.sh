#!/usr/bin/env bash
# timeout: 200
# Losses and gradients that are not finite, and spikes of the loss. All ranks skip the step, which is counted and logged. Too
# many skipped steps in a row end the run.
source test/faults/common.sh

# The first update makes weights of about 1e30, and after that no loss is finite.
start diverged 2 optimizer.learning_rate=1e30 schedule.kind=constant schedule.warmup_epochs=0 train.max_skipped_in_a_row=3 \
  train.check_replicas_every_steps=1
ends "too many in a row end the run" 1 90
prints "each is logged" 'step [0-9]+ was skipped: loss -?(nan|inf).* 3 skipped in a row'
prints "the reason is named" 'these are 4 skipped steps in a row, and train.max_skipped_in_a_row is 3'
prints "the error code is printed" '\[steps_skipped\]'
status_is failed

# The remedy works: the run resumes from its last checkpoint with a smaller learning rate.
command_of+=(schedule.kind=constant schedule.warmup_epochs=0 train.max_skipped_in_a_row=2)
start remedy 2 optimizer.learning_rate=0.001 train.max_steps=4
ends "a run" 0 90
start remedy 2 optimizer.learning_rate=1e30 --allow-change optimizer.learning_rate train.max_steps=20
ends "diverges later" 1 90
prints "the remedy names what a resumed run needs" 'remedy: lower optimizer.learning_rate or set train.clip_norm, and name the key with --allow-change'
for change in optimizer.learning_rate=0.0005 train.clip_norm=1; do
  check "remedy: is followed: ${change%=*}" launch 2 run.name=remedy optimizer.learning_rate=0.0005 $change \
    --allow-change optimizer.learning_rate --allow-change "${change%=*}" train.max_steps=$(($(last_step) + 2))
done
check "remedy: and a longer warm-up with --fresh" launch 2 run.name=remedy schedule.warmup_epochs=2 optimizer.learning_rate=0.001 \
  train.max_steps=3 --fresh
status_is done
command_of=("$lockstep" train "${tiny[@]}")

# Losses of small batches vary a lot: many are more than a standard deviation above their mean.
start spikes 2 train.spike_z_score=0.5 train.max_skipped_in_a_row=1000 train.max_steps=60 train.check_replicas_every_steps=5 \
  optimizer.learning_rate=0.001
ends "a run with spikes ends normally, with equal ranks" 0 120
prints "spikes are skipped" 'step [0-9]+ was skipped: loss [0-9.]+, gradient norm [0-9.]+'
status_is done
check "spikes: they are counted" grep -Eq '"skipped_steps": [1-9]' "$work/spikes/metrics.json"
check "spikes: none of the first 20" bash -c "! grep -E '\"step\":20,' '$work/spikes/metrics.jsonl' | grep -vq '\"skipped_steps\":0'"

# One rank gets a NaN in a gradient once. No rank applies that step, and all continue with equal weights.
if has_onednn; then
  wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
  command_of=(env LD_PRELOAD="$wrapper" FAULT_CALLS=backward FAULT_ERROR=NAN FAULT_RANK=1 FAULT_FIRST=100 "${command_of[@]}")
  start gradient 2 train.max_steps=8 train.check_replicas_every_steps=1 optimizer.learning_rate=0.001
  ends "a run with one bad gradient ends normally, with equal ranks" 0 90
  prints "a gradient was changed" 'fault_injection: put a NaN'
  prints "the step is skipped although its loss is finite" 'step [0-9]+ was skipped: loss [0-9.]+, gradient norm -?nan'
  check "gradient: only this step is counted" grep -Eq '"skipped_steps": 1\b' "$work/gradient/metrics.json"
fi

# A run that diverges just before its end has no usable weights. It must not end as if it had succeeded.
command_of=("$lockstep" train "${tiny[@]}")
start end 2 optimizer.learning_rate=1e30 schedule.kind=constant train.max_steps=4
ends "a run whose last steps were all skipped fails" 1 90
prints "the reason is named" 'it was the last step, and the 2 before it were skipped too'
prints "the error code is printed" '\[steps_skipped\]'
status_is failed
check "end: numbers stay short" bash -c '! grep -E "[0-9]{20}|-nan" "$0"' "$out"

finish
