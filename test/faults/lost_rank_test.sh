#!/usr/bin/env bash
# timeout: 600
# cores: 0
# A rank is killed in each phase, or stopped. The other ranks end with status 1 and report its number and the collective
# in which they waited, the newest checkpoint is good, and the same command resumes from it. mpirun would end the other
# ranks within two seconds; here, except in the last runs, it leaves them alone (recovery). A preloaded wrapper kills
# the rank at a call that belongs to the phase, and reports that (fault_injection.cpp).
source test/faults/common.sh

ordinary=("${command_of[@]}")
with_recovery=(sh -c '"$0" "$@"; echo "status $? of rank $OMPI_COMM_WORLD_RANK"')
wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
large=(data.image_size=16 train.global_batch=24 checkpoint.every_steps=2 checkpoint.keep=2)

# lost RANK SECONDS [COLLECTIVE]: after this rank was killed, all others end within SECONDS
lost() {
  local end=$((SECONDS + $2))
  while [[ -n $(ranks_of $job) ]] && ((SECONDS <= end)); do sleep 0.1; done
  check "$name: the other ranks end" test -z "$(ranks_of $job)"
  wait_for 20 false
  wait $job 2>/dev/null
  prints "with status 1" "status 1 of rank [^$1]"  # the first rank to fail ends the job, and thus the others
  prints "the rank and the collective are named" \
    "rank $1 on .* has died: its process ended while rank [0-2] on .* was in '(${3:-bucket [0-9]+ of [0-9]+|loss|barrier|all_gather|any|broadcast})'"
  prints_whole_error comm_rank_died
  status_is failed
}
# The error consists of its three lines, whether the main thread or the communication thread noticed the missing rank.
prints_whole_error() {
  check "$name: with its remedy and its code" bash -c 'grep -A2 "^lockstep: rank [0-9] on .*: rank [0-9] on " "$0" |
    sed -n "2p;3p" | tr "\n" " " | grep -q "^  remedy: see .*  \[$1\] $"' "$out" "$1"
  check "$name: in the log too" grep -q "error: rank .*\[$1\]" "$work/$name/log.txt"
}
resumes_from_newest() {
  command_of=("${ordinary[@]}")
  unset OMPI_MCA_orte_enable_recovery
  check "$name: the newest checkpoint is good" "$lockstep" checkpoint verify "$work/$name/checkpoints/latest"
  resumes 2 2 "$@"
}
# killed_in CALL NAME RANK KEY=VALUE...: kills RANK at the 5th such call after the first checkpoint is complete
killed_in() {
  local fault=(LD_PRELOAD="$wrapper" FAULT_CALLS="$1" FAULT_ERROR=KILL FAULT_RANK="$3" FAULT_FIRST=5
    FAULT_PATH="$work/$2/checkpoints" FAULT_WHEN="$work/$2/checkpoints/latest")
  export OMPI_MCA_orte_enable_recovery=1
  command_of=("${with_recovery[@]}" env "${fault[@]}" "${ordinary[@]}")
  start "$2" 3 "${@:4}"
  check "$name: a rank is killed" wait_for 60 grep -q "fault_injection: killed in $1" "$out"
  lost "$3" 60
  resumes_from_newest "${@:4}"
}
# Checkpoints are written in the background, so the first may be complete only some steps after its save was started.
saved() { step_is 3 && [[ -e $work/$name/checkpoints/latest ]]; }

if has_onednn; then
  killed_in forward in-forward 0 "${large[@]}"
  killed_in backward in-backward 1 "${large[@]}"
fi
killed_in sum in-a-sum-by-mpi 2 "${large[@]}" data.image_size=8 comm.backend=mpi
killed_in pwrite while-saving 1 "${large[@]}" data.image_size=8

# In shared memory, a collective makes no calls that a wrapper could intercept. Here each collective takes a second, so
# that steps do almost nothing else.
export OMPI_MCA_orte_enable_recovery=1
command_of=("${with_recovery[@]}" "${ordinary[@]}")
asleep=("${large[@]}" data.image_size=8 comm.bucket_mb=100 comm.sleep_ms=1000)
start in-a-collective 3 "${asleep[@]}"
check "$name: starts" wait_for 60 saved
kill -KILL "$(rank 1)"
lost 1 60
resumes_from_newest "${asleep[@]}"

# An evaluation with sharded weights does little else than gather them.
gathers=("${asleep[@]}" train.shard=parameters train.micro_batches=3 data.validation=synthetic evaluation.every_steps=2)
export OMPI_MCA_orte_enable_recovery=1
command_of=("${with_recovery[@]}" "${ordinary[@]}")
start in-a-gather 3 "${gathers[@]}"
check "$name: starts" wait_for 60 step_is 2
sleep 5
kill -KILL "$(rank 1)"
lost 1 60 'weights from .* on'
command_of=("${ordinary[@]}")
unset OMPI_MCA_orte_enable_recovery

# As on a cluster, mpirun ends the other ranks after they have reported the loss.
command_of=("${ordinary[@]}")
start ordinary 3 "${large[@]}"
check "$name: starts" wait_for 60 saved
kill -KILL "$(rank 1)"
ends "ends" 137 60
prints "the rank is named" 'rank 1 on .* has died'
prints_whole_error comm_rank_died
status_is failed
resumes_from_newest "${large[@]}"

# A rank that is stopped but not dead. Only the watchdog can detect that.
start stopped 2 checkpoint.every_steps=2 comm.watchdog_seconds=5
check "$name: starts" wait_for 60 saved
stopped=$(rank 1)
kill -STOP "$stopped"
ends "ends" 1 60
prints "the rank and the collective are named" "has waited [0-9]+ s in '(bucket|loss|all_gather|any|barrier)[^']*' .* for rank 1 on .* has not responded"
prints_whole_error comm_rank_lost
status_is failed
resumes_from_newest

finish
