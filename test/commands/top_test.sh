#!/usr/bin/env bash
# lockstep top: the state of a run from its files, while it trains and afterwards; runs that have logged nothing or are damaged.
source test/support/check.sh

export LOCKSTEP_CACHE=none
train() {
  ranks=$1; shift
  mpirun --oversubscribe -n "$ranks" "$lockstep" train jobs/configs/quickstart.yaml model.width=16 data.train=synthetic \
    data.validation=synthetic data.image_size=8 data.synthetic_samples=48 train.global_batch=12 train.epochs=2 cpu.threads=1 \
    log.every_steps=1 log.progress=false run.directory="$work" "$@"
}
top() { "$lockstep" top "$@" >"$work/text" 2>"$work/errors"; }
shows() { grep -Eq -- "$1" "$work/text" || { cat "$work/text" "$work/errors"; return 1; }; }
shows_not() { ! grep -Eq -- "$1" "$work/text"; }
refuses() { ! top "$1" && grep -q "$2" "$work/errors"; }

check "trains on two ranks" train 2 run.name=a
check "shows the run" top "$work/a"
check "  its status" shows '^/.*/a   done   metrics written [0-9]+ s ago$'
check "  how far it is" shows '^step 8 of 8 \[={30}\] 100 %$'
check "  its figures" shows 'epoch 2   loss [0-9.]+   accuracy [0-9.e-]+   learning rate '
check "  its speed" shows '^[0-9.]+ samples/s   [0-9.e-]+ s per step   [0-9.]+ [GT]FLOP/s$'
check "  the evaluation" shows '^evaluated after step 8:   loss [0-9.]+'
check "  the curve" shows '^ +[0-9.]+ \|.*\*'
check "  its steps" shows 'loss +step 1 +8$'
for rank in 0 1; do
  check "  rank $rank, with its host and its waiting times" \
    shows "^ +$rank  $(hostname | cut -c1-16) +[0-9.]+ +[0-9.]+ ms +[0-9]+ % +[0-9.]+ ms +[0-9]+ % +[0-9.e+]+ MiB +[0-9.]+ %"
done
check "  without escape sequences" shows_not $'\033'
check "once more" top --once "$work/a/"

# A run in progress: the line that is still being written does not count.
cp -r "$work/a" "$work/b"
echo running >"$work/b/status"
grep '"event":"step"' "$work/a/metrics.jsonl" | head -n 4 >"$work/b/metrics.jsonl"
printf '{"event":"step","step":5,"lo' >>"$work/b/metrics.jsonl"
check "a run in progress" top "$work/b"
check "  is running" shows '/b   running '
check "  is half done" shows '^step 4 of 8 \[={15} {15}\] 50 %   remaining: [0-9]+ s$'
check "  was not evaluated" shows_not evaluated
lock() { # PID START: a lock of this process of this host
  printf 'host %s\npid %s\nprocess_start %s\nslurm_job -\nslurm_restarts 0\nsince_unix 1700000000\nheartbeat 000000000001\n' \
    "$(hostname)" "$1" "$2" >"$work/b/lock"
}
lock $$ "$(awk '{print $22}' /proc/$$/stat)"
check "a run whose process exists" top "$work/b"
check "  is running" shows '/b   running   '
lock $$ 1
check "a run whose process is gone" top "$work/b"
check "  is shown as lost" shows "/b   running, but its job no longer exists: process $$ on "
check "  and has no time remaining" shows_not remaining
rm "$work/b/lock"
echo stopped >"$work/b/status"
check "a stopped run" top "$work/b"
check "  has no time remaining" shows '^step 4 of 8 \[={15} {15}\] 50 %$'
echo running >"$work/b/status"

# On a terminal, the state is redrawn until the run ends.
script -qc "timeout 20 '$lockstep' top --every 0.2 '$work/b'" "$work/typescript" >"$work/terminal" &
sleep 1.5
cp "$work/a/metrics.jsonl" "$work/b/metrics.jsonl"
echo done >"$work/b/status"
check "on a terminal it ends with the run" wait $!
check "  is drawn several times" bash -c '(($(grep -c "metrics written" "$0") >= 3))' "$work/terminal"
check "  shows the end" grep -q 'step 8 of 8' "$work/terminal"

: >"$work/b/metrics.jsonl"
check "a run that has logged nothing" top "$work/b"
check "  is explained" shows 'No step has been logged yet'
rm "$work/b/metrics.jsonl" "$work/b/status"
check "a run without files" top "$work/b"
check "  is explained" shows 'no status   no metrics yet$'
printf 'null\n{"event":"step"}\n{"event":"step","step":"x","per_rank":3,"loss":null}\n[]\n\n' >"$work/b/metrics.jsonl"
check "damaged lines do no harm" top "$work/b"
check "a folder that does not exist is refused" refuses "$work/c" 'there is no run'
check "a folder that is no run is refused" refuses "$work" 'is not a run directory'
finish
