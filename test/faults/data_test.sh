#!/usr/bin/env bash
# timeout: 200
# A data file that is overwritten or truncated while it is in use, and a sector that cannot be read. The file is named, and
# the run ends cleanly.
source test/faults/common.sh

wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
file=$work/images.h5
fresh() { rm -f "$file"; cp data/samples/cifar10_train.h5 "$file"; }
cifar=(data.train="$file" train.global_batch=6 data.prefetch=1)

fresh
start written 2 "${cifar[@]}"
begun
printf 'x' | dd of="$file" bs=1 seek=100000 conv=notrunc status=none
ends "ends" 1 60
prints "the file is named" "images.h5 was written to while it was in use"
status_is failed

fresh
start cut 2 "${cifar[@]}"
begun
truncate -s 200000 "$file"
ends "ends" 1 60
prints "the file is named" 'images.h5 (has changed from [0-9]+ to 200000 bytes|shrank from [0-9]+ to 200000 bytes)'
status_is failed

# Replacing the file by rename is harmless, because the open file stays unchanged.
fresh
start replaced 2 "${cifar[@]}" train.max_steps=40
begun
cp "$file" "$file.new" && mv "$file.new" "$file"
ends "replacing the file by rename is harmless" 0 90
status_is done

fresh
command_of=(env LD_PRELOAD="$wrapper" FAULT_PATH="$file" FAULT_CALLS=pread FAULT_COUNT=0 FAULT_WHEN="$work/fails"
  FAULT_ERROR=EIO "${command_of[@]}")
start unreadable 2 "${cifar[@]}"
begun
touch "$work/fails"
ends "ends" 1 60
prints "file, sample and offset are named" 'images.h5: reading sample [0-9]+ \([0-9]+ bytes at offset [0-9]+\) failed: Input/output error'
status_is failed

finish
