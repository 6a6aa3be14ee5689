#!/usr/bin/env bash
# timeout: 300
# Gradients and weights sharded over ranks, and the optimizer on the host: the same checkpoints and evaluations as without
# shards, on any number of ranks that divides the number of micro-batches, by each transport, with what else changes a
# step, and after resuming with another setting.
source test/support/check.sh
cat >"$work/config.json" <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 1024, "hidden_size": 60, "intermediate_size": 160, "head_dim": 20,
 "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 64,
 "tie_word_embeddings": true, "rope_theta": 10000.0, "eos_token_id": 0}
JSON
sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/; s/Qwen3For/LlamaFor/' "$work/config.json" >"$work/llama.json"
sed 's/Qwen3For/Qwen2For/' "$work/config.json" >"$work/qwen2.json"
sed 's/Qwen3For/Gemma3For/; s/"rope_theta"/"query_pre_attn_scalar": 20, "sliding_window": 16, "rope_local_base_freq": 10000.0, "rope_theta"/' \
  "$work/config.json" >"$work/gemma.json"
common=(train.max_steps=4 train.epochs=1 train.clip_norm=0.5 train.micro_batches=12 reproducible=true checkpoint.every_steps=2
  comm.bucket_mb=0.1 train.check_replicas_every_steps=1 log.progress=false log.tensorboard=false run.directory="$work" cpu.threads=1 comm.watchdog_seconds=120)
text=(model.family=llama model.config="$work/config.json" data.train=data/samples/shakespeare_train.h5
  data.validation=data/samples/shakespeare_test.h5 evaluation.max_samples=29 evaluation.every_steps=2
  data.sequence_length=24 train.global_batch=12 optimizer.kind=adamw optimizer.learning_rate=1e-3 optimizer.decay_norms_and_biases=false)
images=(data.train=data/samples/cifar10_train.h5 model.depth=18 model.width=8 train.global_batch=24)
narrow=(precision=bf16 train.gradient_type=bf16 optimizer.moments=bf16 optimizer.masters=none)
train() { # RANKS NAME KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$1" "$lockstep" train "${common[@]}" run.name="$2" "${@:3}"
}
evaluated() { sed -n 's/.*"event":"evaluation".*"loss":\([0-9.e-]*\).*/\1/p' "$work/$1/metrics.jsonl" | xargs printf '%.5f '; }
same() {
  "$lockstep" checkpoint diff "$work/$1/checkpoints/latest" "$work/$2/checkpoints/latest" &&
    [[ $(evaluated "$1") == "$(evaluated "$2")" ]]
}
equal() { # NAME SHARD:RANKS[:OFFLOAD]... KEY=VALUE...: trains on one rank without shards, and then with those settings
  check "$1: trains without shards" train 1 "$1" "${@:3}"
  local of shard ranks offload
  for of in $2; do
    IFS=: read -r shard ranks offload <<<"$of"
    check "  with sharded $shard on $ranks${offload:+ and an offloaded $offload}" \
      train "$ranks" "$1$of" "${@:3}" train.shard="$shard" train.offload="${offload:-none}"
    check "  the bits are the same" same "$1" "$1$of"
  done
}
equal fp32 "parameters:1 gradients:2 parameters:3 parameters:4" "${text[@]}" precision=fp32
equal bf16 "parameters:2 gradients:3 gradients:4 parameters:6 none:1:optimizer optimizer:2:optimizer gradients:3:optimizer
  parameters:3:optimizer" "${text[@]}" precision=bf16
equal narrow "parameters:3 gradients:4" "${text[@]}" "${narrow[@]}"
equal llama "parameters:2 gradients:3 optimizer:2:optimizer" "${text[@]}" precision=bf16 model.config="$work/llama.json" model.recompute=block \
  comm.bucket_mb=1000
