#!/usr/bin/env bash
# timeout: 300
# The algorithms and layouts of convolutions are timed once, on one rank, and stored for this run and for others.
source test/support/check.sh

small=(data.train=synthetic data.image_size=8 data.synthetic_samples=32 train.global_batch=16 train.max_steps=2
  train.epochs=1 cpu.threads=1 log.every_steps=1 log.tensorboard=false log.progress=false run.directory="$work")
train() { mpirun --oversubscribe --bind-to none -n "$1" "$lockstep" train "${small[@]}" "${@:2}"; }
not() { ! "$@"; }
has_timed() { grep -q 'timing the algorithms' "$work/$1/log.txt"; }
# The machine may be busy during this test. With the marks removed, choices count as made on an idle machine.
without_marks() {
  python3 - "$work/cache/algorithms.json" "$1" <<'END'
import json, sys
path, marked = sys.argv[1], sys.argv[2] == "but one"
table = json.load(open(path))
for entries in table.values():
    for key, entry in entries.items():
        entries[key] = entry["algorithm"] if isinstance(entry, dict) else entry
    if marked:
        key = next(iter(entries))
        entries[key] = {"algorithm": entries[key], "timed_under_load": True}
json.dump(table, open(path, "w"))
END
}
bits() { cmp "$work/$1/checkpoints/step-00000002.h5" "$work/$2/checkpoints/step-00000002.h5"; }
export LOCKSTEP_CACHE=$work/cache

check "a first run on 2 ranks" train 2 run.name=first
check "  times algorithms" has_timed first
check "  stores its choices in the run" grep -q '"blocks"\|"direct"' "$work/first/algorithms.json"
if grep -q AVX-512 "$work/first/algorithms.json"; then
  check "  including layouts" grep -q '"layout 8x8x64, fp32": ' "$work/first/algorithms.json"
fi
check "  and in the cache for other runs" cmp "$work/first/algorithms.json" "$work/cache/algorithms.json"
without_marks all
check "another run" train 2 run.name=second
check "  times nothing" not has_timed second
check "  produces the same bits" bits first second
without_marks "but one"
check "a run that finds a choice made under load" train 2 run.name=again
check "  makes it again" has_timed again
check "the first run, resumed," train 2 run.name=first train.max_steps=3
check "  keeps its choices" test "$(grep -c 'timing the algorithms' "$work/first/log.txt")" == 1
check "another batch" train 2 run.name=batch train.global_batch=8
check "  is timed too" has_timed batch
check "  and keeps the earlier choices" python3 -c "
import json
assert len(json.load(open('$work/cache/algorithms.json'))) == 2"
echo '[not json' >"$work/cache/algorithms.json"
check "a damaged cache" train 2 run.name=damaged
check "  is reported" grep -q 'algorithms.json cannot be read' "$work/damaged/log.txt"
check "  and replaced" python3 -m json.tool "$work/cache/algorithms.json" "$work/readable"
rm -r "$work/first/checkpoints" "$work/first/metrics.jsonl" "$work/cache"
check "the same run again, without the cache" train 2 run.name=first
check "  uses its own choices" test "$(grep -c "timing the algorithms" "$work/first/log.txt")" == 1
LOCKSTEP_CACHE=/proc/none check "a cache that cannot be written does not end a run" train 1 run.name=readonly
check "  and is reported" grep -q 'not stored for other runs' "$work/readonly/log.txt"
LOCKSTEP_CACHE=none check "LOCKSTEP_CACHE=none" train 1 run.name=none
check "  times nothing" not has_timed none
check "a reproducible run" train 1 run.name=reproducible reproducible=true
check "  times nothing" not has_timed reproducible
check "  and stores nothing" test ! -e "$work/reproducible/algorithms.json"
finish
