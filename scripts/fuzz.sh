#!/usr/bin/env bash
# Runs each fuzzer of BUILD/fuzz for SECONDS of processor time on one core, starting from the files of test/fuzz/corpus and
# from the inputs that earlier runs left in BUILD/corpus. Exit status 1 if a fuzzer found something.
#
#   scripts/fuzz.sh BUILD SECONDS [READER...]
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: fuzz.sh BUILD SECONDS [READER...]}
seconds=${2:?usage: fuzz.sh BUILD SECONDS [READER...]}
shift 2
readers=("$@")
((${#readers[@]})) || mapfile -t readers < <(cd test/fuzz/corpus && ls)
export UBSAN_OPTIONS=print_stacktrace=1
export LSAN_OPTIONS=suppressions=$PWD/scripts/lsan.supp:print_suppressions=0

failed=0
for reader in "${readers[@]}"; do
  corpus=$build/corpus/$reader
  mkdir -p "$corpus" "$build/findings"
  echo "fuzz: $reader, $seconds s"
  {
    (
      ulimit -S -t "$seconds"  # SIGXCPU ends the fuzzer
      exec nice "$build/fuzz/$reader" -timeout=60 -max_len=4096 -rss_limit_mb=4096 \
        -artifact_prefix="$build/findings/$reader-" "$corpus" "test/fuzz/corpus/$reader"
    ) >"$build/$reader.log" 2>&1
    status=$?
  } 2>/dev/null  # hides bash's message about the signal
  if [[ $status == $((128 + $(kill -l XCPU))) ]]; then
    echo "  inputs: $(grep -oE '^#[0-9]+' "$build/$reader.log" | tail -1 | tr -d '#') or more"
  else
    tail -50 "$build/$reader.log"
    echo "fuzz: $reader FAILED; the input is in $build/findings, and the whole log is $build/$reader.log"
    failed=1
  fi
done
exit $failed
