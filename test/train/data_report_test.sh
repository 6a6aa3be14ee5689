#!/usr/bin/env bash
# timeout: 120
# A run that waits for a slow data set says so at its end, in the words of its task; a run with a fast one does not.
source test/support/check.sh

export LOCKSTEP_CACHE=none
wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
small=(jobs/configs/quickstart.yaml model.width=16 data.image_size=16 data.validation= train.global_batch=12 train.epochs=2
  evaluation.every_epochs=0 checkpoint.every_epochs=0 cpu.threads=1 log.every_steps=10 log.progress=false log.tensorboard=false
  run.directory="$work")
train() { "$lockstep" train "${small[@]}" run.name="$1" "${@:2}"; }
share() { sed -nE 's/^  "data_wait_share": ([^,]*),?$/\1/p' "$work/$1/metrics.json"; }
between() { awk -v x="$1" -v low="$2" -v high="$3" 'BEGIN { print x; exit !(x >= low && x <= high) }'; }
reports() { grep -E 'data: [0-9]+ % of the time' "$work/$1/log.txt"; }

# Each sample is one call of pread, which the wrapper delays by 5 ms: at most 200 images/s for one reader.
check "trains on a slow data set" env LD_PRELOAD="$wrapper" FAULT_PATH=cifar10_train FAULT_CALLS=pread FAULT_COUNT=0 \
  FAULT_ERROR=SLEEP "$lockstep" train "${small[@]}" run.name=slow train.max_steps=60
check "  the end of the log tells how slow it is" \
  grep -qE 'data: [0-9]+ % of the time; 1 of 1 reader busy, [0-9]+ images/s per reader; more (readers|cores per rank) would help' "$work/slow/log.txt"
check "  once" test "$(reports slow | wc -l)" = 1
check "  so does the summary" between "$(share slow)" 0.3 1

figure() { sed -nE 's/^  "'"$2"'": ([^,]*),?$/\1/p' "$work/$1/metrics.json"; }
check "  with the readers" test "$(figure slow data_readers)" = 1
check "  how many were busy" between "$(figure slow data_busy_readers)" 0.8 1
check "  and their rate" between "$(figure slow data_samples_per_second_per_reader)" 1 200

# The clock of the program runs 100 times as fast: about 60 steps of 60 ms are several minutes. Only the last one is logged.
check "trains for some minutes" env LD_PRELOAD="$wrapper" FAULT_PATH=cifar10_train FAULT_CALLS=pread FAULT_COUNT=0 \
  FAULT_ERROR=SLEEP FAULT_CLOCK=100 "$lockstep" train "${small[@]}" run.name=minutes train.max_steps=60 log.every_steps=1000
check_output=$work/minutes/log.txt
check "  no step but the last is logged" test "$(grep -c '| loss' "$work/minutes/log.txt")" = 1
check "  but the log reports several times" test "$(reports minutes | wc -l)" -ge 3
check "  as often as a minute passes, and at the end" between "$(reports minutes | wc -l)" 2 \
  "$(awk -v s="$(figure minutes seconds)" 'BEGIN { print int(s / 60) + 1 }')"
check_output=$work/.check

check "trains on a fast data set" train fast train.max_steps=1000
check "  for more than a second" between "$(sed -nE 's/^  "seconds": ([^,]*),?$/\1/p' "$work/fast/metrics.json")" 1 1000
check "  the log does not mention the data" test -z "$(reports fast)"
check "  and the summary tells why" between "$(share fast)" 0 0.05
finish
