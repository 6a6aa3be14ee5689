#!/usr/bin/env bash
# timeout: 200
# Adapters (model.lora) from the command line: the same bits on any number of ranks, and when resumed, sharded or
# recomputed; the files of a run, evaluation, generation, merging, and input that does not fit.
source test/support/check.sh
cat >"$work/config.json" <<'JSON'
{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 1024, "hidden_size": 40, "intermediate_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
 "tie_word_embeddings": true, "rope_theta": 10000.0, "eos_token_id": 0}
JSON
keys=(model.family=llama data.train=data/samples/shakespeare_train.h5 data.validation=data/samples/shakespeare_test.h5
  data.sequence_length=32 train.global_batch=8 train.epochs=1 train.max_steps=4 optimizer.kind=adamw
  optimizer.learning_rate=1e-2 schedule.warmup_epochs=0 train.clip_norm=1 evaluation.max_samples=24 checkpoint.every_steps=2
  log.progress=false log.tensorboard=false run.directory="$work" cpu.threads=1 comm.watchdog_seconds=120 reproducible=true
  train.micro_batches=4)
adapters=(model.from="$work/base/model" model.lora.rank=4 model.lora.dropout=0.1)
train() { # RANKS NAME KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$1" "$lockstep" train "${keys[@]}" run.name="$2" "${@:3}"
}
same() { "$lockstep" checkpoint diff "$work/$1/checkpoints/latest" "$work/$2/checkpoints/latest"; }
differ() { ! same "$@"; }
has_only_adapters() { "$lockstep" checkpoint info "$1" | awk '/^\/(parameters|optimizer)/ {n++; if (!/lora_[AB]/) exit 1} END {exit n != 84}'; }
loss() { grep -oE '"loss": ?[0-9.e-]+' "$1" | tail -1 | grep -oE '[0-9.e-]+$'; }
measured() { sed -n 's/.*"event":"evaluation".*"loss":\([0-9.e-]*\).*/\1/p' "$work/$1/metrics.jsonl" | tail -1; }
near() { awk -v a="$1" -v b="$2" -v e="$3" 'BEGIN {print a, b; exit !(a > 0 && a - b < e * a && b - a < e * a) }'; }

check "trains a base" train 1 base model.config="$work/config.json" train.max_steps=2
for precision in fp32 bf16; do
  check "adapters in $precision on one rank" train 1 $precision "${adapters[@]}" precision=$precision
  check "  have a checkpoint without the base" has_only_adapters "$work/$precision/checkpoints/latest"
  check "  and on two ranks" train 2 "$precision-2" "${adapters[@]}" precision=$precision
  check "  the same bits" same $precision "$precision-2"
done
lora=("${adapters[@]}" precision=bf16)
check "stops after two steps on two ranks" train 2 resumed "${lora[@]}" train.max_steps=2
check "  and resumes on three with shards" train 3 resumed "${lora[@]}" train.shard=optimizer
check "  with the same bits" same bf16 resumed
for recompute in block selective; do
  check "recomputes: $recompute" train 1 $recompute "${lora[@]}" model.recompute=$recompute
  check "  with the same bits" same bf16 $recompute
done
check "another seed drops other elements" train 1 seed "${lora[@]}" run.seed=2
check "  and gives other bits" differ bf16 seed
check "rsLoRA, some targets, averages" train 1 some "${lora[@]}" model.lora.rslora=true 'model.lora.targets=[q, v]' ema.decay=0.9
check "a random base, with synthetic tokens" train 2 random data.train=synthetic data.validation=synthetic \
  data.synthetic_samples=64 model.config="$work/config.json" model.lora.rank=2 precision=bf16

model=$work/fp32/model
check "writes the files of PEFT" test -s "$model/adapter_config.json" -a -s "$model/adapter_model.safetensors" -a -s "$model/tokenizer.json"
check "  which name the base" grep -q "\"base_model_name_or_path\": \"$work/base/model\"" "$model/adapter_config.json"
check "evaluates the run" "$lockstep" evaluate "$work/fp32" evaluation.max_samples=24 --json="$work/run.json"
check "  as training did" near "$(measured fp32)" "$(loss "$work/run.json")" 1e-6
data=(data.validation=data/samples/shakespeare_test.h5 data.sequence_length=32 evaluation.max_samples=24)
check "evaluates the directory" "$lockstep" evaluate "$model" "${data[@]}" --json="$work/directory.json"
check "  with the same loss" near "$(loss "$work/run.json")" "$(loss "$work/directory.json")" 1e-12
check "merges" "$lockstep" checkpoint merge "$work/base/model" "$work/fp32" "$work/merged" --license mit --max-shard-size 180KB
check "  into files of that size" test -s "$work/merged/model-00002-of-00002.safetensors"
check "  with a card of the run" grep -q "^A language model, trained as adapters of .model. and merged into its weights with Lockstep" "$work/merged/README.md"
check "  with the licence" grep -qx 'license: mit' "$work/merged/README.md"
check "  and the curve" grep -q '^## Losses' "$work/merged/README.md"
check "  for transformers" grep -q 'model = AutoModelForCausalLM' "$work/merged/README.md"
check "  which may be published" bash -c "LOCKSTEP='$lockstep' jobs/push_to_hub.sh '$work/merged' team/model | grep 'dry run, nothing was uploaded'"
for name in base/model fp32/model; do
  check "  never over its input $name" refused 2 'is an input of this command' "$lockstep" checkpoint merge "$work/base/model" \
    "$work/fp32/model" "$work/$name" --force
