#!/usr/bin/env bash
# timeout: 240
# cores: 0
# A rank that is delayed repeatedly is named in the log, with the fraction of time for which the other ranks wait for
# it.
source test/faults/common.sh

start delayed 3 model.width=64 log.every_steps=5 log.slow_rank_percent=30 train.max_steps=40
# The delays begin before the first steps are reported. Without them, three ranks on fewer cores may really wait for
# another one, and the warning about it would be the only one for a minute.
check "delayed: starts" wait_for 60 grep -q 'steps per epoch' "$out"
slow=$(rank 2)
for _ in $(seq 60); do
  kill -STOP "$slow" 2>/dev/null || break
  sleep 0.35
  kill -CONT "$slow" 2>/dev/null
  sleep 0.05
  if grep -q 'is slow' "$out"; then break; fi
done
kill -CONT "$slow" 2>/dev/null
ends "ends normally" 0 90
prints "the rank is named, once a minute at most" 'rank 2 on .* is slow: .* the other ranks have spent [0-9]+ % of their time'
check "delayed: no other rank is named" bash -c "! grep 'is slow' '$out' | grep -vq 'rank 2 on'"

# run.check before the first step; and a rank that is delayed during the whole run, which the log reports at its end.
start checked 3 run.check=quick log.every_steps=5 log.slow_rank_percent=10 model.width=64 train.max_steps=100
check "checked: starts" wait_for 90 step_is 1
slow=$(rank 2)
until grep -q 'done: 100 steps' "$out" || ! kill -STOP "$slow" 2>/dev/null; do
  sleep 0.3
  kill -CONT "$slow" 2>/dev/null
  sleep 0.05
done
kill -CONT "$slow" 2>/dev/null
ends "ends normally" 0 90
prints "the ranks are checked before the first step" 'run.check(: The slowest rank is rank [0-2] on | found this:)'
prints "the end of the log names the slow rank, and what doctor finds" \
  'the job was slow: the other ranks have spent [0-9]+ % of their time waiting for rank 2 on .*lockstep doctor'
finish
