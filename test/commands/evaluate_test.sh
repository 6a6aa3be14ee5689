#!/usr/bin/env bash
# timeout: 300
# cores: 1
# Evaluation of checkpoints and model files: how images become inputs comes from the checkpoint.
source test/support/check.sh

small=(jobs/configs/quickstart.yaml model.width=16 device=cpu cpu.threads=1 train.epochs=1 train.global_batch=50
  log.progress=false log.tensorboard=false evaluation.batch_per_rank=100)
train() { "$lockstep" train "${small[@]}" run.directory="$work" "$@"; }
prints() { refused 0 "$@"; }
check "trains on images of CIFAR-10" train run.name=a train.max_steps=4
best=$work/a/checkpoints/best
evaluate() { "$lockstep" evaluate "${small[@]}" "$@"; }

# The mean and the standard deviation of synthetic images differ, and none of them is used.
figures() { grep -Eo '"(loss|accuracy)": [0-9.e-]*' "$1"; }
same_figures() { diff <(figures "$1") <(figures "$2"); }
check "evaluates the checkpoint" evaluate --checkpoint "$best" --json="$work/own"
check "  with another train set" evaluate data.train=synthetic --checkpoint "$best" --json="$work/other"
check "  and gets the same figures" same_figures "$work/own" "$work/other"
check "data.mean stays in effect if it is given" prints 'data.mean of the configuration is used' \
  evaluate data.mean=[0.1,0.1,0.1] --checkpoint "$best" --json="$work/shifted"
check "  and changes the figures" refused 1 loss same_figures "$work/own" "$work/shifted"

for field in 'height +32' 'resize +0' 'mean +0\.4[0-9.]*, 0\.4' 'std +0\.2' 'class_names +airplane, automobile' 'model.depth +18'; do
  check "checkpoint info shows: $field" prints "^$field" "$lockstep" checkpoint info "$best"
done

check "exports it" "$lockstep" checkpoint export "$best" "$work/a.safetensors"
check "the record is in the export" grep -aq '\\"class_names\\":\[\\"airplane\\"' "$work/a.safetensors"
check "the model of the run's end has it too" grep -aq '\\"class_names\\":\[\\"airplane\\"' "$work/a/model.safetensors"

# A file without that record, as older releases wrote: the metadata of the export gets another name of the same length.
rm -f "$work/old.h5"
LC_ALL=C sed 's/"lockstep":/"lockstop":/' "$work/a.safetensors" >"$work/old.safetensors"
check "imports a file without it" "$lockstep" checkpoint import "$work/old.safetensors" "$work/old.h5"
check "  which is evaluated with what data.train has" prints 'old.h5 does not record .* they are those of data/samples' \
  evaluate --checkpoint "$work/old.h5" --json="$work/old"
check "  and gets the same figures" same_figures "$work/own" "$work/old"
check "imports a file with it" "$lockstep" checkpoint import "$work/a.safetensors" "$work/new.h5"
check "  which shows it" prints 'class_names +airplane' "$lockstep" checkpoint info "$work/new.h5"
finish
