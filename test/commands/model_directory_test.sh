#!/usr/bin/env bash
# timeout: 300
# Training from a Hugging Face directory and writing one, RUN/model; evaluating such directories.
source test/support/check.sh
check_output=$work/log
story=test/golden/llama-story

prints() { check "$1" grep -Eq -- "$2" "$work/log"; }
run() { "$lockstep" "$@" >"$work/log" 2>&1; }
refuses() { # WHAT STATUS MESSAGE CODE COMMAND...
  check "$1" refused "$2" "^lockstep: error: .*$3" "${@:5}"
  check "  with the code $4" grep -qx "  \[$4\]" "$work/.refused"
}
common=(device=cpu cpu.threads=1 log.progress=false)
windows=(data.validation=synthetic data.sequence_length=32)
train=(train "${common[@]}" data.train=synthetic "${windows[@]}" data.synthetic_samples=32
  train.global_batch=8 optimizer.kind=adamw optimizer.learning_rate=0.001 log.tensorboard=false run.directory="$work"
  model.family=llama)
loss_of() { "$lockstep" evaluate "$@" "${common[@]}" --json 2>>"$work/log" | grep -oE '"loss": ?[0-9.e+-]+'; }
same_loss() { # MODEL MODEL KEY=VALUE...
  local first
  first=$(loss_of "$1" "${@:3}")
  [[ -n $first && $first == "$(loss_of "$2" "${@:3}")" ]]
}

check "trains from a directory" run "${train[@]}" model.from="$story" train.max_steps=2 run.name=a
prints "  whose weights it starts from" "weights from $story"
model=$work/a/model
check "exports the last checkpoint" run checkpoint export "$work/a/checkpoints/latest" "$work/exported"
check "  as which the run has written its model" diff -r "$work/exported" "$model"
check "evaluates the model" run evaluate "$model" "${common[@]}"
check "  with the result of the last checkpoint" same_loss "$model/" "$work/a/checkpoints/latest"
check "trains from the model of a run" run "${train[@]}" model.initialize_from="$model" model.config="$model" train.max_steps=1 run.name=b
prints "  whose weights it starts from" "weights from $model"
check "evaluates the directory of another program" run evaluate "$story" "${windows[@]}" "${common[@]}"
prints "  which has no tokenizer" 'llama-story does not record the tokenizer of its model'
check "  with the same result as after an import" run checkpoint import "$story" "$work/story.h5"
check "  of the same weights" same_loss "$story" "$work/story.h5" "${windows[@]}"

echo mine >"$model/notes.txt"
check "does not replace a model with other files" run "${train[@]}" model.from="$story" train.max_steps=3 run.name=a
prints "  and says so" 'the trained model is in the last checkpoint only: .*since it contains notes.txt'
ends_with_warning() { tail -1 "$work/a/log.txt" | grep 'warning: .*a/model was not written'; }
check "  at the end of the log" ends_with_warning
check "  the run is done" grep -qx done "$work/a/status"
mv "$model" "$work/aside" && touch "$model"
check "  nor a file" run "${train[@]}" model.from="$story" train.max_steps=3 run.name=a
check "    and says so at the end of the log" ends_with_warning
rm "$model" "$work/aside/notes.txt" && mv "$work/aside" "$model"
check "replaces it without them" run "${train[@]}" model.from="$story" train.max_steps=4 run.name=a
check "  as a whole" test "$(LC_ALL=C ls "$model")" == $'README.md\nconfig.json\ngeneration_config.json\nmodel.safetensors' -a ! -e "$model.partial"

mkdir "$work/wide" && cp "$story/model.safetensors" "$work/wide"
sed 's/"intermediate_size": 384/"intermediate_size": 400/' "$story/config.json" >"$work/wide/config.json"
contradiction='model.layers.0.mlp.down_proj.weight of .*wide has the shape \(128, 384\), but \(128, 400\) according to the configuration'
refuses "a config that contradicts its weights: training" 1 "$contradiction" checkpoint_mismatch "$lockstep" "${train[@]}" model.from="$work/wide" run.name=c
refuses "  and evaluating" 1 "$contradiction" checkpoint_mismatch \
  "$lockstep" evaluate "$work/wide" "${windows[@]}" "${common[@]}"
check "  no run was started" test ! -e "$work/c"

