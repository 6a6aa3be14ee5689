#!/usr/bin/env bash
# timeout: 300
# cores: 0
# Too little memory, in every phase of a command: whatever `ulimit -v` is, the command succeeds, or it ends with 1 and
# out_of_memory, names the limit, and RUN/status is `failed` or was never written. Also crashes, too few threads, and a
# rank that the system kills for lack of memory.
source test/faults/common.sh
export LOCKSTEP_CACHE=none OMP_NUM_THREADS=1

limited() { (ulimit -v "$1"; exec timeout 60 "${@:2}"); }
# holds KIB COMMAND...: true if the command behaves as described above; its output is in $work/.refused
holds() {
  local status
  limited "$@" >"$work/.refused" 2>&1
  status=$?
  echo "ulimit -v $1: status $status" | cat "$work/.refused" - 
  case $status in
    0) ;;
    1) grep -q '\[out_of_memory\]' "$work/.refused" && grep -q 'ulimit -v' "$work/.refused" ;;
    *) false ;;
  esac
}
trains() { # KIB KEY=VALUE...: `holds`, and RUN/status agrees
  rm -rf "$work/limited"
  holds "$1" "${command_of[@]}" run.name=limited train.max_steps=4 checkpoint.every_steps=2 "${@:2}" || return 1
  local found
  found=$(cat "$work/limited/status" 2>/dev/null)
  if grep -q out_of_memory "$work/.refused"; then [[ -z $found || $found == failed ]]; else [[ $found == done ]]; fi
}
for kib in 40000 60000 80000 100000 120000 140000 160000 180000 200000 220000 240000 260000 300000 400000; do
  check "train with ulimit -v $kib" trains $kib
done

# A crash is recorded, and ends the process as the signal demands.
name=crashed out=$work/crashed.out
("${command_of[@]}" run.name=crashed) >"$out" 2>&1 &
job=$!
begun
kill -SEGV $job
ends "ends as a crash" 139 20
prints "it is reported" '\[internal\]'
status_is failed
finish
