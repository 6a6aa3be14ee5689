#!/usr/bin/env bash
# cores: 0
# The disk fills up while a run of two ranks trains: it continues, reports the first failed save in whole and later ones by
# their number, says once that the log cannot be written, and ends with 1. Needs root, for a file system of its own.
source test/faults/common.sh

mkdir "$work/disk"
mount -t tmpfs -o size=60m tmpfs "$work/disk" 2>/dev/null || exit 77
trap 'if [[ -n $job ]]; then kill -KILL $(ranks_of $job) $job 2>/dev/null; fi; umount "$work/disk"; rm -rf "$work"' EXIT
name=disk/run out=$work/run.out
(exec mpirun --oversubscribe --bind-to none -n 2 "${command_of[@]}" run.name="$name" train.max_steps=200 checkpoint.every_steps=20) \
  >"$out" 2>&1 &
job=$!
begun 10
cat /dev/zero >"$work/disk/filler" 2>/dev/null
# A save that was in progress frees its space when it fails.
until grep -q 'was not written' "$out" || ! kill -0 $job 2>/dev/null; do sleep 0.02; done
cat /dev/zero >>"$work/disk/filler" 2>/dev/null
ends "ends" 1 60
check "the first failed save is reported in whole, and no other" test "$(grep -c 'error: the checkpoint of step [0-9]* was not written: ' "$out")" = 1
prints "the others are counted" 'checkpoint of step 200 was not written for the same reason: [0-9]* in a row'
mentions=$(grep -c 'log cannot be written: .*No space left' "$out")
check "the log is mentioned, but not for each line" test "$mentions" -ge 1 -a "$mentions" -le 10
check "all lines are ours" bash -c "! grep -F 'LOG ERROR' '$out'"
prints "the error of the run" '\[system_call\]'
rm "$work/disk/filler"
check "the same command resumes" launch 2 run.name="$name" train.max_steps=2

finish
