#!/usr/bin/env bash
# timeout: 200
# Bits of one rank's weights flip during training. They flip in several layers, since rounding may undo one of them.
# This is detected before the next checkpoint is written, the rank is named, and the job ends. No checkpoint contains a
# flipped bit, and the same command resumes and ends with the bits of an undisturbed run.
source test/faults/common.sh
has_onednn || { echo "skipped: a build without oneDNN has no calls that the wrapper could intercept"; exit 77; }

wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
keys=(train.max_steps=16 checkpoint.every_steps=4 checkpoint.keep=0 train.check_replicas_every_steps=0)
same_as_undisturbed() {
  local file
  for file in "$work/$name"/checkpoints/step-*.h5; do
    cmp "$file" "$work/undisturbed/checkpoints/${file##*/}" || return 1
  done
}

check "undisturbed: trains" launch 3 run.name=undisturbed "${keys[@]}"
ordinary=("${command_of[@]}")
command_of=(env LD_PRELOAD="$wrapper" FAULT_CALLS=forward FAULT_ERROR=FLIP FAULT_RANK=1 FAULT_FIRST=5 FAULT_COUNT=5
  FAULT_WHEN="$work/flipped/checkpoints/latest" "${ordinary[@]}")
start flipped 3 "${keys[@]}"
ends "ends" 1 90
prints "a bit was flipped" 'fault_injection: flipped a bit'
prints "the rank is named" 'after step [0-9]+ the weights of rank 1 on .* differ from those of rank 0'
prints "the error code is printed" '\[replicas_differ\]'
status_is failed
check "flipped: no checkpoint contains it" same_as_undisturbed
check "flipped: it was detected before the last checkpoint" test ! -e "$work/flipped/checkpoints/step-00000016.h5"
command_of=("${ordinary[@]}")
check "flipped: the same command resumes" launch 3 run.name=flipped "${keys[@]}"
status_is done
check "flipped: the checkpoints equal those of the undisturbed run" same_as_undisturbed
check "flipped: the last checkpoint is there" test -e "$work/flipped/checkpoints/step-00000016.h5"

finish
