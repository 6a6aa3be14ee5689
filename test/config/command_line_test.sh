#!/usr/bin/env bash
# The program's own options, its exit statuses, and where messages go.
set -uo pipefail
lockstep=${LOCKSTEP:-build/lockstep}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect STATUS "text on standard output" "text on standard error" ARGUMENTS...
expect() {
  local status=$1 out=$2 err=$3
  shift 3
  "$lockstep" "$@" >"$work/out" 2>"$work/err"
  local got=$?
  if [[ $got != "$status" || $(<"$work/out") != *"$out"* || $(<"$work/err") != *"$err"* ]]; then
    echo "lockstep $*: wanted status $status with \"$out\" and \"$err\"; got status $got with"
    cat "$work/out" "$work/err"
    failed=1
  fi
}
quiet() { # nothing may stand on this stream of the last command
  if [[ -s $work/$1 ]]; then echo "wanted nothing on standard $1:"; cat "$work/$1"; failed=1; fi
}

expect 0 "oneDNN" "" --version; quiet err
expect 0 '"libraries":{' "" --version --json; quiet err
expect 0 "Usage: lockstep" "" --help
expect 0 "Usage: lockstep train" "" train --help
expect 0 "Usage: lockstep data import" "" help data import
expect 0 "* train.global_batch " "" help config; quiet err
expect 2 "" "a command is missing" ; quiet out
expect 2 "" "[usage]" trian; quiet out
expect 2 "" "remedy: see \`lockstep --help\`" train --frehs x.yaml
expect 2 "" "there is no help on nothing" help nothing
expect 2 "" "cannot open absent.yaml: No such file or directory" train absent.yaml; quiet out
expect 2 "" "command line: there is no key train.epoch; the nearest is train.epochs" train train.epoch=3
expect 2 "" "[config_unknown_key]" plan train.epoch=3

printf 'run: {seed: 1}\ntrain:\n  epochs: three\n' >"$work/bad.yaml"
expect 2 "" "bad.yaml:3: train.epochs: wanted a whole number, 1 or more, found \"three\"" train "$work/bad.yaml"

# Under a launcher every rank ends with the same status.
timeout 60 "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n 3 "$lockstep" train train.epoch=3 >"$work/out" 2>"$work/err"
got=$?
if [[ $got != 2 ]] || ! grep -q "the nearest is train.epochs" "$work/err"; then
  echo "3 ranks with an unknown key: wanted status 2, got $got with"
  cat "$work/out" "$work/err"
  failed=1
fi
exit $failed
