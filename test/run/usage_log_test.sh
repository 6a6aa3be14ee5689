#!/usr/bin/env bash
# timeout: 300
# log.usage_seconds in training runs: the files of each node, which are extended when the run is resumed, and are read
# by `lockstep report memory`. A full disk ends only the log.
source test/support/check.sh
host=$(hostname)
small=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation= data.image_size=8 data.synthetic_samples=480
  train.global_batch=12 train.epochs=1 evaluation.every_epochs=0 device=cpu cpu.threads=1 log.progress=false
  log.tensorboard=false log.slow_rank_percent=0 comm.watchdog_seconds=600 run.directory="$work")
# train RANKS ARGUMENTS...: its output goes to $work/log
train() {
  mpirun --oversubscribe --bind-to none -n "$1" "$lockstep" train "${small[@]}" "${@:2}" >"$work/log" 2>&1 </dev/null
  local status=$?
  tail -25 "$work/log"
  return $status
}
check_output=$work/log

check "trains without usage logs" train 1 run.name=off train.max_steps=1
check "  and writes no log" test ! -e "$work/off/usage"

usage=$work/run/usage
check "trains on 2 ranks" train 2 run.name=run log.usage_seconds=0.1 train.max_steps=4
check "a process log of this host" test -s "$usage/process_log_$host.csv"
check "no GPU log on processors" test ! -e "$usage/gpu_memory_log_$host.csv"
check "it has both ranks" test "$(sed 1d "$usage/process_log_$host.csv" | cut -d, -f2 | sort -u | xargs)" = "0 1"
check "it has two processes" test "$(sed 1d "$usage/process_log_$host.csv" | cut -d, -f3 | sort -u | wc -l)" = 2
lines=$(wc -l <"$usage/process_log_$host.csv")
cp "$usage/process_log_$host.csv" "$work/before"
printf '1700000000.000,0,' >>"$usage/process_log_$host.csv" # as left by a run that was killed while it wrote
check "resumes" train 2 run.name=run log.usage_seconds=0.1 train.max_steps=8
check "  and appends to the existing lines" cmp "$work/before" <(head -"$lines" "$usage/process_log_$host.csv")
check "  with new lines" test "$(wc -l <"$usage/process_log_$host.csv")" -gt "$lines"
check "  and four processes in all" test "$(sed 1d "$usage/process_log_$host.csv" | cut -d, -f3 | sort -u | wc -l)" = 4
check "  and one header" test "$(grep -c rank "$usage/process_log_$host.csv")" = 1
check "report memory reads it" bash -c "'$lockstep' report memory '$usage/process_log_$host.csv' >'$work/report' &&
  grep -Eqx '\[process_log - rank 1\] Peak = [1-9][0-9]* MiB, Avg = [0-9]+\.[0-9]{2} MiB, Mode = [1-9][0-9]* MiB' '$work/report'"
check "  with one line per rank" test "$(wc -l <"$work/report")" = 2

# Simulated nodes have the same name, but their files differ.
export LOCKSTEP_RANKS_PER_NODE=2
check "trains on 2 simulated nodes" train 3 run.name=nodes log.usage_seconds=0.1 train.max_steps=3
unset LOCKSTEP_RANKS_PER_NODE
of_node() { sed 1d "$work/nodes/usage/process_log_${host}_node$1.csv" | cut -d, -f2 | sort -u | xargs; }
check "the first node has ranks 0 and 1" test "$(of_node 0)" = "0 1"
check "the second node has rank 2" test "$(of_node 1)" = 2

# A full disk: reported once, and the training run continues to its end.
export FAULT_PATH=$work/full/usage FAULT_CALLS=write FAULT_ERROR=ENOSPC FAULT_COUNT=0
LD_PRELOAD=$(dirname "$lockstep")/test/faults/fault_injection.so check "trains while the disk is full" \
  train 2 run.name=full log.usage_seconds=0.1 train.max_steps=4
unset FAULT_PATH FAULT_CALLS FAULT_ERROR FAULT_COUNT
check "  the full disk is reported once" test "$(grep -c 'log.usage_seconds: .*No space left on device' "$work/log")" = 1
check "  and the run is done" grep -qx done "$work/full/status"

check "an interval that is too short is refused" refused 2 'log.usage_seconds: expected 0 \(never\), or 0.1 or more, found 0.01' \
  "$lockstep" train "${small[@]}" log.usage_seconds=0.01
finish
