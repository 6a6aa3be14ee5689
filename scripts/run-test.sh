#!/usr/bin/env bash
# Runs one test for ctest (scripts/run-tests.sh writes the commands): in the environment of tests, with a temporary directory of
# its own and a limit in seconds. Its output is kept in BUILD/test/logs/NAME.log, and NAME.counts gets
# "PASSED FAILED SKIPPED SECONDS".
#
#   scripts/run-test.sh BUILD NAME LIMIT COMMAND...
#
# A program counts as the number of tests that GoogleTest says it ran; a program without such lines counts as one test.
# The exit status is that of the command; 77 means that every test was skipped.
set -uo pipefail
build=$1 name=$2 limit=$3
shift 3
log=$build/test/logs/${name//\//.}.log
mkdir -p "${log%/*}"

export LOCKSTEP=$build/lockstep
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
# Convolution algorithms are not autotuned, so that what a test computes does not depend on the load.
export LOCKSTEP_CACHE=none
# `precision: auto` does not depend on the processor.
export LOCKSTEP_AUTO_PRECISION=fp32
# Tests have more threads and ranks than cores: waiting threads must sleep, not spin.
export OMP_WAIT_POLICY=passive
export GTEST_COLOR=no
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export LSAN_OPTIONS=suppressions=$PWD/scripts/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=suppressions=$PWD/scripts/tsan.supp:ignore_noninstrumented_modules=1

directory=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-test.XXXXXX")
trap 'rm -rf "$directory"' EXIT

begin=$EPOCHREALTIME
TMPDIR=$directory timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null
status=$?
seconds=$(awk -v begin="$begin" -v end="$EPOCHREALTIME" 'BEGIN {printf "%.1f", end - begin}')

# Prints the number in the line "[  PASSED  ] 12 tests." of the program's last run.
count() { sed -n "s/^\[  $1 *\] \([0-9]*\) test.*/\1/p" "$log" | tail -1; }
passed=$(count PASSED) failed=$(count FAILED) skipped=$(count SKIPPED)
if [[ -z $passed$failed$skipped ]]; then
  case $status in 0) passed=1 ;; 77) skipped=1 ;; *) failed=1 ;; esac
elif [[ $status != 0 && ${failed:-0} == 0 ]]; then
  failed=1 # a program that fails without a failed test counts as one failure
fi
echo "${passed:-0} ${failed:-0} ${skipped:-0} $seconds" >"${log%.log}.counts"

if ((status == 124 || status == 137)); then echo "$name: ended after its limit of $limit s"; fi
if ((${failed:-0})); then
  if [[ $(wc -l <"$log") -gt 400 ]]; then echo "... the beginning is in $log"; fi
  tail -400 "$log"
  exit $((status ? status : 1))
fi
if ((${passed:-0} == 0 && ${skipped:-0} > 0)); then
  grep -im1 skip "$log"
  exit 77
fi
exit "$status"
