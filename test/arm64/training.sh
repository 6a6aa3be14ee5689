#!/usr/bin/env bash
# timeout: 120
# Trains a ResNet and a language model with the program for aarch64. Two ranks get the same bits as one, and the losses
# equal those of HOST_LOCKSTEP, the program for this machine, up to rounding. For `make test-arm64`.
source test/support/check.sh

cat >"$work/config.json" <<'JSON'
{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 1024, "hidden_size": 40, "intermediate_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
 "tie_word_embeddings": true, "rope_theta": 10000.0, "eos_token_id": 0}
JSON
common=(train.micro_batches=2 reproducible=true train.max_steps=4 log.every_steps=1 log.progress=false
  log.tensorboard=false run.directory="$work" cpu.threads=1)
resnet=(jobs/configs/quickstart.yaml model.width=16 data.image_size=16 train.global_batch=8 evaluation.max_samples=32)
language=(model.family=llama model.config="$work/config.json" data.train=data/samples/shakespeare_train.h5
  data.sequence_length=32 train.global_batch=8 train.epochs=1 optimizer.kind=adamw optimizer.learning_rate=1e-3)

train() { # PROGRAM RANKS NAME [CONFIG] KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$2" "$1" train "${@:4}" "${common[@]}" run.name="$3"
}
same() { cmp "$work/$1/checkpoints/step-00000004.h5" "$work/$2/checkpoints/step-00000004.h5"; }
losses() { sed -n 's/.*"event":"\(step\|evaluation\)".*"loss":\([-+0-9.e]\+\),.*/\2/p' "$work/$1/metrics.jsonl"; }
# near TOLERANCE RUN RUN: there are at least four losses, and each agrees between the two runs up to a relative
# TOLERANCE
near() {
  paste <(losses "$2") <(losses "$3") | tee /dev/stderr | awk -v tolerance="$1" '
    { d = $1 - $2; if (NF != 2 || (d < 0 ? -d : d) > tolerance * $1) bad = 1 }
    END { exit NR < 4 || bad }'
}

for model in resnet language; do
  declare -n keys=$model
  for precision in fp32 bf16; do
    run=$model-$precision
    check "$run: trains on one rank" train "$lockstep" 1 "$run-1" "${keys[@]}" precision=$precision
    check "$run: trains on two ranks" train "$lockstep" 2 "$run-2" "${keys[@]}" precision=$precision
    check "$run: has the same bits on both" same "$run-1" "$run-2"
    check "$run: trains on this machine" train "$HOST_LOCKSTEP" 1 "$run-host" "${keys[@]}" precision=$precision
    check "$run: has the same losses" near 1e-2 "$run-1" "$run-host"
  done
done
finish