# What a run recorded about its model.
mkdir "$work/from" && cp "$story/config.json" "$story/model.safetensors" "$work/from"
recorded=("${train[@]}" model.from="$work/from" run.name=recorded)
check "trains from a directory that changes" run "${recorded[@]}" train.max_steps=2
sed -e 's/"rope_theta": 10000.0/"rope_theta": 500.0/' "$story/config.json" >"$work/from/config.json"
refuses "another config.json is named by its differences" 2 'recorded/checkpoints/.* cannot be resumed, because its model has changed' \
  config_conflict "$lockstep" "${recorded[@]}" train.max_steps=3
check "  which are those of the values" test "$(grep -c ' before, ' "$work/.refused")" = 1
check "  before and now" grep -qx '  model.config.rope_theta: 10000.0 before, 500.0 now' "$work/.refused"
rm -r "$work/from"
check "resumes when the directory is gone" run "${recorded[@]}" train.max_steps=3
prints "  and says so" 'from/config.json does not exist any more; the model is as the run recorded it'
check "  evaluates it" run evaluate "$work/recorded" "${common[@]}"
refuses "but does not begin without it" 2 'found no .*from/config.json' config_invalid "$lockstep" "${recorded[@]}" run.name=other

# Keys that have no effect.
for key in data.augment=[flip] data.balance=true data.image_size=32 model.classes=7 train.label_smoothing=0.1 \
  "train.class_weights=[1,1,1,1,1,1,1,1,1,2]" batch_norm.synchronize=true; do
  refuses "a key of images: $key" 2 "command line: ${key%%=*} is for networks that classify images, and has no effect with model.family=llama: remove it" \
    config_conflict "$lockstep" "${train[@]}" model.from="$story" "$key" run.name=c
done
refuses "a key of text with images" 2 'data.pack is for language models, and has no effect with model.family=resnet: remove it' config_conflict \
  "$lockstep" train data.train=synthetic data.pack=false run.directory="$work" run.name=c
refuses "keys that contradict each other" 2 'data.cross_documents=true is for windows with several documents.*: set data.cross_documents=false, or' \
  config_conflict "$lockstep" "${train[@]}" model.from="$story" data.pack=false data.cross_documents=true run.name=c
check "  no run was started" test ! -e "$work/c"

# With a tokenizer.
samples=data/samples
check "trains on text" run train jobs/configs/gpt_small_shakespeare.yaml "${common[@]}" data.sequence_length=32 train.global_batch=4 \
  train.max_steps=1 evaluation.max_samples=4 run.directory="$work" run.name=text
check "  the model has its tokenizer" cmp "$samples/tokenizer.json" "$work/text/model/tokenizer.json"
of_text=(data.validation="$samples/shakespeare_test.h5" data.sequence_length=32 evaluation.max_samples=4 "${common[@]}")
check "imports it" run checkpoint import "$work/text/model" "$work/text.h5"
check "  the checkpoint records the tokenizer" bash -c "'$lockstep' checkpoint info '$work/text.h5' | grep -q tokenizer_hash"
check "evaluates the checkpoint" run evaluate "$work/text.h5" "${of_text[@]}"
check "exports the checkpoint of the run" run checkpoint export "$work/text/checkpoints/latest" "$work/text-model"
check "  with the tokenizer" cmp "$samples/tokenizer.json" "$work/text-model/tokenizer.json"
check "evaluates the directory" run evaluate "$work/text-model" "${of_text[@]}"
rm "$work/text-model/tokenizer.json"
check "warns of a directory without one" run train jobs/configs/gpt_small_shakespeare.yaml "${common[@]}" data.sequence_length=32 train.global_batch=4 \
  train.max_steps=1 evaluation.max_samples=4 run.directory="$work" run.name=unchecked model.config= model.from="$work/text-model"
prints "  once" 'text-model has no tokenizer.json, so it cannot be checked that data/samples/shakespeare_train.h5 was made with'
check "  not more often" test "$(grep -c 'it cannot be checked' "$work/log")" = 1
rm "$work/text-model/tokenizer_config.json"
sed 's/<|endoftext|>/<|end|>/g' "$samples/tokenizer.json" >"$work/text-model/tokenizer.json"
refuses "another tokenizer than that of the data" 2 'was made with another tokenizer than .*text-model' model_mismatch \
  "$lockstep" evaluate "$work/text-model" "${of_text[@]}"
finish
