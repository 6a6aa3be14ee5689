#!/usr/bin/env bash
# timeout: 120
# Models by their names on the Hugging Face Hub, in its local cache: training, adapters, tokenizers, revisions, and what
# is said about a model that is not there.
source test/support/check.sh
cat >"$work/config.json" <<'JSON'
{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 1024, "hidden_size": 40, "intermediate_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
 "tie_word_embeddings": true, "rope_theta": 10000.0, "eos_token_id": 0}
JSON
keys=(model.family=llama data.train=data/samples/shakespeare_train.h5 data.validation=data/samples/shakespeare_test.h5
  data.sequence_length=32 train.global_batch=8 train.epochs=1 train.max_steps=1 optimizer.kind=adamw
  schedule.warmup_epochs=0 evaluation.max_samples=24 log.progress=false log.tensorboard=false run.directory="$work"
  cpu.threads=1)
train() { "$lockstep" train "${keys[@]}" run.name="$1" "${@:2}"; }
has() { grep -q -- "$2" "$1"; }
export HF_HOME=$work/home
unset HF_HUB_CACHE
commit=0123456789abcdef0123456789abcdef01234567
model=$HF_HOME/hub/models--some-team--a.model_1
snapshot=$model/snapshots/$commit

check "trains a model" train base model.config="$work/config.json"
mkdir -p "$snapshot" "$model/blobs" "$model/refs"
printf '%s' "$commit" >"$model/refs/main"
for file in "$work"/base/model/*; do # as the library of the Hub stores files
  mv "$file" "$model/blobs/${file##*/}-blob" && ln -s "../../blobs/${file##*/}-blob" "$snapshot/${file##*/}"
done

check "trains it further by its name" train tuned model.from=some-team/a.model_1
check "  records the commit" has "$work/tuned/config.yaml" "from: .*$snapshot"
check "  names the model in the card" has "$work/tuned/model/README.md" 'base_model: some-team/a.model_1'
check "a commit can be given" "$lockstep" plan "${keys[@]}" model.from=some-team/a.model_1@$commit
check "trains adapters" train adapters model.from=some-team/a.model_1 model.lora.rank=2
check "  which name it" has "$work/adapters/model/adapter_config.json" '"base_model_name_or_path": "some-team/a.model_1"'
check "  evaluates them" "$lockstep" evaluate "$work/adapters/model" data.validation=data/samples/shakespeare_test.h5 \
  data.sequence_length=32 evaluation.max_samples=24
check "  merges them by its name" "$lockstep" checkpoint merge some-team/a.model_1 "$work/adapters" "$work/merged"
check "  and with another cache" env HF_HUB_CACHE="$HF_HOME/hub" HF_HOME=/none "$lockstep" checkpoint merge \
  some-team/a.model_1 "$work/adapters" "$work/merged-again"
check "imports it" "$lockstep" checkpoint import some-team/a.model_1 "$work/imported.h5"
check "generates with it" "$lockstep" generate some-team/a.model_1 --prompt "O Romeo" --max-new-tokens 2
check "encodes with its tokenizer" bash -c "echo O Romeo | '$lockstep' data encode some-team/a.model_1 -"
mkdir -p "$work/some-team" && cp -rL "$snapshot" "$work/some-team/a.model_1"
check "a directory of that name comes first" bash -c "cd '$work' && '$(realpath "$lockstep")' checkpoint verify some-team/a.model_1 | grep -q '^some-team/a.model_1 is complete'"

missing='fetch it on a machine with a network, with `hf download some-team/other`'
check "a model that is not there is refused" refused 2 "$missing" "$lockstep" plan "${keys[@]}" model.from=some-team/other
check "  to generate" refused 1 "$missing" "$lockstep" generate some-team/other --prompt a
check "  to import" refused 1 "$missing" "$lockstep" checkpoint import some-team/other "$work/other.h5"
check "  a revision, too" refused 2 'hf download some-team/a.model_1 --revision v2' \
  "$lockstep" plan "${keys[@]}" model.from=some-team/a.model_1@v2

dataset=$HF_HOME/hub/datasets--some-team--texts
mkdir -p "$dataset/snapshots/$commit" "$dataset/refs" "$dataset/blobs"
printf '%s' "$commit" >"$dataset/refs/main"
head -c 3000 LICENSE >"$dataset/blobs/text" && ln -s ../../blobs/text "$dataset/snapshots/$commit/a.txt"
import() { "$lockstep" data import text "$1" "$work/texts.h5" --force --tokenizer data/samples/tokenizer.json; }
check "a data set is found by its name" import some-team/texts
check "  which the file records, with the commit" bash -c "'$lockstep' data info '$work/texts.h5' --json | grep -q '\"some-team/texts@$commit\"'"
check "  also for a file in it" import "$dataset/snapshots/$commit/a.txt"
check "  with its path" bash -c "'$lockstep' data info '$work/texts.h5' --json | grep -q '\"some-team/texts@$commit/a.txt\"'"
check "  a commit can be given" import some-team/texts@$commit
check "one that is not there is refused" refused 1 '`hf download --repo-type dataset some-team/a.model_1`' import some-team/a.model_1
check "  for images" refused 1 '`hf download --repo-type dataset some-team/other --revision v2`' \
  "$lockstep" data import imagefolder some-team/other@v2 "$work/other.h5"
mkdir "$work/bin"
printf '#!/bin/bash\necho "$@" >%q\n[[ $4 != */gated ]]\n' "$work/fetched" >"$work/bin/hf"
chmod +x "$work/bin/hf"
check "get_dataset.sh fetches a revision" env PATH="$work/bin:$PATH" data/get_dataset.sh some-team/texts@v2
check "  with hf" grep -qx 'download --repo-type dataset some-team/texts --revision v2' "$work/fetched"
check "  and says what a licence needs" refused 1 'hf auth login' env PATH="$work/bin:$PATH" data/get_dataset.sh some-team/gated
check "  no other name" refused 2 usage data/get_dataset.sh ../texts

printf '../../../escape' >"$model/refs/main"
check "a reference that leads elsewhere is not followed" refused 2 'hf download some-team/a.model_1' \
  "$lockstep" plan "${keys[@]}" model.from=some-team/a.model_1
finish
