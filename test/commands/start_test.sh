#!/usr/bin/env bash
# timeout: 300
# The start of a training: what makes it refuse, that a refusal leaves the run directory as it was, that --dry-run finds
# the same problems, and from which checkpoint a run continues.
source test/support/check.sh

small=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8
  data.synthetic_samples=96 train.global_batch=12 train.epochs=4 checkpoint.every_steps=2 checkpoint.keep=0
  cpu.threads=1 log.progress=false log.tensorboard=false run.directory="$work")
ranks() { mpirun --oversubscribe --bind-to none -n "$1" "$lockstep" train "${small[@]}" "${@:2}"; }
train() { "$lockstep" train "${small[@]}" "$@"; }
not() { ! "$@"; }
# Everything in a run directory, with the contents of its files and their modification times.
state_of() { (cd "$1" && find . -exec stat -c '%n %i %s %Y' {} + | grep -v '^\. ' | LC_ALL=C sort && cat status config.yaml log.txt metrics.jsonl); }

# A refused start leaves RUN as it was, and creates none.
check "a run" train run.name=kept train.max_steps=4
state_of "$work/kept" >"$work/before"
refuses() { # WHAT STATUS PATTERN ARGUMENT...: of a training and of a dry run
  check "$1" refused "$2" "$3" train "${@:4}"
  check "  and --dry-run says so" refused "$2" "$3" train "${@:4}" --dry-run
}
unchanged() { state_of "$work/kept" >"$work/after" && cmp "$work/before" "$work/after"; }
kept=(run.name=kept train.max_steps=8)
refuses "another learning rate is refused" 2 'resume_changed' "${kept[@]}" optimizer.learning_rate=0.5
refuses "a missing train set" 1 'nowhere.h5' "${kept[@]}" --fresh data.train=nowhere.h5
refuses "a missing validation set" 1 'nowhere.h5' "${kept[@]}" data.validation=nowhere.h5
refuses "a step that does not fit" 1 'out_of_memory' "${kept[@]}" --fresh data.image_size=512 data.synthetic_samples=100000 \
  train.global_batch=8000
refuses "more threads than make sense" 2 'cpu.threads: expected auto or 1 to [0-9]+ on this node' "${kept[@]}" cpu.threads=1024
refuses "a missing checkpoint.resume_from with --fresh" 1 'nothing.h5' "${kept[@]}" --fresh checkpoint.resume_from="$work/nothing.h5"
refuses "a missing model.initialize_from" 1 'nothing.h5' "${kept[@]}" --fresh model.initialize_from="$work/nothing.h5"
refuses "a range beyond synthetic data" 2 'data.end=97 are not a range of the 96 synthetic' "${kept[@]}" --fresh data.start=90 data.end=97
refuses "a range smaller than a batch" 2 'global batch of 12 samples is more than the 6' "${kept[@]}" --fresh data.start=90 data.end=96
check "  on 2 ranks too" refused 2 'resume_changed' ranks 2 "${kept[@]}" optimizer.learning_rate=0.5
check "none of them has changed the run" unchanged
check "a refused first start creates no directory" refused 1 'nowhere.h5' train run.name=none data.train=nowhere.h5
check "  not even an empty one" test ! -e "$work/none"
touch "$work/file"
check "--dry-run: a run directory that cannot be created" refused 1 '[Nn]ot a directory' train run.name=file/run --dry-run
train "${kept[@]}" --dry-run >"$work/dry" 2>&1
check "--dry-run: a start that is possible is reported" grep -q 'no problem was found' "$work/dry"
check "  with the checkpoint from which it resumes" grep -q 'resume from .*/kept/checkpoints/step-00000004.h5 (step 4 of 8)' "$work/dry"
check "  and changes nothing" unchanged
resumes() { refused 0 'resume from' train "$@" --dry-run; }
check "--dry-run of a new run" refused 0 'a training would start' train run.name=new --dry-run
check "  and with --fresh" not resumes "${kept[@]}" --fresh
check "--dry-run of a run that is complete" refused 0 'nothing is left to do' train run.name=kept train.max_steps=4 --dry-run
check "  is no start, either" not resumes run.name=kept train.max_steps=4

# A training that does not fit into memory is refused at once, before anything is timed.
check "what does not fit is not timed" env LOCKSTEP_CACHE="$work/cache" bash -c "! timeout 30 '$lockstep' train ${small[*]} run.name=large \
  data.image_size=4096 2>&1 | tee '$work/large.out' | grep -q 'timing the algorithms' && grep -q out_of_memory '$work/large.out'"

# checkpoint.resume_from starts a run; its own newer checkpoints take precedence.
from=(checkpoint.resume_from="$work/kept/checkpoints/step-00000004.h5")
check "starts from the checkpoint of another run" train run.name=continued "${from[@]}" train.max_steps=6
check "  at its step" grep -q 'resumed from .*kept.*(step 4)' "$work/continued/log.txt"
check "the same command continues" train run.name=continued "${from[@]}" train.max_steps=8
check "  from the run's own newer checkpoint" grep -q 'resumed from .*continued/checkpoints/step-00000006.h5 (step 6)' \
  "$work/continued/log.txt"
check "  and reports that" grep -q 'resume_from=.* is not used' "$work/continued/log.txt"
check "  and never goes back" test "$(readlink "$work/continued/checkpoints/latest")" = step-00000008.h5
check "an older checkpoint of its own does not" train run.name=kept checkpoint.resume_from="$work/continued/checkpoints/latest" \
  train.max_steps=10
check "  take precedence" grep -q 'resumed from .*continued.*(step 8)' "$work/kept/log.txt"

# --fresh and symbolic links.
mkdir "$work/elsewhere"
ln -s elsewhere "$work/linked"
check "a run directory that is a symbolic link" train run.name=linked train.max_steps=2
check "--fresh starts it over" train run.name=linked train.max_steps=1 --fresh
check "  the link stays" test "$(readlink "$work/linked")" = elsewhere
check "  the new run is where it points" test -s "$work/elsewhere/checkpoints/step-00000001.h5"
check "  the old run is beside it" test -s "$work/elsewhere.1/checkpoints/step-00000002.h5"
check "  and complete" grep -qx done "$work/elsewhere.1/status"

# A cache that cannot be used costs one warning. Root can read everything, so a component of the path is a link to
# itself.
ln -s loop "$work/loop"
warnings() { grep -c 'warning:.*LOCKSTEP_CACHE' "$work/$1/log.txt"; }
check "a cache that cannot be read does not end a run" env LOCKSTEP_CACHE="$work/loop/cache" "$lockstep" train "${small[@]}" \
  run.name=unreadable train.max_steps=1
check "  but costs one warning with the remedy" test "$(warnings unreadable)" = 1
check "nor one that cannot be written" env LOCKSTEP_CACHE=/proc/none "$lockstep" train "${small[@]}" run.name=unwritable train.max_steps=1
check "  with one warning" test "$(warnings unwritable)" = 1
mkdir "$work/damaged-cache"
echo '[not json' >"$work/damaged-cache/algorithms.json"
check "nor a damaged one" env LOCKSTEP_CACHE="$work/damaged-cache" "$lockstep" train "${small[@]}" run.name=damaged train.max_steps=1
check "  with one warning" test "$(grep -c 'warning:.*cannot be read' "$work/damaged/log.txt")" = 1

finish