equal qwen2 "parameters:3 gradients:4 gradients:2:optimizer" "${text[@]}" precision=bf16 model.config="$work/qwen2.json" model.recompute=selective
equal gemma "gradients:2 parameters:4 parameters:3:optimizer" "${text[@]}" precision=bf16 model.config="$work/gemma.json"
equal gradients_in_bf16 "gradients:3 parameters:4 parameters:2:optimizer" "${text[@]}" precision=bf16 train.gradient_type=bf16
equal images "gradients:2 parameters:3" "${images[@]}" data.drop_last=false data.end=64 train.max_steps=3 train.epochs=2
equal images_in_bf16 "parameters:2 parameters:3:optimizer" "${images[@]}" precision=bf16 optimizer.momentum=0.9 data.end=72
equal ema "gradients:3 parameters:4" "${text[@]}" precision=bf16 ema.decay=0.5
equal ema_fp32 "parameters:3" "${text[@]}" precision=fp32 ema.decay=0.5
equal frozen "parameters:3 gradients:4" "${text[@]}" precision=bf16 train.freeze=[model.embed_tokens]
from_bf16=("${text[@]/#model.config=*/model.from=$work/bf16/model}")
equal nf4 "gradients:2 parameters:3 parameters:2:optimizer" "${from_bf16[@]}" precision=bf16 model.lora.rank=4 model.base_precision=nf4
equal lora "parameters:2 gradients:3 none:2:optimizer" "${from_bf16[@]}" precision=bf16 model.lora.rank=4
equal lora_fp32 "parameters:4" "${from_bf16[@]}" precision=fp32 model.lora.rank=4
keys=("${text[@]}" precision=bf16)
for shard in gradients parameters; do
  check "sharded $shard: trains by MPI alone" train 3 mpi$shard "${keys[@]}" train.shard=$shard comm.backend=mpi
  check "  with the same bits" same bf16 mpi$shard
  check "trains through host memory as from a device" train 2 staged$shard "${keys[@]}" train.shard=$shard comm.backend=staged
  check "  with the same bits" same bf16 staged$shard
  export LOCKSTEP_RANKS_PER_NODE=2
  check "trains on two nodes" train 4 nodes$shard "${keys[@]}" train.shard=$shard
  check "  with the same bits" same bf16 nodes$shard
  unset LOCKSTEP_RANKS_PER_NODE
done
resume() { # RANKS SETTING RANKS SETTING [KEY=VALUE...]
  check "stops after two steps with sharded $2 on $1" train "$1" "$2$4" "${keys[@]}" "${@:5}" train.shard="$2" train.max_steps=2
  check "  and resumes with sharded $4 on $3" train "$3" "$2$4" "${keys[@]}" "${@:5}" train.shard="$4"
}
resume 3 gradients 2 optimizer
check "  with the same bits" same bf16 gradientsoptimizer
resume 2 optimizer 3 parameters train.offload=optimizer
check "  with the same bits" same bf16 optimizerparameters
resume 1 none 4 parameters
check "  with the same bits" same bf16 noneparameters
resume 4 parameters 3 gradients "${narrow[@]}"
check "  with the same bits" same narrow parametersgradients
answer() { "$lockstep" generate "$work/$1" --prompt "ROMEO:" --max-tokens 8; }
check "a model that was trained in shards generates the same text" \
  test "$(answer bf16 2>&1)" == "$(answer noneparameters 2>&1)"

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
check "refuses to generate text in evaluations" refused 2 'no rank has all weights to generate text.*evaluation.generate' \
  train 2 bad "${keys[@]}" train.shard=parameters evaluation.generate=[Romeo]
check "refuses to offload what is kept in 16 bits only" refused 2 'train.offload=optimizer needs optimizer.masters=fp32' \
  train 1 bad "${text[@]}" "${narrow[@]}" train.offload=optimizer
check "refuses lars" refused 2 'lars needs the norms of whole layers.*set train.shard to none' train 2 bad "${images[@]}" \
  optimizer.kind=lars train.shard=gradients

memory() { # SHARD KINDS ARGUMENT...: bytes per rank
  "$lockstep" plan model.family=llama model.config=smollm-135m data.train=synthetic data.sequence_length=64 data.validation= \
    optimizer.kind=adamw precision=bf16 train.batch_per_rank=1 run.name=plan --ranks 8 --json train.shard="$1" "${@:3}" 2>/dev/null |
    grep -oE '"memory_bytes".*' | grep -oE "\"($2)\":[0-9]+" | cut -d: -f2 | paste -sd+ | bc
}
# SmolLM2-135M has 134.5 million parameters, of which the tied embedding has 28.3: it is in its slot during the whole
# backward pass. Three slots of 28 MB each, the gradients of two layers, are beside it. Of the weights, the embedding and two
# layers of 7.1 MB are gathered at once.
within() { # WHAT PLANNED LIMIT
  echo "$1: $2 bytes, at most $3"
  (($2 <= $3))
}
check "plans an eighth of the gradients' memory, and slots" within gradients \
  "$(memory gradients 'gradients|partial_sums')" $((134515008 * 4 / 8 + 4 * 28311552 + 3 * 29000000))
check "plans two bytes per parameter on a device if the optimizer is offloaded" within parameters \
  "$(memory none 'parameters|compute_weights|optimizer' train.offload=optimizer --device h100)" $((134515008 * 2 + 1000000))
check "plans an eighth of the weights' memory, and that of units" within weights \
  "$(memory parameters 'compute_weights|gathered_weights')" $((134515008 * 2 / 8 + 2 * 28311552 + 2 * 7200000))
finish
