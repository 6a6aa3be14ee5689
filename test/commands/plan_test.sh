#!/usr/bin/env bash
# lockstep plan: the numbers that replace `auto`, and plans for GPUs that are not in this machine.
. test/support/check.sh
export LOCKSTEP_DATA=$work # nothing is read from it

quick=(jobs/configs/resnet18_cifar10.yaml data.train=synthetic data.validation=synthetic cpu.threads=1)
value() { # KEY FILE
  python3 -c "import json, sys; print(json.load(open(sys.argv[2]))[sys.argv[1]])" "$@"
}

"$lockstep" plan "${quick[@]}" train.batch_per_rank=auto --ranks 2 --json="$work/auto.json" >/dev/null
batch=$(value batch_per_rank "$work/auto.json")
check "batch_per_rank=auto is what fits, or a shard of the data set" test "$batch" -gt 100 -a "$batch" -le 5000
check "and the global batch follows" test "$(value global_batch "$work/auto.json")" = $((2 * batch))
"$lockstep" plan "${quick[@]}" train.accumulate=auto --ranks 2 --json="$work/accumulate.json" >/dev/null
check "ResNet-152 is planned" refused 0 '^resnet-152, 58156618 parameters' "$lockstep" plan "${quick[@]}" model.depth=152 \
  model.width=64 device=cpu precision=fp32 train.global_batch=2
check "accumulate=auto is 1 if the shard fits" test "$(value accumulate "$work/accumulate.json")" = 1

check "ranks that nodes cannot share equally are explained" refused 0 '^1 of the 2 nodes has 3 ranks, the others 2: this is the plan of a rank' \
  "$lockstep" plan "${quick[@]}" --ranks 5 --nodes 2
equal() { "$lockstep" plan "${quick[@]}" --ranks 4 --nodes 2 >"$work/equal" && ! grep -q 'the others' "$work/equal"; }
check "  and others need no explanation" equal

for hardware in jobs/configs/hardware/*.yaml; do
  check "$hardware is read" "$lockstep" plan "${quick[@]}" "$hardware" precision=fp32 device=cpu train.global_batch=64 --ranks 2 \
    --json="$work/hardware.json"
done

# Sizes that overflow 32-bit integers of the libraries are refused with a sentence.
impossible() { check "$1 is refused" refused 2 "$2" "$lockstep" plan jobs/configs/quickstart.yaml data.train=synthetic data.validation=synthetic $1; }
impossible data.image_size=8192 'conv1 would have the shape .* numbers per sample; at most 2147483647'
impossible "data.image_size=512 train.global_batch=16777216" 'positions of all samples; at most'
for samples in 4294967295 2147483648; do
  impossible "train.global_batch=$samples" "would process $samples samples at once; at most"
  impossible "train.global_batch=0 train.batch_per_rank=$samples" "would process $samples samples at once"
done
impossible evaluation.batch_per_rank=4294967295 'would evaluate 4294967295 samples at once; .*: lower evaluation.batch_per_rank'
impossible model.classes=100000000 'a synthetic set has at most 1048576 classes'
check "and so is a parameter of that size" refused 2 'the parameter fc.weight would have the shape \(100000000, 512\)' \
  "$lockstep" plan jobs/configs/quickstart.yaml model.classes=100000000
check "the largest images that are possible are planned" "$lockstep" plan "${quick[@]}" data.image_size=5792 train.global_batch=1

if "$lockstep" plan "${quick[@]}" --device h200 2>&1 | grep -q 'has no CUDA backend'; then
  check "without CUDA, --device is an error" test ! -e "$work/none"
  finish
fi
net=(jobs/configs/resnet50_imagenet.yaml data.train=synthetic data.validation=synthetic)
"$lockstep" plan "${net[@]}" precision=fp16 train.batch_per_rank=256 --ranks 8 --device h200 >"$work/h200" 2>&1
check "plans for an H200 that is not in this machine" grep -q '^How each layer runs on NVIDIA H200' "$work/h200"
check "with convolutions at the level chain" grep -q 'chain' "$work/h200"
"$lockstep" plan "${net[@]}" precision=fp16 train.batch_per_rank=auto --device t4 --json="$work/t4.json" >/dev/null
"$lockstep" plan "${net[@]}" precision=fp16 train.batch_per_rank=auto --device a100 --json="$work/a100.json" >/dev/null
check "the batch of an A100 is five times that of a T4" test "$(value batch_per_rank "$work/a100.json")" -gt \
  $((5 * $(value batch_per_rank "$work/t4.json")))
"$lockstep" plan "${net[@]}" precision=fp16 train.global_batch=4096 train.accumulate=auto --device t4 --json="$work/t4.json" >/dev/null
check "accumulate=auto divides a batch that does not fit a T4" test "$(value accumulate "$work/t4.json")" -gt 10
"$lockstep" plan "${net[@]}" precision=fp16 train.global_batch=4096 --device t4 >"$work/large" 2>&1
check "a step that does not fit is reported" grep -q '^This step does NOT fit: a rank processes 4096 samples' "$work/large"
"$lockstep" plan "${net[@]}" --device nosuch.json >"$work/nosuch" 2>&1
check "a missing description is an error" test $? = 2
check "with the reason" grep -q 'nosuch.json: .* No such file' "$work/nosuch"
"$lockstep" plan "${net[@]}" precision=fp32 --device test/cuda/h200_device_properties.json >"$work/file" 2>&1
check "a description in a file is accepted" grep -q '^How each layer runs on NVIDIA H200' "$work/file"
mkdir "$work/folder.json"
described() { sed "s/\"$1\": *[^,}]*/\"$1\": $2/" test/cuda/h200_device_properties.json >"$work/odd.json"; }
check "a folder is not a description of a GPU" refused 2 'folder.json: expected the description of a GPU, found a directory' "$lockstep" plan "${net[@]}" --device "$work/folder.json"
described totalGlobalMem -5
check "  impossible amounts of memory are refused" refused 2 'totalGlobalMem must be from' "$lockstep" plan "${net[@]}" --device "$work/odd.json"
described multiProcessorCount 0
check "  and numbers of multiprocessors" refused 2 'multiProcessorCount must be from 1' "$lockstep" plan "${net[@]}" --device "$work/odd.json"
described deviceVer 20
check "  and compute capabilities" refused 2 'deviceVer must be from' "$lockstep" plan "${net[@]}" --device "$work/odd.json"
check "device=cpu is not planned for a GPU" refused 2 'has device=cpu' "$lockstep" plan "${net[@]}" device=cpu --device h200
"$lockstep" plan "${net[@]}" precision=bf16 --device t4 >"$work/bf16" 2>&1
check "bf16 on a T4 is refused" test $? = 2
check "with the reason" grep -q 'does not compute in bf16' "$work/bf16"
"$lockstep" plan "${net[@]}" --device h2000 >"$work/unknown" 2>&1
check "an unknown GPU is refused" test $? = 2
check "with the known GPUs" grep -q 'expected one of t4, .*h200' "$work/unknown"
finish
