#!/usr/bin/env bash
# lockstep doctor on this machine: its table and its JSON, and faults of one rank, each of which must be reported by
# name.
# cores: all
# timeout: 400
. test/support/check.sh
preload=$(dirname "$lockstep")/test/doctor/preload.so
mkdir -p "$work/runs" "$work/data"
export LOCKSTEP_RUNS=$work/runs LOCKSTEP_DATA=$work/data
unset FLIPPED_BIT SKEWED_CLOCK_SECONDS

# doctor OPTION...: runs one process. ranks WORDS OPTION...: runs two ranks; rank 1 is started with WORDS before the
# program.
doctor() { timeout 120 "$lockstep" doctor --quick --device cpu "$@"; }
ranks() {
  timeout 180 mpirun --bind-to none --oversubscribe -n 2 bash -c '
    if [[ $OMPI_COMM_WORLD_RANK == 1 ]]; then exec env '"$1"' "$@"; else exec "$@"; fi' \
    doctor "${other:-$lockstep}" doctor --quick --device cpu "${@:2}"
}
# found STATUS CHECK WHERE VALUE: the JSON object has such an entry for the check
found() {
  python3 - "$work/report.json" "$@" <<'END'
import json, re, sys
path, status, check, where, value = sys.argv[1:]
checks = json.load(open(path))["checks"]
of_name = [c for c in checks if c["check"] == check]
assert any(c["status"] == status and re.search(where, c["where"]) and re.search(value, c["found"]) for c in of_name), of_name
assert all((c["status"] == "pass") == (not c["remedy"]) for c in checks), checks
END
}

doctor --json="$work/report.json" >"$work/table"
status=$?
cat "$work/table"
check "one rank: a table with counts" grep -Eq '^[0-9]+ checks: [0-9]+ passed, [0-9]+ warned, [0-9]+ failed, [0-9]+ unknown$' "$work/table"
check "  the exit status is 1 if a check failed" python3 -c "
import json
assert json.load(open('$work/report.json'))['passed'] == ($status == 0)"
check "  the device" found pass device 'rank 0' .
check "  the bits of a product" found pass 'bits of a product' 'rank 0' equal
check "  the file system of the run" found pass 'run: folder' . "$work/runs"
check "  that of the data" found pass 'data: folder' . "$work/data"
check "  nothing is left there" test -z "$(find "$work/runs" "$work/data" -mindepth 1)"
check "the JSON object on standard output" bash -c "'$lockstep' doctor --quick --device cpu --json 2>/dev/null | python3 -c 'import json, sys; json.load(sys.stdin)'"

ranks '' --json="$work/report.json" >"$work/table" 2>&1
cat "$work/table"
check "two ranks: the all-reduce of 8 B" grep -Eq 'all-reduce 8 B +all ranks +[0-9.,]+ us' "$work/table"
check "  that of 51 MB, in the terms of nccl-tests" grep -Eq 'all-reduce 51 MB +all ranks +algbw .* GB/s, busbw .* GB/s' "$work/table"
check "  no all-reduce of 1 GB" bash -c "! grep -q 'all-reduce 1 GB' '$work/table'"
check "  the transport" found pass transport 'all ranks' 'shared memory, 2 ranks'
check "  equal bits" found pass 'bits of a product' 'rank 1' equal
check "  the slowest rank" grep -Eq '^The slowest rank is rank [01] on .*: its .* is [0-9]+ % slower than the median' "$work/table"

check "a flipped bit: exit status 1" refused 1 . ranks "LD_PRELOAD=$preload FLIPPED_BIT=1" --json="$work/report.json"
check "  both ranks are named, since either may be wrong" found fail 'bits of a product' 'rank 1' disagree
check "a process that burns time: exit status 1" bash -c "$(declare -f ranks refused); work='$work' lockstep='$lockstep' other=
  bash -c 'while :; do :; done' & burner=\$!
  bash -c 'while :; do :; done' & second=\$!
  refused 1 . ranks '' --json='$work/report.json'; status=\$?
  kill \$burner \$second; exit \$status"
check "  it is named" found fail 'other load' . 'bash .process'
killed() { # rank 1 is killed 2 s after its start
  timeout 60 mpirun --bind-to none --oversubscribe -n 2 bash -c '
    if [[ $OMPI_COMM_WORLD_RANK == 1 ]]; then exec timeout --signal=KILL 2 "$@"; else exec "$@"; fi' \
    doctor "$lockstep" doctor --device cpu
}
check "a rank that is killed: the others do not wait for it" refused 137 'rank 1' killed
check "a copy that reports another compiler" python3 test/doctor/other_build.py "$lockstep" "$work/lockstep"
one_other_build() {
  timeout 180 mpirun --bind-to none --oversubscribe -n 1 "$lockstep" doctor --quick --device cpu --json="$work/report.json" : \
    -n 1 "$work/lockstep" doctor --quick --device cpu --json="$work/report.json"
}
check "another build: exit status 1" refused 1 . one_other_build
check "  it is named" found fail versions 'rank 1' 'compiler .*X'
check "a folder that cannot be written: exit status 1" refused 1 'remedy: ' doctor --runs /proc/self/fdinfo --json="$work/report.json"
check "  it is named" found fail 'run: folder' . 'cannot create a folder in /proc'
check "data that is missing: exit status 1" refused 1 'remedy: ' doctor --data "$work/nowhere"
check "a wrong device: exit status 2" refused 2 'device' "$lockstep" doctor --device tpu
finish