done
check "  into a model of the same loss" "$lockstep" evaluate "$work/merged" "${data[@]}" --json="$work/merged.json"
check "  up to rounding" near "$(loss "$work/run.json")" "$(loss "$work/merged.json")" 1e-5
check "  and not that of the base" refused 1 '.*' near "$(loss "$work/run.json")" "$(measured base)" 1e-5
check "exports" "$lockstep" checkpoint export "$work/fp32/checkpoints/latest" "$work/exported"
check "  the same adapters" cmp "$model/adapter_model.safetensors" "$work/exported/adapter_model.safetensors"
check "imports" "$lockstep" checkpoint import "$work/exported" "$work/imported.h5"
check "  the same adapters" "$lockstep" checkpoint merge "$work/base/model" "$work/imported.h5" "$work/again"
check "  with the same result" "$lockstep" checkpoint diff "$work/merged" "$work/again"
check "trains imported adapters further" train 1 further "${adapters[@]}" model.initialize_from="$work/imported.h5"
check "generates" "$lockstep" generate "$work/fp32" --prompt "O Romeo" --max-new-tokens 8 --json="$work/reply.json"
check "  never over the base of the adapters" refused 2 'is an input of this command' "$lockstep" generate "$work/fp32" \
  --prompt "O Romeo" --json="$work/base/model/config.json"
check "  what the merged model does" "$lockstep" generate "$work/merged" --prompt "O Romeo" --max-new-tokens 8 --json="$work/reply2.json"
check "  token by token" test "$(grep -o '"tokens":[^]]*' "$work/reply.json")" = "$(grep -o '"tokens":[^]]*' "$work/reply2.json")"
plan() { "$lockstep" plan "${keys[@]}" "${adapters[@]}" precision=bf16 "$@"; }
check "plans without masters of the base" plan --json="$work/plan.json"
check "  of 2 bytes per parameter" awk -F'[:,]' '/"parameters"/ {p = $2} /"compute_weights"/ {exit !($2 > 100000 && $2 < 140000)}' "$work/plan.json"

nf4=("${adapters[@]}" model.base_precision=nf4)
check "a base in NF4" train 1 nf4 "${nf4[@]}"
check "  and on two ranks, with recomputation" train 2 nf4-2 "${nf4[@]}" model.recompute=block
check "  the same bits" same nf4 nf4-2
check "  other ones than beside the base itself" differ fp32 nf4
check "  stops after two steps in bf16" train 2 nf4-16 "${nf4[@]}" precision=bf16 train.max_steps=2
check "  and resumes with shards" train 3 nf4-16 "${nf4[@]}" precision=bf16 train.shard=optimizer
check "  as one rank trains it" train 1 nf4-16-1 "${nf4[@]}" precision=bf16
check "  bit by bit" same nf4-16 nf4-16-1
check "evaluates it" "$lockstep" evaluate "$work/nf4" evaluation.max_samples=24 --json="$work/nf4.json"
check "  as training did" near "$(measured nf4)" "$(loss "$work/nf4.json")" 1e-6
check "says how to load its base" grep -q 'bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype="float32"' "$work/nf4/model/README.md"
check "lists all keys of adapters" grep -q '^| model.lora.alpha | ' "$work/nf4/model/README.md"
check "merges it" "$lockstep" checkpoint merge "$work/base/model" "$work/nf4" "$work/nf4-merged"
check "  into a model" "$lockstep" evaluate "$work/nf4-merged" "${data[@]}" --json="$work/nf4-merged.json"
check "  of the same loss" near "$(loss "$work/nf4.json")" "$(loss "$work/nf4-merged.json")" 1e-5
check "plans the bytes of a parameter in NF4" bash -c "'$lockstep' plan model.family=llama model.config=smollm-135m \
  data.train=synthetic data.sequence_length=64 train.global_batch=1 precision=bf16 optimizer.kind=adamw model.lora.rank=8 \
  model.base_precision=nf4 | grep -E '^  base \(nf4\) +52.2 MiB  0.516 bytes for each of 106168320 parameters'"
