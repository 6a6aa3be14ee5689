#!/usr/bin/env bash
# lockstep plan: the numbers that replace `auto`, and plans for GPUs that are not in this machine.
. test/support/check.sh
export LOCKSTEP_DATA=$work # the data is never read

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

# sent NODES DIVISOR ARGUMENT...: each node sends half of the gradients in 16 bits, twice; a rank sends that / DIVISOR
sent() {
  "$lockstep" plan "${quick[@]}" comm.gradients=bf16 train.global_batch=64 "${@:3}" --nodes "$1" --json="$work/sent.json" \
    >/dev/null && python3 - "$work/sent.json" "$2" <<'PYTHON'
import json, sys
plan = json.load(open(sys.argv[1]))
sent, expected = plan["sent_between_nodes_bytes"], 2 * plan["trained_parameters"]
# The statistics of norms are sent in fp32. Without AVX-512, oneDNN pads weights.
most = 1.01 if " avx512f " in open("/proc/cpuinfo").read() else 1.05
assert expected <= sent["per_node"] < most * expected, sent
assert abs(sent["per_rank"] * int(sys.argv[2]) - sent["per_node"]) < 1e-3 * expected, sent
PYTHON
}
check "the leaders of 2 nodes send half of the 16-bit gradients twice" sent 2 1 device=cpu precision=fp32 --ranks 4
check "the text says so" refused 0 'to other nodes [0-9.]* MiB per node and at most [0-9.]* MiB per rank, gradients in bf16' \
  "$lockstep" plan "${quick[@]}" comm.gradients=bf16 --ranks 4 --nodes 2
if "$lockstep" plan "${quick[@]}" --device h200 >/dev/null 2>&1; then
  check "8 GPUs of a node share that" sent 2 8 precision=fp16 --device h200 --ranks 16
fi

