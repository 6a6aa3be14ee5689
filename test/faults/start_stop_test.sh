#!/usr/bin/env bash
# timeout: 300
# cores: 0
# Signals before the first step: while algorithms are timed, while the lock of another job is watched, and while a rank
# does not respond. All ranks end within two seconds with 75, and RUN/status is `stopped`. SIGHUP and SIGUSR1 are
# treated in the same way.
source test/faults/common.sh

wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
limit=3 # seconds: the ranks take at most two, and mpirun itself up to one
ends_at_once() { # ends_at_once WHAT STATUS: the job ends within the limit with that status
  local begin=${EPOCHREALTIME/./} took
  ends "$1" "$2" 20
  took=$(((${EPOCHREALTIME/./} - begin) / 1000))
  check "$name: within $limit s ($took ms)" test $took -le $((limit * 1000))
}
log_has() { grep -q "$1" "$out"; }

# While algorithms are timed, which takes minutes here: rank 0 times them, while rank 1 waits.
timed=(data.image_size=64 model.width=64 train.global_batch=64)
export LOCKSTEP_CACHE=$work/cache
for signal in TERM USR2 HUP USR1 INT; do
  start "timing-$signal" 2 "${timed[@]}"
  check "$name: begins to time" wait_for 60 log_has 'timing the algorithms'
  kill -$signal "$(rank "$([[ $signal == INT ]] && echo 0 || echo 1)")"
  ends_at_once "stops when signalled while algorithms are timed" 75
  status_is stopped
  prints "it is reported" 'stopped by a signal before the first step: rerun the command to start'
done
export LOCKSTEP_CACHE=none

# While a possibly stale lock is watched. The lock does not belong to this job, so this job writes no status either.
mkdir "$work/locked"
printf 'host elsewhere\npid 7\nprocess_start 1\nslurm_job -\nslurm_restarts 0\nsince_unix 1700000000\nheartbeat 000000000000\n' \
  >"$work/locked/lock"
for signal in TERM INT; do
  start locked 2
  check "$name: waits for the lock" wait_for 60 log_has 'waiting up to 60 s for its heartbeat'
  kill -$signal "$(rank 0)"
  ends_at_once "stops when signalled while it waits for a lock" 75
  check "$name: the lock of the other job stays, alone" test "$(ls "$work/locked")" = lock
done

# One rank does not respond, so the ranks cannot agree to stop: the signalled rank ends the job.
for signal in TERM INT; do
  [[ $signal == TERM ]] && silent=0 || silent=1
  LOCKSTEP_CACHE=$work/cache-$signal start "silent-$signal" 2 "${timed[@]}" comm.watchdog_seconds=60
  check "$name: begins to time" wait_for 60 log_has 'timing the algorithms'
  kill -STOP "$(rank $silent)"
  kill -$signal "$(rank $((1 - silent)))"
  ends_at_once "stops although a rank does not respond" 75
  status_is stopped
  prints "it is reported" 'stopped by a signal before the first step: rerun the command to start'
done
prints "Ctrl-C is answered at once" 'SIGINT received: the start of the run is stopped'

# A stale lock that cannot be removed is an error, and removing it is not tried for ever.
name=stuck
mkdir "$work/stuck"
sed "s/^host .*/host $(uname -n)/" "$work/locked/lock" >"$work/stuck/lock"
check "$name: a lock that cannot be removed is reported" refused 1 'stuck/lock was left by a job that is gone, but cannot be removed: Read-only' \
  timeout 30 env LD_PRELOAD="$wrapper" FAULT_PATH="$work/stuck/lock" FAULT_CALLS=rename FAULT_COUNT=0 FAULT_ERROR=EROFS \
  "${command_of[@]}" run.name=stuck train.max_steps=1

# In a training, SIGHUP and SIGUSR1 do what SIGTERM does.
for signal in HUP USR1; do
  start "rank-$signal" 2
  begun
  kill -$signal "$(rank 1)"
  ends "all ranks stop after SIG$signal to one" 75 60
  status_is stopped
  check "$name: the last step is saved" test -s "$work/$name/checkpoints/$(printf 'step-%08d.h5' "$(last_step)")"
done
check "SIGHUP stays ignored under nohup" bash -c "
  trap '' HUP
  '$lockstep' train ${tiny[*]} run.name=nohup train.max_steps=200 comm.sleep_ms=2 & job=\$!
  until [[ -s '$work/nohup/metrics.jsonl' ]]; do sleep 0.1; done
  kill -HUP \$job; wait \$job"
name=nohup status_is done

# A run directory that is removed during the run: the run reports it at its next save.
start removed 2 checkpoint.every_steps=10 comm.sleep_ms=20
begun
rm -r "$work/removed"
ends "a removed run directory ends the run" 1 60
prints "with a sentence" 'removed was removed or emptied while this run was using it'
prints "and a code" '\[run_directory\]'
check "and does not appear again" test ! -e "$work/removed/checkpoints"

finish
