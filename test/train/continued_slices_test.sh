#!/usr/bin/env bash
# timeout: 300
# cores: 2
# Training on one slice of the documents after another, as in the recipe of docs/data.md: the names of checkpoints
# contain the slice and the epoch, and training continues from any of them on a different number of ranks.
source test/support/check.sh
check_output=$work/log
for i in {1..40}; do echo "{\"text\": \"$(tail -c +$((150 * i)) LICENSE | head -c 120 | tr -s ' \n"' ' ')\"}"; done >"$work/lines.jsonl"
cat >"$work/model.json" <<'JSON'
{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 1024, "hidden_size": 16, "intermediate_size": 24,
 "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
JSON
check "imports 40 documents" "$lockstep" data import text "$work/lines.jsonl" "$work/all.h5" --tokenizer data/samples/tokenizer.json
keys=(model.family=llama model.config="$work/model.json" data.train="$work/all.h5" data.pack=false data.sequence_length=24
  data.validation="$work/all.h5" evaluation.max_samples=4 train.global_batch=4 train.micro_batches=4 reproducible=true
  optimizer.kind=adamw optimizer.learning_rate=0.01 'checkpoint.name="{model}_{start}-{end}-epoch-{epoch}"' checkpoint.keep=0
  device=cpu log.tensorboard=false log.progress=false log.every_steps=1 run.directory="$work" comm.watchdog_seconds=120)
train() { # RANKS NAME KEY=VALUE...
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$1" "$lockstep" train "${keys[@]}" run.name="$2" "${@:3}" >"$work/log" 2>&1
}
train_refused() { train "$@"; local status=$?; cat "$work/log"; return $status; }
same() { "$lockstep" checkpoint diff "$work/$1" "$work/$2"; }
names() { (cd "$work/$1/checkpoints" && echo *.h5); }

check "trains on the documents 0 to 19" train 1 first data.end=20 train.epochs=2
name=$(cd "$work/first/checkpoints" && ls | sed -n 's/_0-20-epoch-1.h5$//p')
check "  whose checkpoints have the slice and the epoch in their names" test "$(names first)" == "${name}_0-20-epoch-1.h5 ${name}_0-20-epoch-2.h5"
check "  and the name of the model" grep -qE '^qwen2-0\.[0-9]m$' <<<"$name"
check "  as on two ranks, bit by bit" train 2 two data.end=20 train.epochs=2
check "  after the last epoch" same "first/checkpoints/${name}_0-20-epoch-2.h5" "two/checkpoints/${name}_0-20-epoch-2.h5"

# With only the weights: a new run, from step 0.
next=(data.start=20 data.end=40 train.epochs=1)
for epoch in 1 2; do
  from=$work/first/checkpoints/${name}_0-20-epoch-$epoch.h5
  check "starts from epoch $epoch on two ranks" train 2 "from$epoch" model.initialize_from="$from" "${next[@]}"
  check "  with the next slice" test "$(names "from$epoch")" == "${name}_20-40-epoch-1.h5"
  check "  and on three ranks" train 3 "again$epoch" model.initialize_from="$from" "${next[@]}"
  check "  with the same bits" same "from$epoch/checkpoints/latest" "again$epoch/checkpoints/latest"
done
check "  epochs lead to different models" refused 1 'tensors differ' same from1/checkpoints/latest from2/checkpoints/latest
card() { grep -A40 '^Slices of the training data' "$work/$1/model/README.md" | sed -n 's/^| \([0-9].*\) |$/\1/p' | head -4; }
check "the card lists the slices with their steps" test "$(card from1)" == $'0 to 19 | 5\n20 to 39 | 5'

# With the state of the optimizer: the run continues.
from=$work/first/checkpoints/${name}_0-20-epoch-1.h5
next=(data.start=20 data.end=40 train.epochs=2 checkpoint.resume_from="$from")
check "another slice is a change" refused 2 'data.start: 0 before, 20 now' train_refused 2 resumed "${next[@]}"
allow=(--allow-change data.start --allow-change data.end)
check "  which --allow-change permits" train 2 resumed "${next[@]}" "${allow[@]}"
check "  the run has the second epoch" test "$(names resumed)" == "${name}_20-40-epoch-2.h5"
check "  on four ranks too" train 4 resumed4 "${next[@]}" "${allow[@]}"
check "  with the same bits" same resumed/checkpoints/latest resumed4/checkpoints/latest
check "  the card lists both slices" test "$(card resumed)" == $'0 to 19 | 5\n20 to 39 | 5'
check "  and is the same but for ranks and time" diff <(grep -vE '^(\| ranks |\| time |# |- name: res)' "$work/resumed/model/README.md") \
  <(grep -vE '^(\| ranks |\| time |# |- name: res)' "$work/resumed4/model/README.md")
check "a third slice" train 2 third data.start=0 data.end=40 train.epochs=1 model.initialize_from="$work/resumed/checkpoints/latest"
check "  continues the list" test "$(card third)" == $'0 to 19 | 5\n20 to 39 | 5\n0 to 39 | 10'
finish
