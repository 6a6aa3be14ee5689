#!/usr/bin/env bash
# What lockstep checkpoint says of files that it cannot read, write or replace.
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
  check "a folder that does not exist: $target" one_error 1 'No such file' 'choose a folder that exists' checkpoint_write \
    checkpoint export "$latest" "$work/nowhere/$target"
done
check "  nothing is left behind" test ! -e "$work/nowhere"

cp -L "$latest" "$work/damaged.h5"
truncate -s 100000 "$work/damaged.h5"
check "a truncated checkpoint is not exported" one_error 1 'damaged.h5 is truncated' 'use another checkpoint or copy this one again' \
  checkpoint_damaged checkpoint export "$work/damaged.h5" "$work/b.safetensors"
check "  and there is no file" test ! -e "$work/b.safetensors"
rm "$work"/a/checkpoints/{latest,step-*}
cp "$work/damaged.h5" "$work/a/checkpoints/step-00000001.h5"
check "a run with damaged checkpoints only" refused 1 'all checkpoints in .*a/checkpoints are damaged: add --fresh to start over' \
  "$lockstep" train jobs/configs/quickstart.yaml model.width=16 device=cpu cpu.threads=1 train.max_steps=2 data.image_size=8 \
  data.train=synthetic data.validation= run.directory="$work" run.name=a log.progress=false
finish
