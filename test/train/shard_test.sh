#!/usr/bin/env bash
# timeout: 300
# The optimizer sharded over ranks: the same checkpoints as without sharding, on any number of ranks and nodes, after
# resuming with and without it, and with less memory. Also with gradients, moments and weights in bf16 only.
source test/support/check.sh
cat >"$work/config.json" <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 160, "head_dim": 16,
 "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
 "tie_word_embeddings": true, "rope_theta": 10000.0, "eos_token_id": 0}
JSON
common=(train.max_steps=6 train.epochs=1 train.clip_norm=0.5 train.micro_batches=4 reproducible=true checkpoint.every_steps=3
  evaluation.every_steps=2 comm.bucket_mb=0.1 log.progress=false log.tensorboard=false run.directory="$work" cpu.threads=1
  comm.watchdog_seconds=120)
text=(model.family=llama model.config="$work/config.json" data.train=data/samples/shakespeare_train.h5
  data.validation=data/samples/shakespeare_test.h5 data.sequence_length=32 train.global_batch=8 evaluation.max_samples=9
  optimizer.kind=adamw optimizer.learning_rate=1e-3 optimizer.decay_norms_and_biases=false)
images=(data.train=data/samples/cifar10_train.h5 data.validation=data/samples/cifar10_test.h5 model.depth=18 model.width=8 train.global_batch=16 evaluation.max_samples=10 data.end=128)
train() { # RANKS NAME KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$1" "$lockstep" train "${common[@]}" run.name="$2" "${@:3}"
}
same() { "$lockstep" checkpoint diff "$work/$1/checkpoints/latest" "$work/$2/checkpoints/latest"; }
# Losses are rounded, because those of samples are added rank by rank.
losses() { sed -n 's/.*"event":"evaluation".*"loss":\([0-9.e-]*\).*/\1/p' "$work/$1/metrics.jsonl" | xargs printf '%.9f\n'; }
averages() { sed -n 's/.*"ema_loss":\([0-9.e-]*\).*/\1/p' "$work/$1/metrics.jsonl" | xargs printf '%.9f\n'; }
equal_losses() { [[ $(losses "$1" | wc -l) == 3 && $(losses "$1") == "$(losses "$2")" ]]; }

narrow=("${text[@]}" precision=bf16 train.gradient_type=bf16 optimizer.moments=bf16 optimizer.masters=none)
for kind in text_bf16 text_fp32 narrow images; do
  case $kind in
  text_bf16) keys=("${text[@]}" precision=bf16) ;;
  text_fp32) keys=("${text[@]}") ;;
  narrow) keys=("${narrow[@]}") ;;
  images) keys=("${images[@]}") ;;
  esac
  check "$kind: trains without shards" train 2 "$kind" "${keys[@]}"
  for ranks in 2 3 4; do
    check "$kind: trains with shards on $ranks ranks" train $ranks "$kind$ranks" "${keys[@]}" train.shard=optimizer
    check "  with the same bits" same "$kind" "$kind$ranks"
    check "  and the same evaluations" equal_losses "$kind" "$kind$ranks"
  done
done
keys=("${text[@]}" precision=bf16)
check "exports the same model" cmp "$work/text_bf16/model/model.safetensors" "$work/text_bf163/model/model.safetensors"
check "stops after three steps with shards" train 3 resumed "${keys[@]}" train.shard=optimizer train.max_steps=3
check "  and resumes without" train 2 resumed "${keys[@]}"
check "  with the same bits" same text_bf16 resumed
check "stops after three steps without shards" train 1 sharded "${keys[@]}" train.max_steps=3
check "  and resumes with" train 4 sharded "${keys[@]}" train.shard=optimizer
check "  with the same bits" same text_bf16 sharded
export LOCKSTEP_RANKS_PER_NODE=2
check "trains on two nodes" train 4 nodes "${keys[@]}" train.shard=optimizer
check "  with the same bits" same text_bf16 nodes
check "trains on two nodes in bf16 only" train 4 narrow_nodes "${narrow[@]}"
check "  with the same bits" same narrow narrow_nodes
unset LOCKSTEP_RANKS_PER_NODE
check "stops after three steps in bf16 only, on 1 rank" train 1 narrow_resumed "${narrow[@]}" train.max_steps=3
check "  and resumes with shards on 3" train 3 narrow_resumed "${narrow[@]}" train.shard=optimizer
check "  with the same bits" same narrow narrow_resumed
for key in train.gradient_type=bf16 optimizer.moments=bf16 optimizer.masters=none; do
  check "trains with $key alone" train 1 alone "${text[@]}" precision=bf16 $key --fresh
  check "  with shards" train 2 alone2 "${text[@]}" precision=bf16 $key train.shard=optimizer --fresh
  check "  with the same bits" same alone alone2
