#!/usr/bin/env bash
# timeout: 300
# Files of a run that somebody edits, removes or replaces: between two starts, and while it trains.
source test/faults/common.sh
export LOCKSTEP_CACHE=none
train() { timeout -k 2 20 "$lockstep" train "${tiny[@]}" "$@"; }

# ---- Between two starts ----
check "a run" train run.name=base train.max_steps=2
copy() { rm -rf "$work/a" && cp -a "$work/base" "$work/a"; }
resumes() { train run.name=a train.max_steps=3 && grep -qa 'resumed from .*step 2' "$work/a/log.txt"; }
for file in config.yaml status log.txt metrics.jsonl metrics.json lock; do
  for kind in mkdir mkfifo; do
    copy
    rm -f "$work/a/$file"
    $kind "$work/a/$file"
    check "$file made with $kind" refused 1 "a/$file is not a regular file" train run.name=a train.max_steps=3
    check "  is refused as a problem of the run directory" grep -qF '[run_directory]' "$work/.refused"
    check "  and nothing is changed" diff -r --exclude="$file" "$work/base" "$work/a"
    rm -rf "${work:?}/a/$file"
    check "  without it, the run resumes" resumes
  done
done
for folder in tensorboard usage; do
  copy
  rm -rf "${work:?}/a/$folder"
  touch "$work/a/$folder"
  check "a file in place of the folder $folder" refused 1 '\[run_directory\]' train run.name=a train.max_steps=3 \
    log.tensorboard=true log.usage_seconds=1
  check "  is refused before anything is changed" diff -r --exclude="$folder" "$work/base" "$work/a"
done
for file in config.yaml status log.txt metrics.jsonl metrics.json checkpoints/latest; do
  copy
  rm -f "$work/a/$file"
  check "a run without $file resumes" resumes
done
for file in status log.txt metrics.jsonl metrics.json; do
  copy
  head -c 3000 /dev/urandom >"$work/a/$file"
  check "a run with a damaged $file resumes" resumes
done
copy
printf 'train: {' >"$work/a/config.yaml"
for text in '' 'train: {' $'\x01'; do
  printf '%s' "$text" >"$work/a/config.yaml"
  for command in evaluate report compare; do
    check "$command: a config.yaml of ${#text} bytes is damaged" refused 2 '\[config_unreadable\]' "$lockstep" $command "$work/a"
  done
done
printf 'train: {' >"$work/a/config.yaml"
check "a damaged config.yaml is named" refused 2 'a/config.yaml.*restore it, or remove it' train run.name=a train.max_steps=3

# ---- While it trains ----
has_events() { step_is 5; }
trains() { start "$1" 1 checkpoint.every_steps=5 checkpoint.keep=2 train.epochs=100000 && wait_for 60 has_events; }
ends_with() { kill -USR1 $job; wait $job; local status=$?; job=; [[ $status == "$1" ]] || { tail -5 "$out"; echo "exit status $status"; return 1; }; }
exists() { [[ -s $work/$name/$1 ]]; }
check "a training" trains b
rm "$work/b/log.txt" "$work/b/metrics.jsonl"  # in this order, since a line about the second goes into the first
check "a removed metrics.jsonl gets the next events" wait_for 30 has_events
check "a removed log.txt the next lines" wait_for 30 exists log.txt
check "  which say what happened" wait_for 30 grep -q 'metrics.jsonl was moved or removed' "$work/b/log.txt"
check "  and the run stops as others do" ends_with 75
check "a training" trains c
rm "$work/c/status"
check "a removed status is written again" wait_for 30 exists status
check "  and the run stops as others do" ends_with 75
check "  with its status" grep -qx stopped "$work/c/status"
check "a training" trains d
mkfifo "$work/d/pipe"
mv -f "$work/d/pipe" "$work/d/status" # at once, since the run creates a file that was removed
check "a pipe in place of the status does not hold the run up" ends_with 1
check "  but is an error" grep -qF '[run_directory]' "$out"
check "a training" trains e
mkfifo "$work/e/pipe"
mv -f "$work/e/pipe" "$work/e/metrics.jsonl"
check "a pipe in place of metrics.jsonl neither" ends_with 75
check "  and is reported once" bash -c "(( \$(grep -c 'metrics are not recorded until' '$out') == 1 ))"
finish
