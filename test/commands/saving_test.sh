#!/usr/bin/env bash
# timeout: 400
# When checkpoints are written and how they are named: by the clock; names from a template; which ones are kept, what
# `latest` and `best` refer to, and which one a run resumes from.
source test/support/check.sh

small=(jobs/configs/quickstart.yaml model.width=16 data.image_size=8 data.validation= train.global_batch=6 evaluation.every_epochs=0
  checkpoint.every_epochs=0 checkpoint.keep=0 cpu.threads=1 log.every_steps=1 log.progress=false log.tensorboard=false
  run.directory="$work")
train() { mpirun --oversubscribe --bind-to none -n "$1" "$lockstep" train "${small[@]}" "${@:2}"; }
checkpoints() { (cd "$work/$1/checkpoints" && ls -- *.h5); }

# Every 0.03 minutes. A step that begins at least 1.8 s after the last save requests another one; the ranks learn of it
# when the next step has run, and save. The figures of a step are also written when the next step has run, so some of
# them come late.
check "saves by the clock" train 2 run.name=clock data.train=synthetic data.synthetic_samples=1200 train.epochs=1 \
  train.max_steps=60 comm.sleep_ms=100 comm.bucket_mb=100 checkpoint.every_minutes=0.03
by_the_clock() { # checks the times and the saved steps in metrics.jsonl
  awk -v period=1.8 '
    { match($0, /"step": *[0-9]+/); step = substr($0, RSTART, RLENGTH); sub(/.*: */, "", step)
      match($0, /"time_unix": *[0-9.]+/); time = substr($0, RSTART, RLENGTH); sub(/.*: */, "", time) }
    /"event": *"step"/ { at[step + 0] = time }
    /"event": *"checkpoint"/ { saved[n++] = step + 0 }
    END {
      for (i = 0; i + 1 < n - 1; ++i) {  # the last save is the one at the end
        late = 0
        for (s = saved[i] + 1; s < saved[i + 1]; ++s) late += at[s] - at[saved[i]] > period + 0.1
        printf "steps %d and %d: %.3f s between them, %d steps too many\n", saved[i], saved[i + 1],
               at[saved[i + 1]] - at[saved[i]], late
        if (at[saved[i + 1]] - at[saved[i]] < period - 0.02 || late > 5) bad = 1
      }
      exit bad || n < 3
    }' "$work/clock/metrics.jsonl"
}
check "  neither too early nor too late" by_the_clock
every_file_is_good() {
  local file
  for file in "$work/clock/checkpoints/"*.h5; do "$lockstep" checkpoint verify "$file" || return 1; done
}
check "  every checkpoint is intact" every_file_is_good

# Two steps per epoch, with saves inside epochs too.
named=(run.name=named data.train=data/samples/cifar10_train.h5 data.start=8 data.end=20 data.shuffle=true
  schedule.kind=constant schedule.warmup_epochs=0 optimizer.learning_rate=0.001 checkpoint.every_epochs=1
  'checkpoint.name="{model}_{start}-{end}-epoch-{epoch}"')
name=resnet18_8-20-epoch
check "names from a template" train 2 "${named[@]}" train.epochs=3 checkpoint.every_steps=3
is() { [[ $(echo $1) == "$2" ]] || { echo "found $1"; return 1; }; }
check "  names of epochs, with the step inside epochs" is "$(checkpoints named)" \
  "$name-1-step-00000003.h5 $name-1.h5 $name-2.h5 $name-3.h5"
check "  latest" is "$(readlink "$work/named/checkpoints/latest")" "$name-3.h5"
check "  best" test -s "$work/named/checkpoints/best"

# The alphabetical order of names does not matter: epoch 9 is not newer than epoch 10.
check "resumes to epoch 10" train 1 "${named[@]}" train.epochs=10
check "  from the newest checkpoint" grep -q "resumed from .*/$name-3.h5 (step 6)" "$work/named/log.txt"
cp "$work/named/checkpoints/$name-4.h5" "$work/named/checkpoints/zzz.h5"
check "resumes to epoch 12 with a small checkpoint.keep" train 2 "${named[@]}" train.epochs=12 checkpoint.keep=2 checkpoint.keep_every=8
check "  from the greatest step, whatever the names" grep -q "resumed from .*/$name-10.h5 (step 20)" "$work/named/log.txt"
best=$(readlink "$work/named/checkpoints/best")
kept=$(printf '%s\n' "$name-11.h5" "$name-12.h5" "$name-4.h5" "$name-8.h5" zzz.h5 "$best" | sort -u)
check "  keeps the last 2, those of every 8th step, and the best" is "$(checkpoints named | sort)" "$(echo $kept)"
check "  latest" is "$(readlink "$work/named/checkpoints/latest")" "$name-12.h5"
least=$(sed -n 's/.*"event": *"epoch".*"epoch": *\([0-9]*\).*/\1/p' "$work/named/metrics.jsonl" | wc -l)
check "  every epoch was trained once" is "$least" 12

check "an unknown placeholder is refused" refused 2 'has the unknown placeholder .*\{epochs\}' "$lockstep" train "${small[@]}" \
  data.train=synthetic run.name=refused 'checkpoint.name=a-{epochs}'
check "a template without step and epoch is refused" refused 2 'expected \{step\} or \{epoch\}' "$lockstep" train "${small[@]}" \
  data.train=synthetic run.name=refused checkpoint.name=one
finish