check "refuses NF4 without adapters" refused 2 'model.base_precision=nf4 stores matrices that are not trained: set model.lora.rank' \
  train 1 none model.from="$work/base/model" model.base_precision=nf4

check "refuses settings of adapters without a rank" refused 2 'its rank is 0, which trains the whole model: set model.lora.rank' \
  train 1 none model.from="$work/base/model" model.lora.alpha=32
check "needs a base" refused 2 'set model.from=DIRECTORY, or' train 1 none model.config="$work/config.json" model.lora.rank=4
check "refuses a target that no layer has" refused 2 'model.lora.targets.* expected .*\[q, k, v, o, gate, up, down\].*head' \
  train 1 none "${adapters[@]}" 'model.lora.targets=[q, head]'
check "refuses no targets" refused 2 'model.lora.targets: expected at least one' train 1 none "${adapters[@]}" 'model.lora.targets=[]'
check "another base" train 1 base2 model.config="$work/config.json" train.max_steps=2 run.seed=5
check "  is refused by a run that resumes" refused 2 'adapters for another base .* name the base' train 1 fp32 \
  "${adapters[@]}" model.from="$work/base2/model" train.max_steps=5 --allow-change model.from
check "  and by merge" refused 2 'adapters for another base' "$lockstep" checkpoint merge "$work/base2/model" "$work/fp32" "$work/bad"
check "  and by evaluate" refused 2 'adapters for another base' "$lockstep" evaluate "$work/fp32" model.from="$work/base2/model" evaluation.max_samples=8
check "refuses a base of another shape" bash -c "sed 's/\"num_hidden_layers\": 2/\"num_hidden_layers\": 1/' $work/config.json >$work/one.json"
check "  trains it" train 1 base1 model.config="$work/one.json" train.max_steps=1
check "  is refused" refused 2 'has the shape .3, 56., but .3, 40. beside this base' "$lockstep" checkpoint merge "$work/base1/model" test/golden/lora_qwen2 "$work/bad"
check "refuses adapters as a model" refused 2 'lora.rank is 0: set it, or merge' train 1 none model.config="$work/config.json" model.initialize_from="$model"
check "refuses adapters as a base" refused 2 'set model.from=DIRECTORY to that base' train 1 none "${adapters[@]}" model.from="$model" model.config="$work/config.json"
check "refuses another rank" refused 2 'model.lora.rank=4' train 1 none "${adapters[@]}" model.lora.rank=2 model.initialize_from="$model"
check "refuses another rank when it resumes" refused 2 'model.lora.rank: 4 before, 8 now' train 1 fp32 "${adapters[@]}" model.lora.rank=8
check "refuses a file as the target" refused 2 'exported as a directory of PEFT' "$lockstep" checkpoint export "$work/fp32/checkpoints/latest" "$work/bad.safetensors"
sed 's/"use_rslora": false/"use_dora": true/' "$model/adapter_config.json" >"$work/exported/adapter_config.json"
check "refuses DoRA" refused 2 'use_dora is true' "$lockstep" checkpoint import "$work/exported" "$work/bad.h5"
sed '/"o_proj"/d' "$model/adapter_config.json" >"$work/exported/adapter_config.json"
check "refuses modules that are not those of the tensors" refused 2 'target_modules names .*, but adapter_model.safetensors has adapters of .*, o, ' \
  "$lockstep" checkpoint import "$work/exported" "$work/bad.h5"
check "refuses shards of adapters" refused 2 'adapters are exported as one file' "$lockstep" checkpoint export "$work/fp32/checkpoints/latest" "$work/bad" \
  --max-shard-size 1MB
check "refuses a base of a whole model" refused 2 'is for adapters .model.lora. and .* is a whole model' "$lockstep" checkpoint export \
  "$work/base/checkpoints/latest" "$work/bad" --base "$work/base/model"
check "generates with the configuration of a language model only" refused 2 'the configuration describes a resnet' "$lockstep" generate \
  jobs/configs/quickstart.yaml --checkpoint "$work/base/checkpoints/latest" --prompt a
check "leaves nothing half-written" test ! -e "$work/bad" -a ! -e "$work/bad.h5" -a ! -e "$work/none/checkpoints"
finish
