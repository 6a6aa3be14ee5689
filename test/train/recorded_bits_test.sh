#!/usr/bin/env bash
# timeout: 600
# Reproducible runs give the bytes that are recorded in test/golden/recorded_bits.txt, on any number of ranks, with and
# without sharding, so that work on the structure of the program changes no result. The bits depend on the processor and
# its caches, the compiler and oneDNN; where none are recorded, the runs are only compared with each other.
#
#   RECORD=1 test/train/recorded_bits_test.sh   records those of this machine
source test/support/check.sh
recorded=test/golden/recorded_bits.txt
processor=$(awk -F': ' '/^(vendor_id|cpu family|model)\t/ {printf "%s-", $2} /^flags/ {
  isa = "sse"; if (/ avx2/) isa = "avx2"; if (/ avx512bw/) isa = "avx512"; if (/ avx512_bf16/) isa = "avx512_bf16"; if (/ amx_bf16/) isa = "amx"
  print isa; exit}' /proc/cpuinfo)
libraries=$("$lockstep" --version | awk '$1 == "compiler" {printf "g++-%s ", $NF} $1 == "oneDNN" {printf "oneDNN-%s", $2}')
caches=$(($(getconf LEVEL2_CACHE_SIZE) / 1024))-$(($(getconf LEVEL3_CACHE_SIZE) / 1024))-KiB
machine="${processor:-$(uname -m)} $caches $libraries"

model() { # ARCHITECTURE
  printf '{"architectures": ["%s"], "vocab_size": 1024, "hidden_size": 40, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": %s,
    "rope_theta": 10000.0, "eos_token_id": 0}\n' "$@"
}
model LlamaForCausalLM false >"$work/llama.json"
model Qwen2ForCausalLM true >"$work/qwen2.json"
common=(reproducible=true cpu.threads=1 train.micro_batches=4 train.global_batch=8 train.epochs=1 train.max_steps=3
  train.clip_norm=0.5 ema.decay=0.5 comm.bucket_mb=0.1 checkpoint.keep=1 log.progress=false log.tensorboard=false
  comm.watchdog_seconds=120 run.directory="$work")
images=(data.train=data/samples/cifar10_train.h5 data.augment=[crop,flip] model.width=8 train.label_smoothing=0.1)
text=(model.family=llama data.train=data/samples/shakespeare_train.h5 data.sequence_length=32 optimizer.kind=adamw
  optimizer.learning_rate=1e-3)
adapters=("${text[@]}" model.from="$work/base/model" model.lora.rank=4 model.lora.dropout=0.1)
keys_of() { # MODEL: into the array keys
  case $1 in
  resnet18) keys=("${images[@]}" model.depth=18) ;;
  resnet50) keys=("${images[@]}" model.depth=50) ;;
  llama) keys=("${text[@]}" model.config="$work/llama.json") ;;
  qwen2) keys=("${text[@]}" model.config="$work/qwen2.json") ;;
  lora) keys=("${adapters[@]}") ;;
  nf4) keys=("${adapters[@]}" model.base_precision=nf4) ;;
  esac
}
train() { # RANKS NAME KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$1" "$lockstep" train "${common[@]}" run.name="$2" "${@:3}"
}
bytes() { sha256sum <"$work/$1/checkpoints/step-00000003.h5" | cut -c1-16; }
is() { [[ $(bytes "$1") == "$2" ]]; }

if [[ ${RECORD:-} ]]; then sed -i "\\#^$machine #d" "$recorded"; fi
check "trains the base of the adapters" train 1 base "${text[@]}" model.config="$work/qwen2.json"
for model in resnet18 resnet50 llama qwen2 lora nf4; do
  keys_of $model
  for precision in fp32 bf16; do
    name=$model-$precision
    check "$name on 1 rank" train 1 "$name" "${keys[@]}" precision=$precision
    if [[ ${RECORD:-} ]]; then echo "$machine $name $(bytes "$name")" >>"$recorded"; fi
    expected=$(awk -v prefix="$machine $name " 'index($0, prefix) == 1 {print $NF}' "$recorded")
    if [[ $expected ]]; then check "  has the recorded bytes" is "$name" "$expected"; fi
    for run in "2 none" "4 none" "1 optimizer" "2 optimizer" "4 optimizer"; do
      read -r ranks shard <<<"$run"
      check "  $ranks ranks, shards: $shard" train "$ranks" several "${keys[@]}" precision=$precision train.shard="$shard"
      check "    with the same bytes" cmp "$work/$name/checkpoints/step-00000003.h5" "$work/several/checkpoints/step-00000003.h5"
      rm -rf "$work/several"
    done
    rm -rf "${work:?}/$name"
  done
done
if ! grep -q "^$machine " "$recorded"; then
  echo "[  SKIPPED ] 1 test: no bytes are recorded for $machine"
fi
finish
