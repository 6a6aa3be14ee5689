#!/usr/bin/env bash
# timeout: 300
# cores: 0
# Too little memory, in every phase of a command: whatever `ulimit -v` is, the command succeeds, or it ends with 1 and
# out_of_memory, names the limit, and RUN/status is `failed` or was never written. Also crashes, too few threads, and a
# full /dev/shm.
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
trains_on_two() { # KIB: the same under mpirun, which has its own messages; no rank crashes
  local status found
  rm -rf "$work/limited"
  timeout 60 mpirun --oversubscribe --bind-to none -n 2 bash -c 'ulimit -v "$0"; exec "$@"' "$1" "${command_of[@]}" run.name=limited \
    train.max_steps=4 checkpoint.every_steps=2 >"$work/.refused" 2>&1
  status=$?
  cat "$work/.refused"
  found=$(cat "$work/limited/status" 2>/dev/null)
  case $status in
    0) [[ $found == done ]] ;;
    1) [[ -z $found || $found == failed ]] && grep -q '\[out_of_memory\]' "$work/.refused" ;;
    *) false ;;
  esac
}
# With less, the loader of the system cannot map the libraries. This depends on the size of the program.
least=80000
until limited $least "$lockstep" --version >/dev/null 2>&1 || ((least > 300000)); do ((least += 5000)); done
for ((kib = least; kib < least + 200000; kib += 20000)); do
  check "train with ulimit -v $kib" trains $kib
done
check "train with ulimit -v 400000" trains 400000
for kib in 150000 200000 250000 300000 350000 400000 450000 500000; do
  check "2 ranks with ulimit -v $kib" trains_on_two $kib
done
check "train" "${command_of[@]}" run.name=whole train.max_steps=2
for ((kib = least; kib < least + 160000; kib += 40000)); do
  check "evaluate with ulimit -v $kib" holds $kib "$lockstep" evaluate "$work/whole/checkpoints/latest" data.validation=synthetic cpu.threads=1
  check "checkpoint export with ulimit -v $kib" holds $kib "$lockstep" checkpoint export "$work/whole/checkpoints/latest" \
    "$work/exported-$kib.safetensors"
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

# Too few threads. Only users other than root have this limit.
nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
chmod 711 "$TMPDIR" "$work"
if [[ $(id -u) == 0 ]] && "${nobody[@]}" test -x "$work" -a -x "$lockstep" 2>/dev/null; then
  mkdir -m 777 "$work/any"
  few() { # THREADS: the run is done, or it ends with 1 and names the limit, and a refused start leaves no lock
    local status
    rm -rf "$work/any/run"
    "${nobody[@]}" bash -c 'ulimit -u "$0"; exec "$@"' "$1" "${command_of[@]}" cpu.threads=4 \
      run.directory="$work/any" run.name=run train.max_steps=2 >"$work/.few" 2>&1
    status=$?
    cat "$work/.few"
    [[ -e $work/any/run/status || ! -e $work/any/run/lock ]] || return 1
    case $status in
      0) grep -qx done "$work/any/run/status" ;;
      1) grep -q 'ulimit -u' "$work/.few" && { [[ ! -e $work/any/run/status ]] || grep -qx failed "$work/any/run/status"; } ;;
      *) false ;;
    esac
  }
  for threads in 1 2 3 4 5 6 7 8 9 20; do check "train with ulimit -u $threads" few $threads; done
fi

# /dev/shm is full: checkpoints need it only if it has room.
if unshare --mount true 2>/dev/null; then
  check "a full /dev/shm" unshare --mount bash -c 'mount -t tmpfs -o size=64k tmpfs /dev/shm && ! head -c 1m /dev/zero 2>&1 >/dev/shm/full | grep -q nothing
    exec "$@"' - "${command_of[@]}" run.name=full train.max_steps=4 checkpoint.every_steps=2
  name=full status_is done
fi

finish
