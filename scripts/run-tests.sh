#!/usr/bin/env bash
# Runs all tests and ends with the line `N passed, N failed, N skipped`.
#
#   scripts/run-tests.sh [--results FILE] [--only TEXT] [--long] BUILD [SANITIZED_BUILD]
#
# A test program is BUILD/test/**/NAME_test. Comments in the first lines of its source say how it is run:
#   // ranks: 2 3 4       under mpirun, once with each number of ranks (else alone)
#   // timeout: 300       seconds that it may take (else 120)
#   // sanitizers: no     not run under the sanitizers
#   // long: yes           run only with --long, which runs nothing else
# Script tests are test/**/*_test.sh and *_test.py with `# timeout: 300`; exit status 77 means skipped.
# Tests find the program in $LOCKSTEP, may write to $TMPDIR (removed afterwards), and run in the repository's root.
# Programs of one process run as many at once as there are cores, up to 2; tests of several ranks run alone.
# A program counts as many tests as GoogleTest says that it ran; one without such lines counts as one.
set -uo pipefail
cd "$(dirname "$0")/.."

results=
only=
long=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --results) results=$2 ;;
    --only) only=$2 ;;
    --long) long=yes; shift; continue ;;
    *) echo "run-tests.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
build=${1:?usage: run-tests.sh [--results FILE] [--only TEXT] [--long] BUILD [SANITIZED_BUILD]}
sanitized=${2:-}

mpirun=${MPIRUN:-mpirun}
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
# Ways of convolutions are not timed: what a test computes does not hang on the load.
export LOCKSTEP_CACHE=none
export LOCKSTEP=$PWD/$build/lockstep
[[ $build == /* ]] && export LOCKSTEP=$build/lockstep
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export LSAN_OPTIONS=suppressions=$PWD/scripts/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
# Tests have more threads and ranks than cores: waiting threads must sleep, not spin.
export OMP_WAIT_POLICY=passive
export TSAN_OPTIONS=suppressions=$PWD/scripts/tsan.supp:ignore_noninstrumented_modules=1
python=.deps/python/bin/python

work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-test.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# "120", or what the source says behind `ranks:` and the like.
setting() { sed -n "1,12s@^[/#]* *$2: *@@p" "$1" | head -1; }

# number of the line "[  PASSED  ] 12 tests." of each program's last run
count() { sed -n "s/^\[  $2 *\] \([0-9]*\) test.*/\1/p" "$1" | tail -1; }

# run NUMBER LABEL TIMEOUT COMMAND...: leaves passed, failed, skipped in $work/NUMBER.counts and prints one line
run() {
  local number=$1 label=$2 limit=$3
  shift 3
  local log=$work/$number.log
  local start status passed failed skipped seconds
  start=$(date +%s%N)
  mkdir -p "$work/$number"
  TMPDIR=$work/$number timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null
  status=$?
  seconds=$(awk -v ns=$(($(date +%s%N) - start)) 'BEGIN {printf "%.1f", ns / 1e9}')
  rm -rf "${work:?}/$number"
  passed=$(count "$log" PASSED)
  failed=$(count "$log" FAILED)
  skipped=$(count "$log" SKIPPED)
  if [[ -z $passed$failed$skipped ]]; then
    passed=0 failed=0 skipped=0
    case $status in 0) passed=1 ;; 77) skipped=1 ;; *) failed=1 ;; esac
  else
    passed=${passed:-0} failed=${failed:-0} skipped=${skipped:-0}
    # A program that ended badly without saying which test did has failed as a whole.
    if [[ $status != 0 && $failed == 0 ]]; then failed=1; fi
  fi
  local word=passed
  if ((failed)); then word=FAILED; elif ((skipped && !passed)); then word=skipped; fi
  local note=
  if [[ $status == 124 || $status == 137 ]]; then note=" (ended after $limit s)"; fi
  if [[ $word == skipped ]]; then note=" ($(grep -im1 skip "$log" | cut -c1-100))"; fi
  {
    printf '%-7s %6s s  %s%s\n' "$word" "$seconds" "$label" "$note"
    if ((failed)); then
      sed 's/^/    | /' "$log" | if [[ $(wc -l <"$log") -gt 400 ]]; then tail -400; else cat; fi
    fi
  } | flock "$work" cat
  echo "$passed $failed $skipped" >"$work/$number.counts"
}

number=0
declare -a running=()
slots=$(nproc)
((slots > 2)) && slots=2
wait_for_all() { wait "${running[@]}" 2>/dev/null; running=(); }
start_alone() { # beside one other
  while (($(jobs -rp | wc -l) >= slots)); do wait -n 2>/dev/null; done
  run "$@" &
  running+=($!)
}

wanted() { # wanted SOURCE
  [[ (-z $only || ${1%.cpp} == *$only*) && $(setting "$1" long) == "$long" ]]
}

mapfile -t sources < <(find test -name '*_test.cpp' | sort)
mapfile -t scripts < <(find test -name '*_test.sh' -o -name '*_test.py' | sort)

for source in "${sources[@]}"; do
  program=${source%.cpp}
  wanted "$source" || continue
  limit=$(setting "$source" timeout)
  if [[ -z $(setting "$source" ranks) ]]; then
    start_alone $((++number)) "$program" "${limit:-120}" "$build/$program"
    if [[ -n $sanitized && $(setting "$source" sanitizers) != no ]]; then
      # Several times slower, on threads that a sanitizer cannot see into otherwise.
      start_alone $((++number)) "$program (sanitizers)" $((${limit:-120} * 5)) "$sanitized/$program"
    fi
  fi
done
wait_for_all

for source in "${sources[@]}"; do
  program=${source%.cpp}
  wanted "$source" || continue
  limit=$(setting "$source" timeout)
  for ranks in $(setting "$source" ranks); do
    run $((++number)) "$program, $ranks ranks" "${limit:-120}" \
      "$mpirun" --oversubscribe --bind-to none -n "$ranks" "$build/$program"
  done
done

for script in "${scripts[@]}"; do
  wanted "$script" || continue
  limit=$(setting "$script" timeout)
  case $script in
    *.sh) run $((++number)) "$script" "${limit:-120}" bash "$script" ;;
    *.py)
      if [[ -x $python ]]; then
        run $((++number)) "$script" "${limit:-120}" "$python" "$script"
      else
        run $((++number)) "$script" 5 bash -c 'echo "skipped: no Python packages; make deps-test"; exit 77'
      fi ;;
  esac
done

read -r passed failed skipped < <(cat "$work"/*.counts 2>/dev/null | awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}')
line="$passed passed, $failed failed, $skipped skipped"
if [[ -n $results ]]; then echo "$line" >"$results"; fi
echo "$line"
((failed == 0 && passed > 0))
