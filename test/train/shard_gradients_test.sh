#!/usr/bin/env bash
# timeout: 300
# Gradients sharded over ranks: the same checkpoints as without shards, on any number of ranks that divides the number of
# micro-batches, by each transport, with what else changes a step, and after resuming with another setting.
source test/support/check.sh
cat >"$work/config.json" <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 1024, "hidden_size": 60, "intermediate_size": 160, "head_dim": 20,
 "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 64,
 "tie_word_embeddings": true, "rope_theta": 10000.0, "eos_token_id": 0}
JSON
sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/; s/Qwen3For/LlamaFor/' "$work/config.json" >"$work/llama.json"
common=(train.max_steps=4 train.epochs=1 train.clip_norm=0.5 train.micro_batches=12 reproducible=true checkpoint.every_steps=2
  comm.bucket_mb=0.1 log.progress=false log.tensorboard=false run.directory="$work" cpu.threads=1 comm.watchdog_seconds=120)
text=(model.family=llama model.config="$work/config.json" data.train=data/samples/shakespeare_train.h5
  data.sequence_length=24 train.global_batch=12 optimizer.kind=adamw optimizer.learning_rate=1e-3 optimizer.decay_norms_and_biases=false)
images=(data.train=data/samples/cifar10_train.h5 model.depth=18 model.width=8 train.global_batch=24)
narrow=(precision=bf16 train.gradient_type=bf16 optimizer.moments=bf16 optimizer.masters=none)
train() { # RANKS NAME KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$1" "$lockstep" train "${common[@]}" run.name="$2" "${@:3}"
}
same() { "$lockstep" checkpoint diff "$work/$1/checkpoints/latest" "$work/$2/checkpoints/latest"; }
equal() { # NAME RANKS KEY=VALUE...: trains with and without shards
  check "$1: trains without shards" train 1 "$1" "${@:3}"
  local ranks
  for ranks in $2; do
    check "  with sharded gradients on $ranks" train "$ranks" "$1$ranks" "${@:3}" train.shard=gradients
    check "  the bits are the same" same "$1" "$1$ranks"
  done
}
equal fp32 "1 2 3 4" "${text[@]}" precision=fp32
equal bf16 "2 3 4 6" "${text[@]}" precision=bf16
equal narrow "3 4" "${text[@]}" "${narrow[@]}"
equal llama "2 3" "${text[@]}" precision=bf16 model.config="$work/llama.json" model.recompute=block comm.bucket_mb=1000
equal gradients_in_bf16 "3" "${text[@]}" precision=bf16 train.gradient_type=bf16
equal images "2 3" "${images[@]}" data.drop_last=false data.end=64 train.max_steps=3 train.epochs=2
equal ema "3" "${text[@]}" precision=bf16 ema.decay=0.5
equal frozen "4" "${text[@]}" precision=bf16 train.freeze=[model.embed_tokens]
qlora=(model.lora.rank=4 model.base_precision=nf4)
equal nf4 "2" "${text[@]/#model.config=*/model.from=$work/bf16/model}" precision=bf16 "${qlora[@]}"
equal lora "3" "${text[@]/#model.config=*/model.from=$work/bf16/model}" precision=bf16 model.lora.rank=4
keys=("${text[@]}" precision=bf16)
check "trains by MPI alone" train 3 mpi "${keys[@]}" train.shard=gradients comm.backend=mpi
check "  with the same bits" same bf16 mpi
check "trains through host memory as from a device" train 2 staged "${keys[@]}" train.shard=gradients comm.backend=staged
check "  with the same bits" same bf16 staged
export LOCKSTEP_RANKS_PER_NODE=2
check "trains on two nodes" train 4 nodes "${keys[@]}" train.shard=gradients
check "  with the same bits" same bf16 nodes
unset LOCKSTEP_RANKS_PER_NODE
check "stops after two steps on 3 ranks" train 3 resumed "${keys[@]}" train.shard=gradients train.max_steps=2
check "  and resumes with a sharded optimizer on 2" train 2 resumed "${keys[@]}" train.shard=optimizer
check "  with the same bits" same bf16 resumed
check "stops after two steps without shards" train 1 sharded "${keys[@]}" train.max_steps=2
check "  and resumes with sharded gradients on 4" train 4 sharded "${keys[@]}" train.shard=gradients
check "  with the same bits" same bf16 sharded

# Without train.micro_batches, the order of sums depends on the setting, but not on the run.
accumulated=("${keys[@]}" train.micro_batches=0 train.accumulate=3 reproducible=false)
for name in accumulated repeated; do
  check "$name: trains with accumulated micro-batches" train 2 $name "${accumulated[@]}" train.shard=gradients
done
check "  with the same bits in every run" same accumulated repeated
check "  trains with a sharded optimizer" train 2 other "${accumulated[@]}" train.shard=optimizer
loss() { sed -n 's/.*"event":"step".*"loss":\([0-9.e-]*\).*/\1/p' "$work/$1/metrics.jsonl" | tail -1 | xargs printf '%.3f'; }
check "  to the same loss" test "$(loss accumulated)" == "$(loss other)"

check "refuses a number of ranks that does not divide the micro-batches" refused 2 \
  'train.micro_batches=12, which 5 ranks cannot: use 1 or 2 or 3 or 4 or 6 or 12 ranks, or train.micro_batches=15' \
  train 5 bad "${keys[@]}" train.shard=gradients
check "refuses lars" refused 2 'lars needs the norms of whole layers.*set train.shard to none' train 2 bad "${images[@]}" \
  optimizer.kind=lars train.shard=gradients

memory() { # SHARD: bytes per rank of gradients and their sums
  "$lockstep" plan model.family=llama model.config=smollm-135m data.train=synthetic data.sequence_length=64 data.validation= \
    optimizer.kind=adamw precision=bf16 train.batch_per_rank=1 run.name=plan --ranks 8 --json train.shard="$1" |
    grep -oE '"memory_bytes".*' | grep -oE '"(gradients|partial_sums)":[0-9]+' | head -2 | cut -d: -f2 | paste -sd+ | bc
}
# SmolLM2-135M has 134.5 million parameters, of which the tied embedding has 28.3: it is in its slot during the whole
# backward pass. Three slots of 28 MB each, the gradients of two layers, are beside it.
slots() {
  local whole shard
  whole=$(memory optimizer) shard=$(memory gradients)
  echo "$whole bytes, and $shard with sharded gradients"
  ((shard < whole / 8 + 4 * 28311552 + 3 * 29000000))
}
check "plans an eighth of the gradients' memory, and slots" slots
finish
