#!/usr/bin/env bash
# timeout: 300
# SIGTERM and SIGUSR2, to one rank and to mpirun, in every phase: all ranks save, exit with 75, and the same command goes on.
source test/faults/common.sh

saved() { check "$name: what was trained is saved" test -s "$work/$name/checkpoints/$(printf 'step-%08d.h5' "$(last_step)")"; }

for signal in TERM USR2; do
  start "rank-$signal" 2
  begun
  kill -$signal "$(rank 1)"
  ends "all ranks stop after SIG$signal to one" 75 60
  status_is stopped
  says "says so" 'stopped by a signal after step'
  saved
done
continues 3 2

start mpirun-USR2 2
begun
kill -USR2 $job
ends "stops after SIGUSR2 to mpirun" 75 60
status_is stopped
saved

# mpirun itself gives ranks no more than a second after SIGTERM, then kills them. With scripts/launch they have time.
launcher=(scripts/launch)
start launch-TERM 2 comm.sleep_ms=400
begun
kill -TERM $job
ends "stops after SIGTERM to scripts/launch, though a step takes more than a second" 75 60
status_is stopped
saved
launcher=()

# mpirun that is told to wait longer; it sleeps for that long after each of its signals.
export OMPI_MCA_odls_base_sigkill_timeout=8
start mpirun-TERM 2
begun
kill -TERM $job
ends "stops after SIGTERM to mpirun" 1 60
status_is stopped
saved
unset OMPI_MCA_odls_base_sigkill_timeout

# While saving: the file that is being written is whole, and no step is run after it.
start saving 2 checkpoint.every_steps=5
check "saving: begins to save" wait_for 60 compgen -G "$work/saving/checkpoints/*"
kill -TERM "$(rank 0)"
ends "stops when told while saving" 75 60
status_is stopped
saved
check "saving: every checkpoint is whole" bash -c "for f in '$work'/saving/checkpoints/step-*.h5; do '$lockstep' checkpoint verify \$f || exit 1; done"

# While evaluating: it is given up.
start evaluating 2 data.validation=synthetic evaluation.every_steps=2 evaluation.batch_per_rank=1 data.synthetic_samples=60000
check "evaluating: begins" wait_for 60 step_is 2
sleep 0.5
kill -TERM "$(rank 1)"
ends "stops when told while evaluating" 75 60
status_is stopped
saved
check "evaluating: the evaluation was given up" bash -c "! grep -q '\"event\":\"evaluation\"' '$work/evaluating/metrics.jsonl'"

# While starting: nothing is new, nothing is saved.
start starting 2 data.synthetic_samples=4000000
catches_sigterm() { # bit 14 of the signals that rank 1 catches
  local mask
  mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$(rank 1)/status" 2>/dev/null)
  ((0x${mask:-0} & 0x4000))
}
check "starting: ranks are there" wait_for 60 catches_sigterm
kill -TERM "$(rank 1)"
ends "stops when told while starting" 75 60

# One that does not answer counts as dead.
start silent 2 comm.watchdog_seconds=5
begun
stopped=$(rank 1)
kill -STOP "$stopped"
kill -USR2 "$(rank 0)"
ends "ends when a rank does not answer" 1 60
kill -KILL "$stopped" 2>/dev/null
says "names it" 'for rank 1 .*no sign of life'
status_is failed

finish
