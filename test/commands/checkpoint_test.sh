#!/usr/bin/env bash
# What lockstep checkpoint says about files that it cannot read, write or replace.
source test/support/check.sh

"$lockstep" train jobs/configs/quickstart.yaml model.width=16 device=cpu cpu.threads=1 train.max_steps=1 data.image_size=8 \
  data.train=synthetic data.validation= run.directory="$work" run.name=a log.progress=false >"$work/log" 2>&1
latest=$work/a/checkpoints/latest
# A refusal is one error with its remedy and its code, and no other line.
one_error() { # STATUS MESSAGE REMEDY CODE COMMAND...
  refused "$1" "^lockstep: error: .*$2" "${@:5}" && grep -Eq "^  remedy: .*$3" "$work/.refused" &&
    grep -qx "  \[$4\]" "$work/.refused" && [[ $(wc -l <"$work/.refused") == 3 ]]
}
checkpoint() { "$lockstep" checkpoint "$@"; }

check "exports" checkpoint export "$latest" "$work/a.safetensors"
check "does not replace an export" one_error 2 'a.safetensors already exists; use --force' '--force' data_exists \
  checkpoint export "$latest" "$work/a.safetensors"
check "  unless --force says so" checkpoint export "$latest" "$work/a.safetensors" --force
check "exports to ONNX" checkpoint export "$latest" "$work/a.onnx"
check "does not replace that either" one_error 2 'a.onnx already exists' '--force' data_exists checkpoint export "$latest" "$work/a.onnx"
check "knows no other format" one_error 2 'must end in .safetensors or .onnx, found .*a.pt' '' usage checkpoint export "$latest" "$work/a.pt"
for target in b.safetensors b.onnx; do
  check "a folder that does not exist: $target" one_error 1 'No such file' 'correct what the message names: a path' system_call \
    checkpoint export "$latest" "$work/nowhere/$target"
done
check "  nothing is left behind" test ! -e "$work/nowhere"

# Weights that are not finite: no figure computed with such a model means anything.
with_value() { # SOURCE.safetensors TARGET TENSOR VALUE: replaces value number 1 of the tensor
  python3 - "$@" <<'PYTHON'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
n = struct.unpack("<Q", data[:8])[0]
begin = json.loads(data[8:8 + n])[sys.argv[3]]["data_offsets"][0]
data[8 + n + begin + 4:8 + n + begin + 8] = struct.pack("<f", float(sys.argv[4]))
open(sys.argv[2], "wb").write(data)
PYTHON
}
with_value "$work/a.safetensors" "$work/nan.safetensors" fc.weight nan
not_finite='fc.weight of .*nan.safetensors is not finite: 1 of its [0-9]+ values is infinite or NaN, the first of them number 1 \(nan\)'
check "NaN: the weights are not imported" one_error 1 "$not_finite" 'use another checkpoint' checkpoint_damaged \
  checkpoint import "$work/nan.safetensors" "$work/nan.h5"
check "  nothing is written" test ! -e "$work/nan.h5"
check "  nor evaluated" refused 1 "$not_finite" "$lockstep" evaluate "$work/nan.safetensors" data.validation=data/samples/cifar10_test.h5 \
  data.image_size=8 cpu.threads=1 log.progress=false 'data.mean=[0.5,0.5,0.5]' 'data.std=[0.5,0.5,0.5]'
check "  nor used for predictions" refused 1 "$not_finite" "$lockstep" predict "$work/nan.safetensors" docs/pictures/none.png cpu.threads=1
check "  nor trained on from" refused 1 "$not_finite" "$lockstep" train jobs/configs/quickstart.yaml model.width=16 device=cpu cpu.threads=1 \
  data.image_size=8 data.train=synthetic data.validation= run.directory="$work" run.name=none model.initialize_from="$work/nan.safetensors"
check "  but described, with the tensor" refused 0 '^not finite +fc.weight$' checkpoint info "$work/nan.safetensors"
check "  a good file has no such line" bash -c '! "$0" checkpoint info "$1" | grep "not finite"' "$lockstep" "$work/a.safetensors"

