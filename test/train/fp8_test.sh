#!/usr/bin/env bash
# precision=fp8 from the command line: the same bits on any number of ranks, after a resume and with recomputation;
# evaluation and generation, which are in bf16; adapters; and what fp8 cannot be used for.
source test/support/check.sh
model='"architectures": ["Qwen2ForCausalLM"], "vocab_size": 1024, "intermediate_size": 48, "num_hidden_layers": 2,
  "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": true, "eos_token_id": 0'
echo "{$model, \"hidden_size\": 48}" >"$work/config.json"
echo "{$model, \"hidden_size\": 72}" >"$work/odd.json"
keys=(model.family=llama model.config="$work/config.json" data.train=data/samples/shakespeare_train.h5
  data.validation=data/samples/shakespeare_test.h5 data.sequence_length=32 train.global_batch=8 train.epochs=1
  train.max_steps=4 optimizer.kind=adamw optimizer.learning_rate=1e-3 evaluation.max_samples=24
  checkpoint.every_steps=2 log.progress=false log.tensorboard=false run.directory="$work" cpu.threads=1 device=cpu
  reproducible=true train.micro_batches=4 precision=fp8)
train() { # RANKS NAME KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$1" "$lockstep" train "${keys[@]}" run.name="$2" "${@:3}"
}
same() { "$lockstep" checkpoint diff "$work/$1/checkpoints/latest" "$work/$2/checkpoints/latest"; }
differ() { ! same "$@"; }

check "trains on one rank" train 1 one
check "  in fp8" grep -q 'precision: fp8$' "$work/one/log.txt"
check "  which a CPU emulates" grep -q 'processors have no products in fp8' "$work/one/log.txt"
check "3 ranks" train 3 three
check "  have the bits of one" same one three
check "stops after two steps on two ranks" train 2 resumed train.max_steps=2
check "  another precision is refused" refused 2 'precision: fp8 before, bf16 now' train 1 resumed precision=bf16
check "  resumes on one" train 1 resumed
check "  with the same bits" same one resumed
for recompute in block selective; do
  check "recomputes: $recompute" train 1 $recompute model.recompute=$recompute
  check "  with the same bits" same one $recompute
done
narrow=(train.gradient_type=bf16 optimizer.moments=bf16 optimizer.masters=none)
check "with gradients, moments and weights in bf16 only" train 1 narrow "${narrow[@]}"
check "  3 ranks with shards" train 3 narrow3 "${narrow[@]}" train.shard=optimizer
check "  have the bits of one" same narrow narrow3
check "bf16" train 1 bf16 precision=bf16
check "  gives other bits" differ one bf16

check "evaluates the run, in bf16" "$lockstep" evaluate "$work/one" evaluation.max_samples=24 --json="$work/evaluated.json"
check "  as training did" python3 -c '
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
trained = [line["loss"] for line in lines if line["event"] == "evaluation"][-1]
evaluated = json.load(open(sys.argv[2]))["loss"]
assert abs(evaluated / trained - 1) < 1e-6, (evaluated, trained)' "$work/one/metrics.jsonl" "$work/evaluated.json"
for precision in "" precision=fp8; do
  check "generates${precision:+ with $precision}" "$lockstep" generate "$work/one" --prompt "To be" --max-new-tokens 4 $precision
done
check "adapters" train 1 adapters model.from="$work/one/model" model.lora.rank=4

check "a ResNet is refused" refused 2 'precision=fp8 is for language models, and model.family is resnet' \
  "$lockstep" plan data.train=synthetic data.validation= device=cpu precision=fp8
check "so is a base in NF4" refused 2 'precision=fp8 and model.base_precision=nf4' \
  "$lockstep" plan "${keys[@]}" model.from="$work/one/model" model.lora.rank=4 model.base_precision=nf4
check "so are other widths" refused 2 ', 72\) -> 120: set precision=bf16$' "$lockstep" plan "${keys[@]}" model.config="$work/odd.json"
check "and other numbers of tokens" refused 2 '\(8, 48\) -> 80: set precision=bf16, or data.sequence_length to a multiple of 16$' \
  "$lockstep" plan "${keys[@]}" data.sequence_length=8 train.micro_batches=8
if "$lockstep" plan "${keys[@]}" device=cuda precision=bf16 --device h200 >/dev/null 2>&1; then
  check "is planned for an H200" "$lockstep" plan "${keys[@]}" device=cuda --device h200
  check "an A100 is refused" refused 2 'compute capability 8.0\) does not multiply in fp8, which needs 8.9 or higher: set precision=bf16' \
    "$lockstep" plan "${keys[@]}" device=cuda --device a100
fi

finish
