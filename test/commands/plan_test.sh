#!/usr/bin/env bash
# lockstep plan: what `auto` becomes, and plans for GPUs that are not here.
. test/support/check.sh
export LOCKSTEP_DATA=$work # which nothing is read from

quick=(jobs/configs/resnet18_cifar10.yaml data.train=synthetic data.validation=synthetic cpu.threads=1)
value() { # KEY FILE
  python3 -c "import json, sys; print(json.load(open(sys.argv[2]))[sys.argv[1]])" "$@"
}

"$lockstep" plan "${quick[@]}" train.batch_per_rank=auto --ranks 2 --json="$work/auto.json" >/dev/null
batch=$(value batch_per_rank "$work/auto.json")
check "batch_per_rank=auto is what fits, or the data set's share" test "$batch" -gt 100 -a "$batch" -le 5000
check "and the global batch follows" test "$(value global_batch "$work/auto.json")" = $((2 * batch))
"$lockstep" plan "${quick[@]}" train.accumulate=auto --ranks 2 --json="$work/accumulate.json" >/dev/null
check "accumulate=auto is 1 where the share fits" test "$(value accumulate "$work/accumulate.json")" = 1

for hardware in jobs/configs/hardware/*.yaml; do
  check "$hardware is read" "$lockstep" plan "${quick[@]}" "$hardware" precision=fp32 device=cpu train.global_batch=64 --ranks 2 \
    --json="$work/hardware.json"
done

if "$lockstep" plan "${quick[@]}" --device h200 2>&1 | grep -q 'has no CUDA backend'; then
  check "without CUDA that is a sentence" test ! -e "$work/none"
  finish
fi
net=(jobs/configs/resnet50_imagenet.yaml data.train=synthetic data.validation=synthetic)
"$lockstep" plan "${net[@]}" precision=fp16 train.batch_per_rank=256 --ranks 8 --device h200 >"$work/h200" 2>&1
check "an H200 that is not here is planned for" grep -q '^How each layer runs on NVIDIA H200' "$work/h200"
check "with convolutions in the full chain" grep -q 'chain' "$work/h200"
"$lockstep" plan "${net[@]}" precision=fp16 train.batch_per_rank=auto --device t4 --json="$work/t4.json" >/dev/null
"$lockstep" plan "${net[@]}" precision=fp16 train.batch_per_rank=auto --device a100 --json="$work/a100.json" >/dev/null
check "an A100 holds five times what a T4 does" test "$(value batch_per_rank "$work/a100.json")" -gt \
  $((5 * $(value batch_per_rank "$work/t4.json")))
"$lockstep" plan "${net[@]}" precision=fp16 train.global_batch=4096 train.accumulate=auto --device t4 --json="$work/t4.json" >/dev/null
check "accumulate=auto divides what a T4 cannot hold" test "$(value accumulate "$work/t4.json")" -gt 10
"$lockstep" plan "${net[@]}" precision=fp16 train.global_batch=4096 --device t4 >"$work/large" 2>&1
check "a step that does not fit is told" grep -q '^This step does NOT fit: 4096 samples' "$work/large"
"$lockstep" plan "${net[@]}" --device nosuch.json >"$work/nosuch" 2>&1
check "no such description" test $? = 2
check "with the reason" grep -q 'nosuch.json: .* No such file' "$work/nosuch"
"$lockstep" plan "${net[@]}" precision=fp32 --device test/cuda/h200_device_properties.json >"$work/file" 2>&1
check "a description as a file" grep -q '^How each layer runs on NVIDIA H200' "$work/file"
mkdir "$work/folder.json"
described() { sed "s/\"$1\": *[^,}]*/\"$1\": $2/" test/cuda/h200_device_properties.json >"$work/odd.json"; }
check "a folder is no description of a GPU" refused 2 'folder.json: expected the description of a GPU, found a directory' "$lockstep" plan "${net[@]}" --device "$work/folder.json"
described totalGlobalMem -5
check "  nor are impossible values" refused 2 'totalGlobalMem of a GPU is from' "$lockstep" plan "${net[@]}" --device "$work/odd.json"
described multiProcessorCount 0
check "  of any kind" refused 2 'multiProcessorCount of a GPU is from 1' "$lockstep" plan "${net[@]}" --device "$work/odd.json"
described deviceVer 20
check "  that can be seen" refused 2 'deviceVer of a GPU is from' "$lockstep" plan "${net[@]}" --device "$work/odd.json"
check "device=cpu is not planned for a GPU" refused 2 'has device=cpu' "$lockstep" plan "${net[@]}" device=cpu --device h200
"$lockstep" plan "${net[@]}" precision=bf16 --device t4 >"$work/bf16" 2>&1
check "bf16 on a T4 is refused" test $? = 2
check "in a sentence" grep -q 'does not compute in bf16' "$work/bf16"
"$lockstep" plan "${net[@]}" --device h2000 >"$work/unknown" 2>&1
check "an unknown GPU is refused" test $? = 2
check "with the known ones" grep -q 'expected one of t4, .*h200' "$work/unknown"
finish