for hardware in $(grep -l "families: .resnet" jobs/configs/hardware/*.yaml); do
  check "$hardware is read" "$lockstep" plan "${quick[@]}" "$hardware" precision=fp32 device=cpu train.global_batch=64 --ranks 2 \
    --json="$work/hardware.json"
done

# What storage, cores, PCIe and GPU can sustain. CIFAR-10 is stored as 3,072 bytes per image.
cifar=("${quick[@]}" data.train=data/samples/cifar10_train.h5 device=cpu precision=fp32 train.global_batch=64)
rates() { "$lockstep" plan "${cifar[@]}" "${@:2}" --json="$work/$1.json" >"$work/$1.txt"; }
no_rates() { rates none && test "$(value data_rates "$work/none.json")" = None && ! grep -q sustains "$work/none.txt"; }
check "without a hardware file, no rates are reported" no_rates
check "with all keys, they are" rates all data.readers=3 hardware.cores_per_rank=8 hardware.core_gb_per_second=0.003072 \
  hardware.storage_gb_per_second=0.006144 hardware.device_samples_per_second=500 --ranks 4 --nodes 2
check_output=$work/all.txt
check "  the storage of a node is shared by its ranks" grep -qE '^  storage +1,000 +4,000  0.006144 GB/s for a node, 3.07 kB per sample$' "$work/all.txt"
check "  idle cores do not count" grep -qE '^  cores +3,000 +12,000  3 of 8 cores read \(data.readers=3\), 1,000/s each: reading 1 ms$' "$work/all.txt"
check "  nothing is copied to a CPU" grep -qE '^  PCIe +- +-  batches stay in the memory of the host$' "$work/all.txt"
check "  the lowest is named" grep -qx 'The lowest: CPU, with 500 images/s per rank.' "$work/all.txt"
check "some keys are unknown" rates some hardware.cores_per_rank=2 hardware.core_gb_per_second=0.006144 hardware.storage_gb_per_second=1
check_output=$work/some.txt
check "  and reported as such" grep -qE '^  CPU +unknown +unknown  hardware.device_samples_per_second is not set$' "$work/some.txt"
check "  so is the lowest of the others" grep -qx 'The lowest of those that are known: cores, with 2,000 images/s per rank.' "$work/some.txt"
check "readers without a rate are unknown" rates less hardware.cores_per_rank=2 hardware.core_samples_per_second=1000
check_output=$work/less.txt
check "  the rate of decoding is not theirs" grep -qE '^  cores +unknown +unknown  hardware.core_gb_per_second is not set$' "$work/less.txt"
check "  then there is no lowest" bash -c "! grep -q '^The lowest' '$work/less.txt'"
check "synthetic data are not read from storage" rates synthetic data.train=synthetic hardware.storage_gb_per_second=1
check_output=$work/synthetic.txt
check "  the readers generate them" grep -qE '^  cores +unknown +unknown  synthetic is generated, at a rate that is not known$' "$work/synthetic.txt"
check "  and storage is no limit" grep -qE '^  storage +- +-  synthetic is not read from storage$' "$work/synthetic.txt"
check_output=$work/.check
check "the JSON has the same figures" python3 - "$work" <<'PYTHON'
import json, sys
full, some, less, synthetic = (json.load(open(f"{sys.argv[1]}/{name}.json"))["data_rates"] for name in ("all", "some", "less", "synthetic"))
rate = lambda rates, part: rates[part]["samples_per_second_per_rank"]
assert [round(rate(full, part)) for part in ("storage", "cores", "device")] == [1000, 3000, 500], full
assert rate(full, "pcie") is None and not full["pcie"]["is_unknown"], full
assert full["lowest"] == "device" and full["storage"]["bytes_per_sample"] == 3072, full
assert rate(some, "device") is None and some["device"]["is_unknown"] and some["lowest"] == "cores", some
assert less["lowest"] is None and less["cores"]["is_unknown"], less
assert rate(synthetic, "storage") is None and not synthetic["storage"]["is_unknown"], synthetic
PYTHON
check "the warm-up must fit into the schedule" refused 2 'the warm-up must not be longer than the schedule, found 100000 steps of' \
  "$lockstep" plan "${cifar[@]}" schedule.warmup_epochs=0 schedule.warmup_steps=100000
check "rates must be possible" refused 2 'hardware.pcie_gb_per_second.*0 to 1e6' "$lockstep" plan "${cifar[@]}" hardware.pcie_gb_per_second=-1

# The hardware files state the rates for JPEG files of 110 kB. Here, PNG images of 341x256 have as many bytes.
PYTHONPATH=test/support python3 - "$work/photos" <<'PYTHON'
import os, sys
from png import png
os.makedirs(sys.argv[1] + "/class")
for i in range(64):
    open(f"{sys.argv[1]}/class/{i}.png", "wb").write(png([bytes([y]) * 341 * 3 for y in range(256)], n_bytes=110000))
PYTHON
check "images are imported encoded" "$lockstep" data import imagefolder "$work/photos" "$work/encoded.h5" --store encoded
check "  and decoded" "$lockstep" data import imagefolder "$work/photos" "$work/decoded.h5" --store decoded --short-side 256
photos=("${quick[@]}" data.image_size=224 model.classes=1 precision=fp32 device=cpu train.global_batch=8)
# photo_rates NAME FORM HARDWARE ARGUMENT...
photo_rates() {
  "$lockstep" plan "${photos[@]}" "$3" device=cpu precision=fp32 data.train="$work/$2.h5" "data.augment=[resized_crop,flip]" "${@:4}" \
    --json="$work/$1.json" >"$work/$1.txt"
}
# states FILE: the rates in its comment are those of the plan. Copies are made only for a GPU.
states() {
  python3 - "$1" "$work/file.json" <<'PYTHON'
import json, re, sys
text, rates = open(sys.argv[1]).read(), json.load(open(sys.argv[2]))["data_rates"]
stated = dict(re.findall(r"(storage|cores|PCIe|GPU|CPU) ([\d,]+)", re.search(r"images/s per rank:\n  # (.*)", text).group(1)))
stated = {name: int(rate.replace(",", "")) for name, rate in stated.items()}
pcie = re.search(r"pcie_gb_per_second: (\S+)", text)
assert ("PCIe" in stated) == (pcie is not None), stated
if pcie: assert stated.pop("PCIe") == round(float(pcie.group(1)) * 1e9 / (224 * 224 * 3 + 8)), stated
found = [rates[part]["samples_per_second_per_rank"] for part in ("storage", "cores", "device")]
assert list(stated.values()) == [round(rate) for rate in found], (stated, found)
PYTHON
}
for hardware in $(grep -l "families: .resnet" jobs/configs/hardware/*.yaml); do
  ranks=$(sed -nE 's/.*On one node with ([0-9]+) ranks.*/\1/p' "$hardware")
  check_output=$work/file.txt
  check "$hardware names all rates" photo_rates file encoded "$hardware" --ranks "$ranks"
  check "  none is unknown" bash -c "! grep -q unknown '$work/file.txt'"
  check "  there is a lowest of all" grep -q '^The lowest: ' "$work/file.txt"
  check "  it states them" states "$hardware"
  check "  storage and device are not said to be measured" test "$(grep -cE '(storage_gb|device_samples)_per_second: .*(assumed|estimate|plan)' "$hardware")" = 2
done
h200=jobs/configs/hardware/4x_h200.yaml
check "decoded images are read at another rate" photo_rates decoded decoded $h200 --ranks 4
check "  which depends on the bytes of their regions" grep -qE '^  cores .* 24 of 24 cores read \(data.readers=24\), [23][0-9],[0-9]{3}/s each: reading 0.0[0-9]+ ms$' "$work/decoded.txt"
check "TrivialAugment makes reading slower" photo_rates trivial encoded $h200 "data.augment=[resized_crop,trivial_augment]"
check "  by its time" grep -q ', 651/s each: decoding 0.909 ms, trivial_augment 0.627 ms$' "$work/trivial.txt"
check "so does colour jitter" photo_rates jitter decoded $h200 "data.color_jitter=[0.4,0.4,0.4,0.1]"
check "  which resizes decoded images first" grep -qE ': reading 0.0[0-9]+ ms, resizing 0.112 ms, color_jitter 2.39 ms$' "$work/jitter.txt"
check "  a missing rate is unknown" photo_rates nothing encoded $h200 hardware.core_color_jitter_megapixels_per_second=0 "data.color_jitter=[0.4,0,0,0]"
check "  with its key" grep -q 'hardware.core_color_jitter_megapixels_per_second is not set$' "$work/nothing.txt"
check_output=$work/.check

# Sizes that overflow the libraries' 32-bit integers are refused with a sentence.
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

# What recomputation saves and costs. In a block, all products except the last are computed twice.
text=(model.family=llama model.config=smollm-135m data.train=synthetic data.validation= data.sequence_length=64
  train.global_batch=4 optimizer.kind=adamw cpu.threads=1 precision=fp32)
"$lockstep" plan "${text[@]}" device=cpu --json="$work/none.json" >"$work/none.txt"
check "without recomputation there is no report of it" test "$(value recomputation "$work/none.json")" = None
check "  and no line" bash -c "! grep -q Recomputation '$work/none.txt'"
for kind in block selective; do
  "$lockstep" plan "${text[@]}" device=cpu model.recompute=$kind --json="$work/$kind.json" >"$work/$kind.txt"
done
check_output=$work/block.txt
check "recomputation is reported" grep -qE '^Recomputation \(block\): saves [0-9.]+ MiB of activations \(8[0-9] % of' "$work/block.txt"
check "  with what it adds" grep -qE 'adds 19\.6 % to the FLOPs of a step, and [0-9.]+ GB .*: about [0-9.]+ ms on this device' \
  "$work/block.txt"
check "selective recomputation adds no products" grep -q 'adds 0.0 % to the FLOPs' "$work/selective.txt"
check_output=$work/.check
check "the figures are those of the shapes" python3 - "$work" <<'PYTHON'
import json, sys
none, block, selective = (json.load(open(f"{sys.argv[1]}/{kind}.json")) for kind in ("none", "block", "selective"))
tokens, layers, width, q, kv, ffn, vocabulary = 4 * 64, 30, 576, 576, 192, 1536, 49152
products = width * (q + 2 * kv) + q * width + 2 * width * ffn
assert block["recomputation"]["added_flops_per_step"] == 2 * tokens * layers * products
assert block["recomputation"]["model_flops_per_step"] == 3 * 2 * tokens * (
    layers * (products + width * ffn + 2 * q * (64 + 1) / 2) + vocabulary * width)
assert selective["recomputation"]["added_flops_per_step"] == 0
for with_it in block, selective:
    r = with_it["recomputation"]
    assert r["activation_bytes_without"] == none["memory_bytes"]["activations"]
    assert r["saved_bytes"] == none["memory_bytes"]["activations"] - with_it["memory_bytes"]["activations"] > 0
    assert r["added_seconds_per_step"] > 0
# The traffic of two norms (input, scale and output) and of SwiGLU (two inputs and the output), in fp32.
norms, swiglu = 2 * (2 * tokens * width + width), 3 * tokens * ffn
assert selective["recomputation"]["added_traffic_bytes_per_step"] == 4 * layers * (norms + swiglu)
PYTHON

if "$lockstep" plan "${quick[@]}" --device h200 2>&1 | grep -q 'has no CUDA backend'; then
  check "without CUDA, --device is an error" test ! -e "$work/none"
  finish
fi
net=(jobs/configs/resnet50_imagenet.yaml data.train=synthetic data.validation=synthetic)
"$lockstep" plan "${net[@]}" precision=fp16 train.batch_per_rank=256 --ranks 8 --device h200 >"$work/h200" 2>&1
check "plans for an H200 that is not in this machine" grep -q '^How each layer runs on NVIDIA H200' "$work/h200"
cat >"$work/7b.json" <<'JSON'
{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
 "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768,
 "tie_word_embeddings": false, "rope_theta": 1000000.0, "eos_token_id": 0}
JSON
gigabytes() { # KEY=VALUE... : of a model of 7B that is trained in full
  "$lockstep" plan model.family=llama model.config="$work/7b.json" data.train=synthetic data.validation= data.sequence_length=4096 \
    optimizer.kind=adamw precision=bf16 train.batch_per_rank=1 model.recompute=block run.name=plan --device h200 --json "$@" |
    grep -oE '"total_on_device":[0-9]+' | cut -d: -f2 | sed 's/.\{9\}$//'
}
narrow=(train.gradient_type=bf16 optimizer.moments=bf16 optimizer.masters=none)
check "a model of 7B takes 140 GB" test "$(gigabytes)" = 140
check "  and 64 GB with gradients, moments and weights in bf16 only" test "$(gigabytes "${narrow[@]}")" = 64
# A batch has 4 bytes per image for the label, and 4 for the index of the image.
"$lockstep" plan "${net[@]}" jobs/configs/hardware/4x_h200.yaml data.image_size=32 --ranks 4 --device h200 >"$work/pcie" 2>&1
check "PCIe copies the batches" grep -qE '^  PCIe +20,454,545 +81,818,182  63 GB/s, 3.08 kB per sample$' "$work/pcie"
"$lockstep" plan "${net[@]}" jobs/configs/hardware/4x_h200.yaml data.train="$work/decoded.h5" model.classes=1 --ranks 4 \
  --device h200 train.batch_per_rank=8 --json="$work/regions.json" >"$work/regions"
check "only the regions of decoded images are copied" python3 - "$work/regions.json" <<'PYTHON'
import json, sys
pcie = json.load(open(sys.argv[1]))["data_rates"]["pcie"]
assert 80e3 < pcie["bytes_per_sample"] < 160e3, pcie  # of 262 kB: a crop is 8 to 100 % of an image
PYTHON
check "with convolutions at the level chain" grep -q 'chain' "$work/h200"
"$lockstep" plan "${net[@]}" precision=fp16 train.batch_per_rank=auto --device t4 --json="$work/t4.json" >/dev/null
"$lockstep" plan "${net[@]}" precision=fp16 train.batch_per_rank=auto --device a100 --json="$work/a100.json" >/dev/null
check "the batch of an A100 is five times that of a T4" test "$(value batch_per_rank "$work/a100.json")" -gt \
  $((5 * $(value batch_per_rank "$work/t4.json")))
"$lockstep" plan "${net[@]}" precision=fp16 train.global_batch=4096 train.accumulate=auto --device t4 --json="$work/t4.json" >/dev/null
check "accumulate=auto divides a batch that does not fit a T4" test "$(value accumulate "$work/t4.json")" -gt 10
"$lockstep" plan "${net[@]}" precision=fp16 train.global_batch=2048 --device t4 >"$work/large" 2>&1
check "a step that does not fit is reported" grep -q '^This step does NOT fit: a rank processes 2048 samples' "$work/large"
check "more elements than cuDNN's kernels address are refused" refused 2 \
  'a tensor of 3288334336 elements, but most kernels of cuDNN address at most 2147483647: use a smaller batch' \
  "$lockstep" plan "${net[@]}" precision=fp16 train.global_batch=4096 --device h200
check "samples of text are planned for a GPU, too" "$lockstep" plan "${text[@]}" data.train=data/samples/shakespeare_train.h5 \
  model.config=jobs/configs/models/gpt_small.json data.validation=data/samples/shakespeare_test.h5 train.global_batch=8 \
  evaluation.generate=[Once] --device h200
# The presets of language models on an H200. Without packed documents, the deterministic backward pass of attention
# needs exactly the workspace that cuDNN reports (test/golden), and all ops share one workspace.
for preset in smollm-135m:134515008:9 qwen2-0.5b:494032768:14; do
  IFS=: read -r name parameters heads <<<"$preset"
  "$lockstep" plan "${text[@]}" model.config=$name precision=bf16 data.sequence_length=1024 train.global_batch=8 \
    model.recompute=block --device h200 --json="$work/$name.json" >"$work/$name.txt"
  check_output=$work/$name.txt
  check "$name is planned for an H200" grep -q "^[a-z0-9]*-[0-9]*m, $parameters parameters, bf16; batch 8" "$work/$name.txt"
  check "  with cuDNN's attention" grep -qE "layers.0.self_attn.attention +attention \(8, 1024\), $heads heads, .* bf16: cuDNN" "$work/$name.txt"
  check "  recomputation adds no time that is known" grep -q 'GB of reading and writing$' "$work/$name.txt"
  check_output=$work/.check
  check "  its memory adds up" python3 - "$work/$name.json" "$parameters" <<'PYTHON'
import json, sys
plan, parameters = json.load(open(sys.argv[1])), int(sys.argv[2])
memory = plan["memory_bytes"]
assert plan["parameters"] == parameters
for kind, size in ("parameters", 4), ("compute_weights", 2), ("gradients", 4), ("optimizer", 8):
    assert 1 <= memory[kind] / (size * parameters) < 1.001, (kind, memory[kind])
assert 0 <= memory["gradients"] - sum(b["size_bytes"] for b in plan["buckets"]) <= 16384  # the rest of a tile
assert 256 << 20 <= memory["workspace"] <= 1700 << 20
assert plan["recomputation"]["added_seconds_per_step"] is None
assert plan["recomputation"]["saved_bytes"] > 0.8 * plan["recomputation"]["activation_bytes_without"]
assert plan["batch_that_fits"] > 100
PYTHON
done
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
