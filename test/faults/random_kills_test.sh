#!/usr/bin/env bash
# timeout: 3000
# long: yes
# Ranks are killed and runs are stopped at random moments, up to thirty times. The final checkpoint equals that of an
# undisturbed run.
source test/faults/common.sh

RANDOM=${SEED:-1}
keys=(train.max_steps=400 checkpoint.every_steps=7 checkpoint.keep=3 train.check_replicas_every_steps=0 comm.watchdog_seconds=20)
check "undisturbed: trains" launch 3 run.name=undisturbed "${keys[@]}"

for round in $(seq 30); do
  start disturbed 3 "${keys[@]}"
  # In three of four rounds, waits for a step of this start. (metrics.jsonl still has the steps of the previous one.)
  ((RANDOM % 4 == 0)) || wait_for 60 grep -q '| step ' "$out"
  sleep "$(printf '0.%03d' $((RANDOM % 1000)))"
  sleep $((RANDOM % 3))
  signal=$([[ $((RANDOM % 3)) == 0 ]] && echo TERM || echo KILL)
  victim=$(rank $((RANDOM % 3)))
  echo "round $round: SIG$signal at step $(last_step)"
  if [[ -n $victim ]]; then kill -$signal "$victim" 2>/dev/null; fi
  check "round $round: ends" eval '! wait_for 60 false && ! kill -0 $job 2>/dev/null'
  wait $job
  if grep -qx done "$work/disturbed/status"; then break; fi
done
name=disturbed
check "the run ends" launch 3 run.name=disturbed "${keys[@]}"
status_is done
check "with the bits of the undisturbed run" cmp "$work/undisturbed/checkpoints/step-00000400.h5" \
  "$work/disturbed/checkpoints/step-00000400.h5"
finish
