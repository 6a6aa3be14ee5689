#!/usr/bin/env bash
# timeout: 600
# cores: 0
# SIGTERM and SIGUSR2, sent to one rank and to mpirun in every phase. All ranks save and exit with 75, and the same command
# resumes.
source test/faults/common.sh

saved() { check "$name: the last step is saved" test -s "$work/$name/checkpoints/$(printf 'step-%08d.h5' "$(last_step)")"; }

for signal in TERM USR2; do
  start "rank-$signal" 2
  begun
  kill -$signal "$(rank 1)"
  ends "all ranks stop after SIG$signal to one" 75 60
  status_is stopped
  prints "it is reported" 'stopped by a signal after step'
  saved
done
resumes 3 2

start mpirun-USR2 2
begun
kill -USR2 $job
ends "stops after SIGUSR2 to mpirun" 75 60
status_is stopped
saved

# After SIGTERM, mpirun gives the ranks only one second before it kills them. With scripts/launch they have enough time.
launcher=(scripts/launch)
start launch-TERM 2 comm.sleep_ms=400
begun
kill -TERM $job
ends "stops after SIGTERM to scripts/launch, though a step takes more than a second" 75 60
status_is stopped
saved
check "$name: there is nothing to warn of" bash -c "! grep -q 'one second to save' '$out'"
launcher=()

# `make train` uses scripts/launch. Make passes SIGTERM on, and is terminated by it after the run has ended.
name=make-TERM out=$work/make-TERM.out
(exec env -u MAKEFLAGS make --no-print-directory -o "$lockstep" BUILD="$(dirname "$lockstep")" train RANKS=2 CONFIG="${tiny[0]}" \
  OVERRIDES="${tiny[*]:1} run.name=$name comm.sleep_ms=400") >"$out" 2>&1 &
job=$!
begun
kill -TERM $job
ends "stops after SIGTERM to make" 143 60
status_is stopped
saved

# mpirun without scripts/launch. Whether the ranks can save within their second or not, no checkpoint is damaged.
start mpirun-TERM-alone 2 checkpoint.every_steps=2 checkpoint.keep=2 comm.sleep_ms=100
begun 4
kill -TERM $job
ends "ends after SIGTERM to mpirun" 1 60
prints "the risk was reported at the start" 'mpirun leaves the ranks one second to save .*scripts/launch mpirun'
check "$name: the newest checkpoint is good" "$lockstep" checkpoint verify "$work/$name/checkpoints/latest"
resumes 2 2

# mpirun with a longer timeout. It then sleeps for that time after each of its signals.
export OMPI_MCA_odls_base_sigkill_timeout=8
start mpirun-TERM 2 comm.sleep_ms=50
begun
kill -TERM $job
ends "stops after SIGTERM to mpirun" 1 60
status_is stopped
saved
unset OMPI_MCA_odls_base_sigkill_timeout

# While saving. The file that is being written is completed, and no further step is run.
for signal in TERM USR2; do
  start "saving-$signal" 2 checkpoint.every_steps=5
  check "$name: starts to save" wait_for 60 compgen -G "$work/$name/checkpoints/*"
  kill -$signal "$(rank 0)"
  ends "stops when signalled while saving" 75 60
  status_is stopped
  saved
  check "$name: every checkpoint is intact" \
    bash -c "for f in '$work/$name'/checkpoints/step-*.h5; do '$lockstep' checkpoint verify \$f || exit 1; done"
done

# Further Ctrl-C while saving. The second one is answered with a message, and the save is completed. The third one ends
# the run at once, and the status is not that of a completed run.
wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
undisturbed=("${command_of[@]}")
saves_for_ever() { # NAME: saving waits as long as the file $work/holds exists
  touch "$work/holds"
  command_of=(env LD_PRELOAD="$wrapper" FAULT_PATH="$work/$1/checkpoints" FAULT_CALLS=fsync FAULT_COUNT=0 FAULT_ERROR=WAIT
    FAULT_WHEN="$work/holds" "${undisturbed[@]}")
}
says() { grep -q "$1" "$out"; }
is_status() { grep -qx "$1" "$work/$name/status"; }
interrupt_twice() { # interrupt_twice [PROCESS]: by default, rank 0
  begun
  local process=${1:-$(rank 0)}
  kill -INT "$process"
  check "$name: the first Ctrl-C is answered" wait_for 30 says 'SIGINT received: the run saves and stops'
  kill -INT "$process"
  check "$name: and so is the second" wait_for 30 says 'SIGINT received again: .* writes its checkpoint; another Ctrl-C ends it at once'
  check "$name: the status is already that of a run that was not saved" wait_for 30 is_status failed
}
saves_for_ever patient
start patient 2
interrupt_twice
rm "$work/holds"
ends "stops after the second Ctrl-C" 75 60
status_is stopped
saved

saves_for_ever impatient
start impatient 2 checkpoint.every_steps=2
interrupt_twice
kill -INT "$(rank 0)"
ends "ends at the third Ctrl-C" 130 10
status_is failed
rm "$work/holds"
command_of=("${undisturbed[@]}")
check "$name: the same command starts again" launch 2 run.name="$name" checkpoint.every_steps=2 train.max_steps=3
status_is done

# Without mpirun, the process ends as if SIGINT had ended it.
saves_for_ever alone
name=alone out=$work/alone.out
(exec "${command_of[@]}" run.name=alone) >"$out" 2>&1 &
job=$!
interrupt_twice $job
kill -INT $job
ends "ends at the third Ctrl-C" 130 10
status_is failed
rm "$work/holds"

