#!/usr/bin/env bash
# Runs tests through ctest and ends with the line `N passed, N failed, N skipped`, which counts GoogleTest's tests.
#
#   scripts/run-tests.sh [--only PATTERN] [--long | --sanitized] [--limits FACTOR] [--timings FILE] [--results FILE] BUILD
#
# BUILD/test/list names the tests (scripts/list-tests.sh wrote it). From it this script generates BUILD/test/CTestTestfile.cmake,
# with a limit, the number of cores and labels for each test, so that ctest can also be used by hand:
#
#   ctest --test-dir build/test -R conv2d --output-on-failure
#
# --only PATTERN    tests whose name matches the regular expression
# --long            only the tests with `long: yes`, which run with nothing else
# --sanitized       only the tests that run under sanitizers, with limits five times as long
# --limits FACTOR   limits FACTOR times as long, for an emulator
# --timings FILE    writes the seconds of each test, slowest first
# --results FILE    writes the last line there too
#
# Tests find the program in $LOCKSTEP, may write to $TMPDIR (removed afterwards), and run in the repository's root.
set -uo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n 's/^#   \(scripts.*\)/usage: \1/p' "$0" >&2; exit 2; }
results= only=. kind=short factor=1 timings=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --results) results=${2:-} ;;
    --only) only=${2:-} ;;
    --limits) factor=${2:-} ;;
    --timings) timings=${2:-} ;;
    --long | --sanitized) kind=${1#--}; shift; continue ;;
    *) echo "run-tests.sh: unknown option $1" >&2; usage ;;
  esac
  shift 2 || usage
done
(($# == 1)) || usage
command -v ctest >/dev/null || { echo "run-tests.sh: there is no ctest; \`make deps-test\` installs it" >&2; exit 1; }
build=$(realpath "$1")
tests=$build/test
[[ -e $tests/list ]] || { echo "run-tests.sh: $tests/list is missing; \`make tests\` writes it" >&2; exit 1; }

mpirun=${MPIRUN:-mpirun}

# ---- The tests, for ctest. A test takes two slots for each of its cores, and one if it mostly waits (`cores: 0`). There
# are three slots for each core of the machine, since the other tests wait too: for the disk, and for each other.
slots=$((3 * $(nproc)))
logs=$tests/logs
python=.deps/python/bin/python
rm -rf "$logs"
mkdir -p "$logs"
while IFS=$'\t' read -r name program filter ranks limit long sanitizers cores environment source; do
  case $kind in
    short) [[ $long == no ]] || continue ;;
    long) [[ $long == yes ]] || continue ;;
    sanitized) [[ $long == no && $sanitizers != no ]] || continue; limit=$((5 * limit)) ;;
  esac
  limit=$((factor * limit))
  command=()
  if [[ $environment != - ]]; then read -ra command <<<"env ${environment//\{test\}/$tests}"; fi
  case $source in
    *.cpp)
      if [[ $kind == sanitized && $sanitizers != yes ]]; then filter+=$sanitizers; fi
      if [[ $ranks != - ]]; then command+=("$mpirun" --oversubscribe --bind-to none -n "$ranks"); fi
      command+=("$tests/$program" "--gtest_filter=$filter") ;;
    *.sh) command+=(bash "$source") ;;
    *.py)
      if [[ -x $python ]]; then command+=("$python" "$source")
      else command=(bash -c 'echo "skipped: no Python packages; make deps-test installs them"; exit 77'); fi ;;
  esac
  case $cores in 0) processors=1 ;; all) processors=$slots ;; *) processors=$((2 * cores < slots ? 2 * cores : slots)) ;; esac
  printf 'add_test([=[%s]=]' "$name"
  printf ' [=[%s]=]' "$PWD/scripts/run-test.sh" "$build" "$name" "$limit" "${command[@]}"
  printf ')\nset_tests_properties([=[%s]=] PROPERTIES WORKING_DIRECTORY [=[%s]=] LABELS "%s;%s"' "$name" "$PWD" "${name%%/*}" "$kind"
  # run-test.sh ends a test that takes too long; ctest does so if that fails. Without measurements, the longest tests
  # start first.
  printf ' TIMEOUT %s COST %s PROCESSORS %s SKIP_RETURN_CODE 77)\n' $((limit + 60)) "$limit" "$processors"
done <"$tests/list" >"$tests/CTestTestfile.cmake"

begin=$SECONDS
ctest --test-dir "$tests" --parallel "$slots" -R "$only" --output-on-failure --no-tests=error 2>&1 |
  grep --line-buffered -vE '^(Internal ctest changing|Test project|Errors while running CTest|Output from these tests|Use "--rerun)|^ *Start +[0-9]+:'
status=${PIPESTATUS[0]}

if [[ -n $timings ]]; then
  for file in "$logs"/*.counts; do
    [[ -e $file ]] || continue
    name=${file##*/}
    read -r _ _ _ seconds <"$file"
    printf '%8s s  %s\n' "$seconds" "${name%.counts}"
  done | sort -rn >"$timings"
  echo "The time of each test is in $timings; all of them took $((SECONDS - begin)) s."
fi
shopt -s nullglob
line=$(cat "$logs"/*.counts /dev/null |
  awk '{p += $1; f += $2; s += $3} END {printf "%d passed, %d failed, %d skipped", p, f, s}')
# A test that ctest itself ended left no counts.
if ((status != 0)) && [[ $line == *" 0 failed,"* ]]; then line=${line/ 0 failed,/ 1 failed,}; fi
if [[ -n $results ]]; then echo "$line" >"$results"; fi
echo "$line"
((status == 0)) && [[ $line != "0 passed,"* ]]
