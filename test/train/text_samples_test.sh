#!/usr/bin/env bash
# timeout: 120
# Samples of text that evaluations write while a model is trained (evaluation.generate): they are the same on any number
# of ranks and in `lockstep generate`, and appear in all files of a run; and the best checkpoint by perplexity.
source test/support/check.sh
cat >"$work/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 32, "intermediate_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
 "tie_word_embeddings": true, "rope_theta": 10000.0, "eos_token_id": 0}
JSON
keys=(model.family=llama model.config="$work/config.json" data.train=data/samples/shakespeare_train.h5
  data.validation=data/samples/shakespeare_test.h5 data.sequence_length=16 train.global_batch=8 train.epochs=1
  train.max_steps=6 evaluation.every_steps=3 evaluation.max_samples=16 optimizer.kind=adamw optimizer.learning_rate=2e-2
  optimizer.decay_norms_and_biases=false checkpoint.every_epochs=0 log.progress=false reproducible=true
  train.micro_batches=4 run.directory="$work" cpu.threads=1 comm.watchdog_seconds=120)
prompts='evaluation.generate=["First Citizen: Before we proceed any further", "KING", "What?"]'
train() { # RANKS NAME KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$1" "$lockstep" train "${keys[@]}" run.name="$2" "${@:3}"
}
samples() { grep '"event":"samples"' "$work/$1/metrics.jsonl" | sed -E 's/"time_unix":[0-9.e+]+,//'; }
same_samples() { [[ -n $(samples "$1") && $(samples "$1") == "$(samples "$2")" ]]; }
same() { "$lockstep" checkpoint diff "$work/$1/checkpoints/latest" "$work/$2/checkpoints/latest"; }
last_text() { samples "$1" | tail -1 | python3 -c 'import json, sys; print(json.dumps([s["text"] for s in json.load(sys.stdin)["samples"]]))'; }
generated() { # MODEL
  printf '%s\n' 'First Citizen: Before we proceed any further' 'KING' 'What?' >"$work/prompts.txt"
  "$lockstep" generate "$@" --prompts "$work/prompts.txt" --max-new-tokens 24 --json cpu.threads=1 |
    python3 -c 'import json, sys; print(json.dumps([json.loads(line)["text"] for line in sys.stdin]))'
}

check "trains without samples" train 1 none log.tensorboard=false
check "trains with samples" train 1 one "$prompts" evaluation.generate_tokens=24
check "  with the same bits" same none one
check "  after each evaluation" test "$(samples one | wc -l)" = 2
check "  which are those of generate" test "$(last_text one)" = "$(generated "$work/one/model")"
check "  in the log" grep -q 'sample after step 6 | KING | ' "$work/one/log.txt"
check "  in samples.txt" grep -q -- '--- First Citizen: Before we' "$work/one/samples.txt"
check "  in TensorBoard" grep -aq 'samples/3' "$work/one/tensorboard/"*
check "  on the page of the run" "$lockstep" report "$work/one"
check "    with each prompt" grep -q '<h3>First Citizen: Before we proceed any further</h3>' "$work/one/report.html"
check "two ranks" train 2 two "$prompts" evaluation.generate_tokens=24 log.tensorboard=false
check "  write the same samples" same_samples one two
check "more ranks than prompts" train 4 four "$prompts" evaluation.generate_tokens=24 log.tensorboard=false
check "  write the same samples" same_samples one four
check "bf16" train 1 narrow "$prompts" precision=bf16 log.tensorboard=false
check "  with shards of the optimizer" train 2 shards "$prompts" precision=bf16 train.shard=optimizer log.tensorboard=false
check "    writes the same samples" same_samples narrow shards
check "fp32 with shards and averages of the weights" train 2 averages "$prompts" evaluation.generate_tokens=24 \
  train.shard=optimizer ema.decay=0.9 log.tensorboard=false
check "  writes the same samples" same_samples one averages
check "stops after three steps" train 2 resumed "$prompts" evaluation.generate_tokens=24 train.max_steps=3
check "  and resumes" train 1 resumed "$prompts" evaluation.generate_tokens=24
check "  with the same samples" same_samples one resumed
memory() { "$lockstep" plan "${keys[@]}" run.name=plan --json "$@" 2>/dev/null | grep -oE '"(activations|workspace)": ?[0-9]+' | paste -sd' '; }
check "plans no memory where a step needs more" test -n "$(memory)" -a "$(memory)" = "$(memory "$prompts" train.global_batch=8)"
check "  and more where a step needs less" test "$(memory data.sequence_length=2)" != "$(memory "$prompts" data.sequence_length=2)"
check "trains where a step needs less" train 1 small "$prompts" data.sequence_length=2 log.tensorboard=false
for best in perplexity loss; do
  check "chooses the best by $best" train 1 "best-$best" checkpoint.best=$best optimizer.learning_rate=0.5 log.tensorboard=false
done
check "  which is the same" test "$(readlink "$work/best-loss/checkpoints/best")" = "$(readlink "$work/best-perplexity/checkpoints/best")"
check "  and that of the least perplexity" python3 - "$work/best-perplexity" <<'PYTHON'
import json, pathlib, sys
run = pathlib.Path(sys.argv[1])
events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
best = min((e for e in events if e["event"] == "evaluation"), key=lambda e: e["perplexity"])
assert (run / "checkpoints" / "best").resolve().stem == f"step-{best['step']:08}", best
PYTHON

long=$(printf 'word %.0s' {1..100})
check "refuses a prompt that is too long" refused 2 'evaluation.generate: a prompt has [0-9]+ tokens, but the context of the model has 64' \
  "$lockstep" train "${keys[@]}" run.name=long evaluation.generate="[$long]"
check "refuses prompts without evaluations" refused 2 'evaluation.generate writes samples after evaluations, which need data.validation' \
  "$lockstep" train "${keys[@]}" run.name=none2 data.validation= "$prompts"
check "refuses them for images" refused 2 'evaluation.generate is for language models' "$lockstep" train data.train=synthetic \
  data.validation=synthetic run.directory="$work" "$prompts"
check "leaves them out with synthetic tokens" train 1 synthetic "$prompts" data.train=synthetic data.validation=synthetic \
  data.synthetic_samples=64 log.tensorboard=false
check "  and says so" grep -q 'synthetic data have no tokenizer' "$work/synthetic/log.txt"
finish
