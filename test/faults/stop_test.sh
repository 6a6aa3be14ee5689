#!/usr/bin/env bash
# timeout: 600
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

# That is what `make train` uses; make itself passes SIGTERM on, and ends by it when all is done.
name=make-TERM out=$work/make-TERM.out
(exec env -u MAKEFLAGS make --no-print-directory -o "$lockstep" BUILD="$(dirname "$lockstep")" train RANKS=2 CONFIG="${tiny[0]}" \
  OVERRIDES="${tiny[*]:1} run.name=$name comm.sleep_ms=400") >"$out" 2>&1 &
job=$!
begun
kill -TERM $job
ends "stops after SIGTERM to make" 143 60
status_is stopped
saved

# mpirun alone, as it is: whether the ranks could save in their second or not, no checkpoint is harmed.
start mpirun-TERM-alone 2 checkpoint.every_steps=2 checkpoint.keep=2 comm.sleep_ms=100
begun 4
kill -TERM $job
ends "ends after SIGTERM to mpirun" 1 60
check "$name: the newest checkpoint is good" "$lockstep" checkpoint verify "$work/$name/checkpoints/latest"
continues 2 2

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
for signal in TERM USR2; do
  start "saving-$signal" 2 checkpoint.every_steps=5
  check "$name: begins to save" wait_for 60 compgen -G "$work/$name/checkpoints/*"
  kill -$signal "$(rank 0)"
  ends "stops when told while saving" 75 60
  status_is stopped
  saved
  check "$name: every checkpoint is whole" \
    bash -c "for f in '$work/$name'/checkpoints/step-*.h5; do '$lockstep' checkpoint verify \$f || exit 1; done"
done

# While evaluating: it is given up, and made good by the next start, in the middle of a run or at its end: the same
# checkpoint as that of a run which nobody stopped.
evaluations() { grep -c '"event":"evaluation"' "$work/$name/metrics.jsonl"; }
long=(data.validation=synthetic evaluation.every_steps=2 evaluation.batch_per_rank=1 data.synthetic_samples=8000)
stopped_while_evaluating() { # NAME SIGNAL STEPS: after step 2 of so many
  start "$1" 2 "${long[@]}" train.max_steps="$3"
  check "$name: begins" wait_for 60 step_is 2
  kill -$2 "$(rank 1)"
  ends "stops when told while evaluating" 75 60
  status_is stopped
  saved
  says "the evaluation is given up" 'the evaluation after step 2 was given up'
  check "$name: it is not reported" test "$(evaluations)" = 0
}
check "undisturbed: trains" launch 2 run.name=undisturbed "${long[@]}" train.max_steps=2
stopped_while_evaluating evaluating-last USR2 2
check "$name: the same command goes on" launch 2 run.name="$name" "${long[@]}" train.max_steps=2
status_is done
check "$name: it is evaluated once" test "$(evaluations)" = 1
check "$name: the bits of an undisturbed run" cmp "$work/$name/checkpoints/step-00000002.h5" \
  "$work/undisturbed/checkpoints/step-00000002.h5"
check "$name: which is the best" test "$(readlink "$work/$name/checkpoints/best")" = step-00000002.h5
check "$name: a finished run has nothing to do" launch 2 run.name="$name" "${long[@]}" train.max_steps=2
check "$name: and is not evaluated again" test "$(evaluations)" = 1
stopped_while_evaluating evaluating TERM 1000
start evaluating 2 "${long[@]}" train.max_steps=3
ends "the same command goes on" 0 60
check "$name: and evaluates what was given up" test "$(evaluations)" = 2

# While starting: nothing is new, nothing is saved; the same command begins.
catches_sigterm() { # bit 14 of the signals that rank 1 catches
  local mask
  mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$(rank 1)/status" 2>/dev/null)
  ((0x${mask:-0} & 0x4000))
}
for signal in TERM USR2; do
  start "starting-$signal" 2
  check "$name: ranks are there" wait_for 60 catches_sigterm
  kill -$signal "$(rank 1)"
  ends "stops when told while starting" 75 60
  status_is stopped
  says "says so" 'stopped by a signal before the first step'
done
check "$name: the same command begins" launch 2 run.name="$name" train.max_steps=2
status_is done

# A start that fails does not leave what an earlier job said of itself.
check "$name: a start that fails" refused 2 'optimizer.learning_rate' launch 1 run.name="$name" train.max_steps=4 \
  optimizer.learning_rate=0.3
status_is failed
check "$name: is in the log" grep -q 'resume_changed' "$work/$name/log.txt"

# One that does not answer counts as dead.
start silent 2 comm.watchdog_seconds=5
begun
stopped=$(rank 1)
kill -STOP "$stopped"
kill -USR2 "$(rank 0)"
ends "ends when a rank does not answer" 1 60
kill -KILL "$stopped" 2>/dev/null
says "names it" 'for rank 1 on .* has not responded'
status_is failed

finish