done
check "needs bf16" refused 2 'need precision=bf16' train 1 bad "${narrow[@]}" precision=fp32
check "needs no averages" refused 2 'need ema.decay=0' train 1 bad "${narrow[@]}" ema.decay=0.9
check "trains by MPI alone" train 3 mpi "${keys[@]}" train.shard=optimizer comm.backend=mpi
check "  with the same bits" same text_bf16 mpi
check "trains with frozen layers" train 2 frozen "${keys[@]}" train.freeze=[model.embed_tokens]
check "  and with shards" train 2 frozen2 "${keys[@]}" train.freeze=[model.embed_tokens] train.shard=optimizer
check "  with the same bits" same frozen frozen2
ema=(ema.decay=0.5 ema.every_steps=2)
for kind in text_bf16 text_fp32 images; do
  case $kind in
  text_bf16) keys=("${text[@]}" precision=bf16) model=model_ema/model ;;
  text_fp32) keys=("${text[@]}") model=model_ema/model ;;
  images) keys=("${images[@]}") model=model_ema ;;
  esac
  check "$kind: averages its weights" train 2 "ema_$kind" "${keys[@]}" "${ema[@]}"
  check "  which changes nothing else" equal_losses "ema_$kind" "$kind"
  check "  with shards on 3 ranks" train 3 "ema3_$kind" "${keys[@]}" "${ema[@]}" train.shard=optimizer
  check "  has the same bits" same "ema_$kind" "ema3_$kind"
  check "  and the same evaluations" cmp <(averages "ema_$kind") <(averages "ema3_$kind")
  check "  and exports the same averages" cmp "$work/ema_$kind/$model.safetensors" "$work/ema3_$kind/$model.safetensors"
  check "  stops after three steps on 4 ranks" train 4 "emar_$kind" "${keys[@]}" "${ema[@]}" train.shard=optimizer train.max_steps=3
  check "  and resumes without shards on 1" train 1 "emar_$kind" "${keys[@]}" "${ema[@]}"
  check "  with the same bits" same "ema_$kind" "emar_$kind"
done
check "starts from a model" train 2 initialized "${images[@]}" model.initialize_from="$work/images/checkpoints/latest" train.max_steps=2
check "  with shards" train 3 initialized3 "${images[@]}" model.initialize_from="$work/images/checkpoints/latest" train.max_steps=2 train.shard=optimizer
check "  with the same bits" same initialized initialized3

memory() { # WHAT KEY=VALUE...
  "$lockstep" plan model.family=llama model.config=smollm-135m data.train=synthetic data.sequence_length=64 data.validation= \
    optimizer.kind=adamw precision=bf16 train.batch_per_rank=1 run.name=plan --ranks 4 --json "${@:2}" |
    grep -oE "\"memory_bytes\".*" | grep -oE "\"$1\":[0-9]+" | head -1 | cut -d: -f2
}
quarter() { # WHAT
  local whole shard
  whole=$(memory "$1") shard=$(memory "$1" train.shard=optimizer)
  echo "$whole bytes, and $shard with shards"
  ((shard * 100 < whole * 26 && shard * 100 > whole * 24))
}
check "plans a quarter of the optimizer's memory" quarter optimizer
averages_quarter() { # like an optimizer state, of which AdamW has two
  local whole shard
  whole=$(memory averages ema.decay=0.9) shard=$(memory averages ema.decay=0.9 train.shard=optimizer)
  echo "$whole bytes, and $shard with shards"
  ((shard * 100 < whole * 26 && shard * 100 > whole * 24))
}
check "  and of the averages'" averages_quarter
check "  and of the masters'" quarter parameters
check "refuses lars" refused 2 'lars needs the norms of whole layers.*set train.shard to none' train 2 bad "${images[@]}" \
  optimizer.kind=lars train.shard=optimizer
finish