# scripts/launch does the same when a terminal sends Ctrl-C to it. A shell starts background jobs with that signal
# ignored.
launcher=(env --default-signal=INT scripts/launch)
for times in 2 3; do
  saves_for_ever "launch-INT-$times"
  start "launch-INT-$times" 2
  begun
  kill -INT $job
  check "$name: the first Ctrl-C is passed on" wait_for 30 says 'SIGUSR2 received: the run saves and stops'
  kill -INT $job
  check "$name: the second is answered" wait_for 30 says 'launch: the run finishes its step and writes its checkpoint; another Ctrl-C ends it'
  if ((times == 2)); then
    rm "$work/holds"
    ends "stops after the second Ctrl-C" 75 60
    status_is stopped
    saved
  else
    kill -INT $job
    ends "ends at the third Ctrl-C" 1 20
    status_is failed
  fi
done
rm "$work/holds"
launcher=()
command_of=("${undisturbed[@]}")

# A disk that is full except for the checkpoint: the run was saved, so it counts as stopped, not as failed.
for file in status metrics.json; do
  command_of=(env LD_PRELOAD="$wrapper" FAULT_PATH="$work/full-$file/$file." FAULT_CALLS=open,write FAULT_COUNT=0 FAULT_ERROR=ENOSPC
    FAULT_WHEN="$work/full" "${undisturbed[@]}")
  start "full-$file" 2
  begun
  touch "$work/full"
  kill -USR2 "$(rank 0)"
  ends "stops on a disk without space for RUN/$file" 75 60
  status_is stopped
  saved
  rm "$work/full"
done
prints "the loss of the summary is reported" 'warning: the summary was not written: .*metrics.json.*No space left on device'
command_of=("${undisturbed[@]}")
check "a disk without space for the lock" refused 1 'cannot write .*full-lock/lock: No space left on device' env LD_PRELOAD="$wrapper" \
  FAULT_PATH="$work/full-lock/lock" FAULT_CALLS=write FAULT_ERROR=ENOSPC "${command_of[@]}" run.name=full-lock
check "  is an error with a remedy" grep -q 'remedy: .* check the free space' "$work/.refused"
check "  and leaves no lock, for whose owner the next start would wait" test ! -e "$work/full-lock"

# While evaluating. The evaluation is interrupted, and the next start repeats it, both in the middle of a run and at its
# end. The checkpoint equals that of an undisturbed run.
evaluations() { grep -c '"event":"evaluation"' "$work/$name/metrics.jsonl"; }
long=(data.validation=synthetic evaluation.every_steps=2 evaluation.batch_per_rank=1 data.synthetic_samples=96000)
stopped_while_evaluating() { # NAME SIGNAL STEPS: stopped after step 2 of STEPS
  start "$1" 2 "${long[@]}" train.max_steps="$3"
  check "$name: starts" wait_for 60 step_is 2
  kill -$2 "$(rank 1)"
  ends "stops when signalled while evaluating" 75 60
  status_is stopped
  saved
  prints "the evaluation is interrupted" 'the evaluation after step 2 was interrupted'
  check "$name: it is not reported" test "$(evaluations)" = 0
}
check "undisturbed: trains" launch 2 run.name=undisturbed "${long[@]}" train.max_steps=2
stopped_while_evaluating evaluating-last USR2 2
check "$name: the same command resumes" launch 2 run.name="$name" "${long[@]}" train.max_steps=2
status_is done
check "$name: it is evaluated once" test "$(evaluations)" = 1
check "$name: the checkpoint equals that of the undisturbed run" cmp "$work/$name/checkpoints/step-00000002.h5" \
  "$work/undisturbed/checkpoints/step-00000002.h5"
check "$name: it is the best checkpoint" test "$(readlink "$work/$name/checkpoints/best")" = step-00000002.h5
check "$name: a finished run has nothing to do" launch 2 run.name="$name" "${long[@]}" train.max_steps=2
check "$name: it is not evaluated again" test "$(evaluations)" = 1
stopped_while_evaluating evaluating TERM 1000
start evaluating 2 "${long[@]}" train.max_steps=3
ends "the same command resumes" 0 60
check "$name: and repeats the interrupted evaluation" test "$(evaluations)" = 2

# While starting. Nothing was trained, so nothing is saved; the same command starts the run.
catches_sigterm() { # tests bit 14 of the signals that rank 1 catches
  local mask
  mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$(rank 1)/status" 2>/dev/null)
  ((0x${mask:-0} & 0x4000))
}
for signal in TERM USR2; do
  start "starting-$signal" 2
  check "$name: the ranks are running" wait_for 60 catches_sigterm
  kill -$signal "$(rank 1)"
  ends "stops when signalled while starting" 75 60
  status_is stopped
  prints "it is reported" 'stopped by a signal before the first step'
done
check "$name: the same command starts the run" launch 2 run.name="$name" train.max_steps=2
status_is done

# A start that is refused changes nothing: the status is still that of the run.
check "$name: a start that is refused" refused 2 'optimizer.learning_rate' launch 1 run.name="$name" train.max_steps=4 \
  optimizer.learning_rate=0.3
status_is done
check "$name: its log has no word of it" bash -c "! grep -q resume_changed '$work/$name/log.txt'"

# A rank that does not respond counts as lost.
start silent 2 comm.watchdog_seconds=5
begun
stopped=$(rank 1)
kill -STOP "$stopped"
kill -USR2 "$(rank 0)"
ends "ends when a rank does not respond" 1 60
kill -KILL "$stopped" 2>/dev/null
prints "the rank is named" 'for rank 1 on .* has not responded'
status_is failed

finish
