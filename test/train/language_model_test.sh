#!/usr/bin/env bash
# timeout: 200
# A small language model from the command line: the same bits on any number of ranks, resuming, recomputation,
# evaluation, the exported directory, and input that does not fit.
source test/support/check.sh
cat >"$work/config.json" <<'JSON'
{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 1024, "hidden_size": 40, "intermediate_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
 "tie_word_embeddings": true, "rope_theta": 10000.0, "eos_token_id": 0}
JSON
keys=(model.family=llama model.config="$work/config.json" data.train=data/samples/shakespeare_train.h5
  data.validation=data/samples/shakespeare_test.h5 data.sequence_length=32 data.end=0 train.global_batch=8 train.epochs=1
  train.max_steps=6 optimizer.kind=adamw optimizer.learning_rate=1e-3 optimizer.decay_norms_and_biases=false
  train.clip_norm=1 evaluation.max_samples=24 checkpoint.every_steps=3 log.progress=false log.tensorboard=false
  run.directory="$work" cpu.threads=1 comm.watchdog_seconds=120)
bits=(reproducible=true train.micro_batches=4)
train() { # RANKS NAME KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$1" "$lockstep" train "${keys[@]}" run.name="$2" "${@:3}"
}
same() { "$lockstep" checkpoint diff "$work/$1/checkpoints/latest" "$work/$2/checkpoints/latest"; }
differ() { ! same "$@"; }
# Batches of another size are summed in another order, and few rows are multiplied by a different kernel than many.
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && a - b < 1e-8 * a && b - a < 1e-8 * a) }'; }
measure() { sed -n "s/.*\"event\":\"evaluation\".*\"$2\":\([-+0-9.e]*\).*/\1/p" "$1" | tail -1; }

is_part() { awk -v u="$1" 'BEGIN { print u; exit !(u > 0 && u <= 1.05) }'; } # a fraction of the measured matmul rate

check "trains on one rank" train 1 one "${bits[@]}"
check "  uses a part of the matmul rate" is_part "$(sed -nE 's/^  "model_flops_utilization": ([^,]*),$/\1/p' "$work/one/metrics.json")"
check "  the log says so" grep -qE 'step 6/.* [|] MFU [0-9.]+ % [|]' "$work/one/log.txt"
for ranks in 2 4; do
  check "trains on $ranks ranks" train $ranks "ranks$ranks" "${bits[@]}"
  check "  with the same bits" same one "ranks$ranks"
done
check "stops after three steps on two ranks" train 2 resumed "${bits[@]}" train.max_steps=3
check "  and resumes on one" train 1 resumed "${bits[@]}"
check "  with the same bits" same one resumed
for recompute in block selective; do
  check "recomputes: $recompute" train 1 "$recompute" "${bits[@]}" model.recompute=$recompute
  check "  with the same bits" same one "$recompute"
done
check "another seed gives other bits" train 1 seed "${bits[@]}" run.seed=2
check "  which the comparison notices" differ one seed
for i in {1..9}; do echo "{\"text\": \"$(head -c $((30 * i)) LICENSE | tr -s ' \n"' ' ')\"}"; done >"$work/lines.jsonl"
check "imports documents" "$lockstep" data import text "$work/lines.jsonl" "$work/lines.h5" --tokenizer data/samples/tokenizer.json
check "documents one by one" train 1 unpacked data.pack=false data.train="$work/lines.h5"
check "bf16, accumulation" train 2 bf16 precision=bf16 train.accumulate=2
check "synthetic tokens" train 1 synthetic data.train=synthetic data.validation=synthetic data.synthetic_samples=64

# Uses the median, since on a busy machine a reader may not get a processor in time.
waits() { # RUN: the median share of a step, in per cent, in which it waited for data
  sed -nE 's/.*"event":"step".*"step_seconds":([-+0-9.e]+).*"data_wait_seconds":([-+0-9.e]+),"exposed.*/\1 \2/p' "$work/$1/metrics.jsonl" |
    awk '{printf "%.4f\n", 100 * $2 / $1}' | sort -n | awk '{share[NR] = $1} END {if (NR < 20) exit 1; print share[int((NR + 1) / 2)]}'
}
check "twenty steps on packed and shuffled windows" train 2 waits train.max_steps=20 log.every_steps=1 data.sequence_length=64 train.global_batch=16
check "  do not wait for the loader" awk -v share="$(waits waits)" 'BEGIN {print share " % of a step"; exit !(share != "" && share < 1)}'

check "evaluates a run" "$lockstep" evaluate "$work/one" evaluation.max_samples=24 --json="$work/run.json"
for key in loss perplexity; do
  check "  as training did: $key" near "$(measure "$work/one/metrics.jsonl" $key)" "$(grep -oE "\"$key\": ?[-+0-9.e]+" "$work/run.json" | grep -oE '[-+0-9.e]+$')"
