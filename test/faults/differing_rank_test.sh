#!/usr/bin/env bash
# timeout: 200
# A bit of one rank's weights flips while it trains: found before the next checkpoint is written, the rank named, the job
# ended; no checkpoint holds it, and the same command continues to the bits of a run that nothing happened to.
source test/faults/common.sh

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
command_of=(env LD_PRELOAD="$wrapper" FAULT_CALLS=forward FAULT_ERROR=FLIP FAULT_RANK=1 FAULT_FIRST=5
  FAULT_WHEN="$work/flipped/checkpoints/latest" "${ordinary[@]}")
start flipped 3 "${keys[@]}"
ends "ends" 1 90
says "a bit was flipped" 'fault_injection: flipped a bit'
says "the rank is named" 'after step [0-9]+ the weights of rank 1 on .* differ from those of rank 0'
says "with its code" '\[replicas_differ\]'
status_is failed
check "flipped: no checkpoint is written from it" same_as_undisturbed
check "flipped: it was found before the last" test ! -e "$work/flipped/checkpoints/step-00000016.h5"
command_of=("${ordinary[@]}")
check "flipped: the same command continues" launch 3 run.name=flipped "${keys[@]}"
status_is done
check "flipped: to the bits of the undisturbed run" same_as_undisturbed
check "flipped: all of them" test -e "$work/flipped/checkpoints/step-00000016.h5"

finish
