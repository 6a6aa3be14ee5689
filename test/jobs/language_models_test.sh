#!/usr/bin/env bash
# timeout: 300
# The configurations and job scripts of language models, reduced in size only with key=value: what a script starts is
# started here, on the CPU, with a smaller model and less text.
source test/support/check.sh
check_output=$work/log
export LOCKSTEP_DATA=$work LOCKSTEP_RUNS=$work/runs
unset SLURM_JOB_ID SLURM_JOB_NAME LOCKSTEP_HOME
config() { # ARCHITECTURE
  cat <<JSON
{"architectures": ["$1"], "vocab_size": 1024, "hidden_size": 40, "intermediate_size": 48, "num_hidden_layers": 2,
 "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 512, "tie_word_embeddings": true}
JSON
}
config LlamaForCausalLM >"$work/llama.json"
# Runs what a job script starts, with the overrides. The configuration and its keys are those of the script.
job() { # SCRIPT KEY=VALUE...
  local words
  mapfile -d '' -t words < <(OVERRIDES="${*:2}" LOCKSTEP_CHECK=yes bash "jobs/$1")
  [[ ${words[0]} == train ]] &&
    "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n 2 "$lockstep" "${words[@]}" >"$work/log" 2>&1
}
prints() { check "$1" grep -Eq -- "$2" "$work/log"; }
small=(device=cpu cpu.threads=1 precision=bf16 log.progress=false log.tensorboard=false data.sequence_length=32 evaluation.max_samples=8
  schedule.warmup_steps=1 comm.watchdog_seconds=120)

check "gpt_small_shakespeare.yaml" job gpt_small_1gpu.sh "${small[@]}" train.max_steps=2 log.every_steps=1
prints "  with the batch of the configuration" '16 in total = 2 ranks'

# Documents of a few sentences each.
for i in {1..60}; do echo "{\"abstract\": \"$(tail -c +$((100 * i)) LICENSE | head -c 300 | tr -s ' \n"' ' ')\"}"; done >"$work/abstracts.jsonl"
mkdir "$work/text" "$work/abstracts"
import() { "$lockstep" data import text "$work/abstracts.jsonl" "$work/$1" --field abstract --tokenizer data/samples/tokenizer.json "${@:2}"; }
check "imports text" import text/train.h5 --end 50
check "  and the rest of it" import text/val.h5 --start 50
check "smollm135m_text.yaml" job smollm135m_4gpu.sh "${small[@]}" model.config="$work/llama.json" train.global_batch=8 train.max_steps=2
prints "  in bf16" 'bf16'
prints "  evaluates" 'val'
check "  its checkpoint is sound" "$lockstep" checkpoint verify "$LOCKSTEP_RUNS/smollm135m-4gpu/checkpoints/latest"

# The model from which to continue: one step of a Qwen2, with the tokenizer of the abstracts.
config Qwen2ForCausalLM >"$work/qwen2.json"
check "trains a Qwen2" job smollm135m_4gpu.sh "${small[@]}" model.config="$work/qwen2.json" train.global_batch=8 train.max_steps=1 run.name=start
cp -r "$LOCKSTEP_RUNS/start/model" "$work/qwen2-0.5b"
check "imports all abstracts" import abstracts/all.h5
check "  and those for validation" import abstracts/val.h5 --start 45
check "qwen2_0.5b_abstracts.yaml" job qwen2_0.5b_4gpu.sh "${small[@]}" data.end=45 train.global_batch=16 train.epochs=1 train.max_steps=3
prints "  begins with the weights of the directory" "weights from $work/qwen2-0.5b"
prints "  uses a slice of the documents" ' 45 documents'
prints "  accumulates 8 micro-batches per rank" '16 in total = 2 ranks x 1 x 8 accumulated'
check "  its model can be trained further" job qwen2_0.5b_4gpu.sh "${small[@]}" data.end=45 train.global_batch=16 train.epochs=1 \
  train.max_steps=1 model.from="$LOCKSTEP_RUNS/qwen2-0.5b-4gpu/model" run.name=further

# Fine-tuning on conversations: the two tokens of the template are added to the tokenizer.
mkdir "$work/chat" "$work/smollm-135m"
python3 - "$work" <<'PYTHON'
import json, pathlib, sys
work = pathlib.Path(sys.argv[1])
tokenizer = json.loads(pathlib.Path("data/samples/tokenizer.json").read_text())
size = 1 + max(max(tokenizer["model"]["vocab"].values()), *(token["id"] for token in tokenizer["added_tokens"]))
for i, content in enumerate(["<|im_start|>", "<|im_end|>"]):
    tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=size + i, content=content))
(work / "chat/tokenizer.json").write_text(json.dumps(tokenizer))
words = pathlib.Path("LICENSE").read_text().split()
with open(work / "messages.jsonl", "w") as file:
    for i in range(60):
        question, answer = (" ".join(words[20 * i + a:20 * i + b]) for a, b in ((0, 6), (6, 12 + i % 7)))
        file.write(json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}) + "\n")
PYTHON
import_chat() { "$lockstep" data import chat "$work/messages.jsonl" "$work/chat/$1" --tokenizer "$work/chat/tokenizer.json" --template chatml "${@:2}"; }
check "imports conversations" import_chat train.h5 --end 50
check "  and the rest of them" import_chat val.h5 --start 50
sed 's/1024/1026/' "$work/llama.json" >"$work/chat.json"
check "trains the model to begin with" job smollm135m_chat_4gpu.sh "${small[@]}" data.sequence_length=128 model.from=none \
  model.config="$work/chat.json" train.global_batch=8 train.max_steps=1 run.name=start-chat
cp "$LOCKSTEP_RUNS/start-chat/model"/* "$work/smollm-135m"
check "smollm135m_chat.yaml" job smollm135m_chat_4gpu.sh "${small[@]}" data.sequence_length=128 train.global_batch=8 train.epochs=1
prints "  begins with the weights of the directory" "weights from $work/smollm-135m"
prints "  packs conversations" 'windows of 128 tokens, 50 conversations, .* of them in answers'
prints "  accumulates 4 micro-batches per rank" '8 in total = 2 ranks x 1 x 4 accumulated'
check "  its model has the template" grep -q 'im_start' "$LOCKSTEP_RUNS/smollm135m-chat-4gpu/model/chat_template.jinja"

# Every script of jobs/ starts a configuration that exists.
for script in jobs/*.sh; do
  [[ $script != jobs/check.sh && $script != jobs/push_to_hub.sh ]] || continue
  mapfile -d '' -t words < <(LOCKSTEP_CHECK=yes bash "$script")
  files=()
  for word in "${words[@]:1}"; do [[ $word != *.yaml || $word == *=* ]] || files+=("$word"); done
  check "$script starts a configuration that exists" test -s "${files[0]:-none}"
done
finish