done
check "exports a directory" test -s "$work/one/model/config.json" -a -s "$work/one/model/model.safetensors" -a -s "$work/one/model/tokenizer.json"
check "  with the tokenizer of the data" cmp data/samples/tokenizer.json "$work/one/model/tokenizer.json"
check "  which can be evaluated" "$lockstep" evaluate "$work/one/model" data.validation=data/samples/shakespeare_test.h5 \
  data.sequence_length=32 evaluation.max_samples=24 --json="$work/directory.json"
loss() { grep -oE '"loss": ?[0-9.]+' "$1"; }
check "  with the same loss" test "$(loss "$work/run.json")" = "$(loss "$work/directory.json")"
check "  and trained further" train 1 further model.config= model.from="$work/one/model"
check "plans it" "$lockstep" plan "${keys[@]}" run.name=plan --ranks 4

check "a batch that cannot be counted is explained" refused 2 '\[op_description\]' train 1 bad data.train=synthetic \
  data.validation= train.global_batch=4294967295 data.synthetic_samples=4294967295
check "  without a word about images" bash -c "! grep -q image '$work/.refused'"
check "has no confusion matrix" refused 2 'is a language model, which has no confusion matrix' "$lockstep" evaluate "$work/one" \
  evaluation.max_samples=8 --confusion "$work/none.svg"
check "  and writes no picture" test ! -e "$work/none.svg"
check "does not classify" refused 2 'predict classifies images' "$lockstep" predict "$work/one" LICENSE

mkdir "$work/other"
cp "$work/one/model/"{config.json,model.safetensors} "$work/other"
printf '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "added_tokens": []}' >"$work/other/tokenizer.json"
check "refuses another tokenizer" refused 2 'was made with another tokenizer than that of' train 1 bad model.config= model.from="$work/other"
sed 's/1024/1000/' "$work/config.json" >"$work/less.json"
check "refuses ids beyond the vocabulary" refused 2 'has a vocabulary of 1024 tokens, but the model has 1000' \
  train 1 bad model.config="$work/less.json"
mapfile -t short < <(printf '%s\n' "${keys[@]}" | grep -v '^data.sequence_length=')
default_length() { "$lockstep" train "${short[@]}" run.name=default "$@"; }
check "the default is the length of a model with fewer positions" default_length train.max_steps=3
check "  which is recorded" grep -qx '  sequence_length: 64' "$work/default/config.yaml"
check "  also when it is resumed" default_length
check "  and counts the tokens processed" python3 - "$work/default" <<'PYTHON'
import json, sys
events = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
steps = [event for event in events if event["event"] == "step"]
for event in steps:
    assert abs(event["tokens_per_second"] * event["step_seconds"] - 8 * 64) < 1e-6, event
    assert abs(sum(event["per_rank"]["tokens_per_second"]) - event["tokens_per_second"]) < 1e-6, event
    assert 0 < event["loss_tokens_per_second"] < event["tokens_per_second"], event
    assert event["processed_tokens"] == event["step"] * 8 * 64 > event["trained_tokens"], event
evaluation = [event for event in events if event["event"] == "evaluation"][-1]
assert abs(evaluation["tokens_per_second"] * evaluation["evaluation_seconds"] - 24 * 64) < 1e-6, evaluation
summary = json.load(open(sys.argv[1] + "/metrics.json"))
assert summary["processed_tokens"] == 6 * 8 * 64 and summary["tokens"] == steps[-1]["trained_tokens"], summary
assert summary["tokens_per_second"] > summary["loss_tokens_per_second"] > 0, summary
PYTHON
check "  on the terminal" bash -c "'$lockstep' top '$work/default' --once | grep -E '^[0-9.e+]+ tokens/s \([0-9.e+]+ in the loss\)'"
check "  and the page" bash -c "'$lockstep' report '$work/default' && grep -q 'counted in the loss' '$work/default/report.html'"
check "  and beside other runs" bash -c "'$lockstep' compare '$work/default' '$work/one' | grep -E '^loss_tokens_per_second +[0-9.e+]+ +[0-9.e+]+'"
check "refuses sequences beyond the positions" refused 2 'has 64 positions .*set data.sequence_length=64' train 1 bad data.sequence_length=65
check "refuses windows that are larger than the data" refused 2 'data.sequence_length' train 1 bad \
  model.config=smollm-135m data.train=data/samples/shakespeare_test.h5 data.sequence_length=60000
check "refuses a directory without config.json" refused 2 'model.from' train 1 bad model.config= model.from="$work/one"
sed 's/"hidden_size": 40/"hidden_size": 80/' "$work/config.json" >"$work/other/config.json"
check "refuses a config that contradicts its weights" refused 1 'has the shape .*use the config.json that belongs to these weights' train 1 bad model.config= model.from="$work/other" data.train=synthetic data.validation=
finish
