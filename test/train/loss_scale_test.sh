#!/usr/bin/env bash
# timeout: 300
# Loss scaling in whole training runs. In fp32, multiplying by a power of two and dividing by it again changes no bit of
# the gradients, so the trained weights must be the same with a loss scale as without one, however the scale changes.
source test/support/check.sh

small=(model.width=16 data.train=synthetic data.image_size=16 data.synthetic_samples=96 data.augment=[crop,flip] train.global_batch=16
  train.epochs=1 train.clip_norm=0.5 optimizer.learning_rate=0.02 cpu.threads=1 log.every_steps=1 log.tensorboard=false
  log.progress=false run.directory="$work")
train() { "$lockstep" train "${small[@]}" "$@"; }
file() { echo "$work/$1/checkpoints/step-0000000$2.h5"; }
same() { "$lockstep" checkpoint diff "$(file "$1" 6)" "$(file "$2" 6)"; }
scales() { sed -nE '/"event": ?"step"/ {s/.*"loss_scale": ?([0-9]+).*/\1/; s/.*event.*/none/; p}' "$work/$1/metrics.jsonl" | tr '\n' ' '; }
is() { [[ $1 == "$2" ]] || { echo "found '$1', expected '$2'"; return 1; }; }
growing=(loss_scale.kind=dynamic loss_scale.initial=1024 loss_scale.growth_steps=2)

for optimizer in sgd lars; do
  check "$optimizer" train run.name=plain optimizer.kind=$optimizer
  check "  reports no loss scale" is "$(scales plain)" 'none none none none none none '
  check "  with a scale that grows" train run.name=scaled optimizer.kind=$optimizer "${growing[@]}"
  check "  which is reported" is "$(scales scaled)" '1024 1024 2048 2048 4096 4096 '
  check "  and logged" grep -q 'step 4 was applied: the loss scale changes from 2048 to 4096' "$work/scaled/log.txt"
  check "  has the same bits" same scaled plain
  check "  with a constant scale" train run.name=constant optimizer.kind=$optimizer loss_scale.kind=constant loss_scale.initial=32
  check "  which stays constant" is "$(scales constant)" '32 32 32 32 32 32 '
  check "  has the same bits" same constant plain
  [[ $optimizer == lars ]] || rm -r "$work/plain" "$work/constant"
  check "  stops after 3 steps" train run.name=stopped optimizer.kind=$optimizer "${growing[@]}" train.max_steps=3
  check "  resumes" train run.name=stopped optimizer.kind=$optimizer "${growing[@]}"
  check "  with the scale and the number of steps of the checkpoint" is "$(scales stopped)" '1024 1024 2048 2048 4096 4096 '
  check "  and writes the same file" cmp "$(file stopped 6)" "$(file scaled 6)"
  rm -r "$work/stopped" "$work/scaled"
done

# 1e38 overflows fp32 gradients: the step is skipped and the scale is halved, which does not count as a failed step.
check "begins with a scale that is too great" train run.name=great loss_scale.kind=dynamic loss_scale.initial=1e38 data.image_size=8 train.global_batch=4 train.max_skipped_in_a_row=0
check "  skips steps" grep -q 'step 1 was skipped, since its gradients overflowed: the loss scale changes from 1e+38 to 5e+37' \
  "$work/great/log.txt"
check "  and counts them" grep -Eq '"skipped_steps": [1-9]' "$work/great/metrics.json"
check "a constant scale that is too great is a failure" refused 1 'train.max_skipped_in_a_row' \
  train run.name=no loss_scale.kind=constant loss_scale.initial=1e38 data.image_size=8 train.global_batch=4 train.max_skipped_in_a_row=0
check "another kind of scale is refused on resume" refused 2 'loss_scale.kind' \
  train run.name=constant optimizer.kind=lars train.epochs=2
check "the key of other programs leads to ours" refused 2 'loss_scale.growth_steps' train run.name=no growth_interval=2

finish