# Negative variances are refused too: their square root is NaN.
with_value "$work/a.safetensors" "$work/negative.safetensors" bn1.running_var -0.5
negative='bn1.running_var of .*negative.safetensors cannot be a variance: 1 of its 16 values is negative, the first of them number 1 \(-0.5\)'
check "a negative variance is not imported" one_error 1 "$negative" 'use another checkpoint' checkpoint_damaged \
  checkpoint import "$work/negative.safetensors" "$work/negative.h5"
check "  nor valid" one_error 1 "$negative" 'use another checkpoint' checkpoint_damaged checkpoint verify "$work/negative.safetensors"
check "  nor evaluated" refused 1 "$negative" "$lockstep" evaluate "$work/negative.safetensors" data.validation=data/samples/cifar10_test.h5 \
  data.image_size=8 cpu.threads=1 log.progress=false 'data.mean=[0.5,0.5,0.5]' 'data.std=[0.5,0.5,0.5]'
check "  nor trained on from" refused 1 "$negative" "$lockstep" train jobs/configs/quickstart.yaml model.width=16 device=cpu cpu.threads=1 \
  data.image_size=8 data.train=synthetic data.validation= run.directory="$work" run.name=none model.initialize_from="$work/negative.safetensors" \
  train.max_steps=1

# Folders where a file is expected.
mkdir "$work/folder"
for folder in a a/checkpoints; do
  target=$work/$folder/$([[ $folder == a ]] && echo checkpoints/)best
  for command in "info" "verify" "diff $latest" "export" "merge"; do
    others=$([[ $command == merge ]] && echo "$latest"; [[ $command == [em]* ]] && echo "$work/b.safetensors")
    kind=$([[ $folder == a ]] && echo run || echo folder)
    check "$command of $folder names a checkpoint in it" one_error 2 "$folder is a $kind; expected .*, such as $target$" '' usage \
      checkpoint $command "$work/$folder" $others
  done
done
check "verify of another folder" one_error 2 'folder is a folder; expected .* directory of Hugging Face, which contains config.json' '' usage \
  checkpoint verify "$work/folder"

cp -L "$latest" "$work/damaged.h5"
truncate -s 100000 "$work/damaged.h5"
check "a truncated checkpoint is not exported" one_error 1 'damaged.h5 is truncated' 'use another checkpoint or copy this one again' \
  checkpoint_damaged checkpoint export "$work/damaged.h5" "$work/b.safetensors"
check "  and there is no file" test ! -e "$work/b.safetensors"
rm "$work"/a/checkpoints/{latest,step-*}
lost() {
  refused 1 "$1" "$lockstep" train jobs/configs/quickstart.yaml model.width=16 device=cpu cpu.threads=1 train.max_steps=2 data.image_size=8 \
    data.train=synthetic data.validation= run.directory="$work" run.name=a log.progress=false "${@:2}"
}
check "a run whose checkpoints were deleted does not start over" lost \
  'has saved a checkpoint of step 1, as .*a/metrics.jsonl records, but .*a/checkpoints contains none: .* add --fresh'
check "  nor a dry run" lost 'has saved a checkpoint of step 1' --dry-run
check "    which reports no plan" bash -c '! grep -q "Memory per rank" "$0"' "$work/.refused"
check "  and is as it was" grep -q '"event":"checkpoint","time_unix":[0-9.]*,"step":1,' "$work/a/metrics.jsonl"
rm -r "$work/a/checkpoints"
check "  not even without the folder" lost 'has saved a checkpoint of step 1'
mkdir "$work/a/checkpoints"
cp "$work/damaged.h5" "$work/a/checkpoints/step-00000001.h5"
check "a run with damaged checkpoints only" lost 'all checkpoints in .*a/checkpoints are damaged: add --fresh to start over'
rm -r "$work/a/checkpoints"
train_fresh() { "$lockstep" train jobs/configs/quickstart.yaml model.width=16 device=cpu cpu.threads=1 train.max_steps=1 data.image_size=8 \
  data.train=synthetic data.validation= run.directory="$work" run.name=a log.progress=false --fresh; }
check "--fresh starts over" train_fresh
check "  and keeps the record of the old run" grep -q '"event":"checkpoint"' "$work/a.1/metrics.jsonl"
finish
