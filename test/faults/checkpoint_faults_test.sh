#!/usr/bin/env bash
# timeout: 400
# Real faults around checkpoints. Each is reported in a message, the last good checkpoint stays intact, and the same command
# resumes from it.
source test/support/check.sh
check_output=$work/log
wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
trap 'umount "$work/small" 2>/dev/null; rm -rf "$work"' EXIT
prints() { check "$1" grep -Eq "$2" "$work/log"; }

small=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation= data.image_size=8 data.synthetic_samples=48
  train.global_batch=12 train.epochs=5 train.check_replicas_every_steps=0 schedule.kind=constant
  checkpoint.every_epochs=0 checkpoint.every_steps=2 cpu.threads=1 log.progress=false log.tensorboard=false)
# run STATUS RANKS ARGUMENTS...: trains and compares the exit status; the output is in $work/log
run() {
  mpirun --oversubscribe --bind-to none -n "$2" "$lockstep" train "${small[@]}" run.directory="$work" "${@:3}" \
    >"$work/log" 2>&1 </dev/null
  local status=$?
  [[ $status == "$1" ]] || { echo "status $status" >>"$work/log"; return 1; }
}
with() { export FAULT_PATH="$work" "$@" LD_PRELOAD="$wrapper"; }
without() { unset LD_PRELOAD FAULT_PATH FAULT_CALLS FAULT_FIRST FAULT_COUNT FAULT_ERROR FAULT_RANK; }
flip_bit() { # FILE OFFSET
  local byte
  byte=$(od -An -tu1 -j "$2" -N 1 "$1")
  printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
step() { printf '%s/%s/checkpoints/step-%08d.h5' "$work" "$1" "$2"; }

is_in_the_log() { local text; for text; do grep -q "$text" "$work/damaged/log.txt" || return 1; done; }

# Damaged files. Each is reported by name, and the newest good checkpoint before it is used.
check "trains" run 0 2 run.name=damaged train.max_steps=8 checkpoint.keep=0
check "leaves no lock" test ! -e "$work/damaged/lock"
size=$(stat -c %s "$(step damaged 8)")
flip_bit "$(step damaged 8)" $((size / 2))
truncate -s -1000 "$(step damaged 6)"
: >"$work/damaged/checkpoints/empty.h5"
printf '\x89HDF\r\n\x1a\n of another program' >"$work/damaged/checkpoints/foreign.h5"
: >"$work/damaged/checkpoints/step-00000009.h5.partial"
check "skips damaged files" run 0 2 run.name=damaged train.max_steps=5
prints "  a file with a flipped bit is named, with the tensor" 'step-00000008.h5 is damaged in /[a-z]+/[a-z]'
prints "  a truncated file is named" 'step-00000006.h5 is truncated'
prints "  an empty file is named" 'empty.h5 is empty'
prints "  a foreign file is named" 'foreign.h5 is not a checkpoint'
prints "  the one before is used" 'resumed from .*step-00000004.h5'
check "  all of them are in RUN/log.txt too" \
  is_in_the_log '00000008.h5 is damaged' '00000006.h5 is truncated' 'empty.h5 is empty' 'foreign.h5 is not'
check "  the file of an interrupted save is removed" test ! -e "$work/damaged/checkpoints/step-00000009.h5.partial"
rm "$work/damaged/checkpoints/"step-0000000[245].h5
check "without any good checkpoint, the run is rejected" run 1 1 run.name=damaged
prints "  with the remedy" '\-\-fresh'
check "another model is rejected" run 2 1 run.name=other model.classes=7 checkpoint.resume_from="$(step damaged 8)"

# One rank cannot write. Training continues, and tries again at the next checkpoint.
with FAULT_CALLS=pwrite FAULT_ERROR=ENOSPC FAULT_RANK=1
check "a full disk on one rank: training continues" run 0 2 run.name=full train.max_steps=4
without
prints "  it is reported immediately, with the rank" 'checkpoint of step 2 was not written: rank 1 on .*No space left on device; this run has no other checkpoint yet'
check "  the next checkpoint is written" "$lockstep" checkpoint verify "$(step full 4)"
check "  nothing is left of the failed one" test ! -e "$(step full 2)" -a ! -e "$(step full 2).partial"

# The last save fails: the exit status is 1, the last good checkpoint is named and intact, and the same command resumes.
while read -r call error reason; do
  with FAULT_CALLS="$call" FAULT_ERROR="$error" FAULT_COUNT=0 FAULT_PATH="$work/full/checkpoints"
  check "$error at every $call to the end: status 1" run 1 2 run.name=full train.max_steps=6
  without
  prints "  the reason and the last good checkpoint are named" "step 6, could not be written: .*$reason; the newest good checkpoint is .*step-00000004.h5"
  check "  which is intact" "$lockstep" checkpoint verify "$(step full 4)"
done <<'FAULTS'
pwrite EDQUOT Disk quota exceeded
open EROFS Read-only file system
fsync EIO Input/output error
FAULTS
check "the same command resumes" run 0 2 run.name=full train.max_steps=6
prints "  from the last good one" 'resumed from .*step-00000004.h5'

with FAULT_CALLS=pwrite FAULT_ERROR=REMOVE FAULT_RANK=0 FAULT_PATH="$work/gone/checkpoints"
check "the directory is removed while saving: training continues" run 0 2 run.name=gone train.max_steps=4
without
prints "  it is reported immediately" 'checkpoint of step 2 was not written: .*No such file or directory'
check "  the next checkpoint is written" "$lockstep" checkpoint verify "$(step gone 4)"

# A file system that is really full.
mkdir "$work/small"
if mount -t tmpfs -o size=9m tmpfs "$work/small" 2>/dev/null; then
  check "a full file system: status 1" run 1 1 run.name=small/run train.max_steps=4
  prints "  the last good checkpoint is named" 'No space left on device; the newest good checkpoint is .*step-00000002.h5'
  check "  and intact" "$lockstep" checkpoint verify "$(step small/run 2)"
  umount "$work/small"
else
  echo "skipped: a file system cannot be mounted here, so none can be full"
fi

# Two jobs in one run directory.
"$lockstep" train "${small[@]}" run.directory="$work" run.name=shared train.epochs=1000 >"$work/first" 2>&1 &
first=$!
for ((i = 0; i < 300; ++i)); do [[ -s $work/shared/checkpoints/latest ]] && break; sleep 0.2; done
check "a second job is rejected" run 1 1 run.name=shared
prints "  the holder is named" "in use by process $first on "
kill -KILL "$first"
wait "$first" 2>/dev/null
check "  the lock of the killed job remains" test -s "$work/shared/lock"
check "  it contains host, process, start, job and heartbeat" test "$(cut -d' ' -f1 "$work/shared/lock" | tr '\n' ' ')" = \
  'host pid process_start slurm_job slurm_restarts since_unix heartbeat '
check "  the next job takes it over" run 0 1 run.name=shared train.epochs=1000 train.max_steps=1
prints "  and reports that" "was left locked by process $first on .*, which no longer runs"
check "  and removes it at the end" test ! -e "$work/shared/lock"

finish
