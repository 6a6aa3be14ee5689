#!/usr/bin/env bash
# timeout: 600
# A rank is killed in every phase, or stopped: the others end with status 1 and name it and what they waited for, the
# newest checkpoint is good, and the same command goes on from it. mpirun would end the others by itself within two
# seconds: here it leaves them alone (recovery), but for the last run. Where a rank dies is no guess: a preloaded wrapper
# ends it at a call that belongs to the phase (fault_injection.cpp), and says so.
source test/faults/common.sh

ordinary=("${command_of[@]}")
left_alone=(sh -c '"$0" "$@"; echo "status $? of rank $OMPI_COMM_WORLD_RANK"')
wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
large=(data.image_size=16 train.global_batch=24 checkpoint.every_steps=2 checkpoint.keep=2)

# lost WHICH SECONDS: rank WHICH is killed by now; all others end within that time
lost() {
  local end=$((SECONDS + $2))
  while [[ -n $(ranks_of $job) ]] && ((SECONDS <= end)); do sleep 0.1; done
  check "$name: the others end" test -z "$(ranks_of $job)"
  wait_for 20 false
  wait $job 2>/dev/null
  says "with status 1" "status 1 of rank [^$1]"  # the first ends the job, and with it the others
  says "the rank and what was waited for are named" \
    "rank $1 on .* has died: its process ended while rank [0-2] on .* was in '(bucket [0-9]+ of [0-9]+|loss|barrier|all_gather|any|broadcast)'"
  status_is failed
}
goes_on() {
  command_of=("${ordinary[@]}")
  unset OMPI_MCA_orte_enable_recovery
  check "$name: the newest checkpoint is good" "$lockstep" checkpoint verify "$work/$name/checkpoints/latest"
  continues 2 2 "$@"
}
# killed_in CALL NAME RANK KEY=VALUE...: at the 5th such call after the first checkpoint is whole
killed_in() {
  local fault=(LD_PRELOAD="$wrapper" FAULT_CALLS="$1" FAULT_ERROR=KILL FAULT_RANK="$3" FAULT_FIRST=5
    FAULT_PATH="$work/$2/checkpoints" FAULT_WHEN="$work/$2/checkpoints/latest")
  export OMPI_MCA_orte_enable_recovery=1
  command_of=("${left_alone[@]}" env "${fault[@]}" "${ordinary[@]}")
  start "$2" 3 "${@:4}"
  check "$name: a rank is killed in it" wait_for 60 grep -q "fault_injection: killed in $1" "$out"
  lost "$3" 60
  goes_on "${@:4}"
}
# A checkpoint is written beside the training, so the first may be whole only steps after it was begun.
saved() { step_is 3 && [[ -e $work/$name/checkpoints/latest ]]; }

killed_in forward in-forward 0 "${large[@]}"
killed_in backward in-backward 1 "${large[@]}"
killed_in sum in-a-sum-by-mpi 2 "${large[@]}" data.image_size=8 comm.backend=mpi
killed_in pwrite while-saving 1 "${large[@]}" data.image_size=8

# In shared memory a collective makes no calls: each lasts a second here, and is all that a step does.
export OMPI_MCA_orte_enable_recovery=1
command_of=("${left_alone[@]}" "${ordinary[@]}")
asleep=("${large[@]}" data.image_size=8 comm.bucket_mb=100 comm.sleep_ms=1000)
start in-a-collective 3 "${asleep[@]}"
check "$name: begins" wait_for 60 saved
kill -KILL "$(rank 1)"
lost 1 60
goes_on "${asleep[@]}"

# As it is on a cluster: mpirun ends the others, after they have spoken.
command_of=("${ordinary[@]}")
start ordinary 3 "${large[@]}"
check "$name: begins" wait_for 60 saved
kill -KILL "$(rank 1)"
ends "ends" 137 60
says "the rank is named" 'rank 1 on .* has died'
status_is failed
goes_on "${large[@]}"

# Stopped, not dead: only the watchdog can tell.
start stopped 2 checkpoint.every_steps=2 comm.watchdog_seconds=5
check "$name: begins" wait_for 60 saved
stopped=$(rank 1)
kill -STOP "$stopped"
ends "ends" 1 60
says "the rank and what was waited for are named" "has waited [0-9]+ s in '(bucket|loss|all_gather|any|barrier)[^']*' .* for rank 1 on .* has not responded"
status_is failed
goes_on

finish
