#!/usr/bin/env bash
# timeout: 120
# jobs/push_to_hub.sh with a program in place of `hf`, which records how it is called.
source test/support/check.sh
check_output=$work/log
export LOCKSTEP=$lockstep
mkdir "$work/bin"
cat >"$work/bin/hf" <<'SH'
#!/usr/bin/env bash
printf '%s\n' "$@" >>"$HF_LOG"
if [[ $1 == auth ]]; then exit "${HF_LOGIN:-0}"; fi
exit "${HF_STATUS:-0}"
SH
chmod +x "$work/bin/hf"
export HF_LOG=$work/calls
push() { PATH=$work/bin:$PATH jobs/push_to_hub.sh "$@" >"$work/log" 2>&1; }
refuses() { # WHAT STATUS MESSAGE ARGUMENT...
  check "$1" refused "$2" "$3" env PATH="$work/bin:$PATH" jobs/push_to_hub.sh "${@:4}"
}
prints() { check "$1" grep -Eq -- "$2" "$work/log"; }
was_uploaded() { grep -qx upload "$HF_LOG" 2>/dev/null; }

# A run with a tokenizer, a licence and several files of weights.
check "trains a model" "$lockstep" train jobs/configs/gpt_small_shakespeare.yaml device=cpu cpu.threads=1 log.progress=false \
  log.tensorboard=false data.sequence_length=32 train.global_batch=4 train.max_steps=1 evaluation.max_samples=4 \
  run.directory="$work" run.name=text model.license=mit checkpoint.max_shard_size=2MB
model=$work/text/model
check "  in several files" test -s "$model/model.safetensors.index.json" -a -s "$model/model-00002-of-00004.safetensors"

check "shows what would be uploaded" push "$work/text" me/my-model
prints "  and where to" 'text/model -> https://huggingface.co/me/my-model'
for file in README.md config.json generation_config.json tokenizer.json tokenizer_config.json model-00001-of-00004.safetensors; do
  prints "  $file" "^ +$(stat -c %s "$model/$file")  $file\$"
done
prints "  with the size of all" "^ +$(cat "$model"/* | wc -c)  bytes in $(ls "$model" | wc -l) files"
prints "  and the command" "^hf upload me/my-model $model \. --repo-type model"
check "  but uploads nothing" bash -c "! grep -qx upload '$HF_LOG'"
check "uploads it on request" push "$model/" me/my-model --upload --private
check "  with hf" was_uploaded
check "  to the repository, from the directory" test "$(sed -n '/^upload$/,/^\.$/p' "$HF_LOG" | xargs)" == "upload me/my-model $model ."
check "  privately" grep -qx -- --private "$HF_LOG"
rm "$HF_LOG"

HF_STATUS=3 refuses "reports that an upload failed" 1 'hf could not upload .*run the same command again' "$model" me/my-model --upload
HF_LOGIN=1 refuses "needs a login" 1 'hf is not logged in to the Hub' "$model" me/my-model --upload
prints_login() { HF_LOGIN=1 push "$model" me/my-model && grep -q 'note: hf is not logged in' "$work/log"; }
check "  but not to show what it would do" prints_login
check "needs hf" refused 1 'there is no hf on PATH' env PATH=/usr/bin:/bin jobs/push_to_hub.sh "$model" me/my-model --upload
refuses "needs a repository" 2 'found 1 operands' "$model"
refuses "with an organisation" 2 'expected a repository such as my-team/my-model, found my-model' "$model" my-model
refuses "knows its options" 2 'there is no option --fast' "$model" me/my-model --fast
refuses "needs a directory" 2 'there is no directory' "$work/nothing" me/my-model
refuses "with a model" 1 'has no config.json' "$work/bin" me/my-model
check "explains itself" push --help
prints "  with its operands" 'RUN\|DIRECTORY ORGANISATION/NAME \[--upload\]'

# Adapters: others must be able to find their base on the Hub.
check "trains adapters" "$lockstep" train jobs/configs/gpt_small_shakespeare.yaml device=cpu cpu.threads=1 log.progress=false \
  log.tensorboard=false data.sequence_length=32 train.global_batch=4 train.max_steps=1 evaluation.max_samples=4 \
  run.directory="$work" run.name=adapters model.license=mit model.config= model.from="$model" model.lora.rank=2
refuses "their base must be on the Hub" 1 'the base of the adapters, .*text/model, is not a model on the Hub' "$work/adapters" me/my-model
check "  a name of one can be given" "$lockstep" checkpoint export "$work/adapters/checkpoints/latest" "$work/published" \
  --base me/my-base --license mit
check "  and then they can be published" push "$work/published" me/my-model
prints "  with their weights" "^ +$(stat -c %s "$work/published/adapter_model.safetensors")  adapter_model.safetensors\$"

# bad WHAT MESSAGE COMMAND...: checks a copy of the model that the command has damaged
rm -f "$HF_LOG"
bad() {
  rm -rf "$work/bad" && cp -r "$model" "$work/bad"
  (cd "$work/bad" && "${@:3}")
  refuses "$1" 1 "$2" "$work/bad" me/my-model --upload
}
bad "a file of others" 'bad/notes.txt does not belong to the model' touch notes.txt
bad "a hidden one" 'bad/.secret does not belong to the model' touch .secret
bad "a folder" 'bad/checkpoints is not a file' mkdir checkpoints
bad "a link" 'bad/vocab.json is not a file' ln -s /etc/passwd vocab.json
bad "no card" 'bad has no model card' rm README.md
bad "no licence" 'states no licence' sed -i 's/^license: .*/license: unknown/' README.md
bad "a path in the card" 'contains a path of this machine' sed -i 's@^# text@# /home/me/text@' README.md
bad "no tokenizer" 'has no tokenizer that transformers reads' rm tokenizer.json
bad "a file of weights too few" 'the files of weights are' rm model-00002-of-00004.safetensors
bad "a file of weights too many" 'the files of weights are' cp model-00002-of-00004.safetensors model.safetensors
bad "a damaged one" 'cannot be published: .*model-00002-of-00004.safetensors' truncate -s -1 model-00002-of-00004.safetensors
bad "another config.json" 'cannot be published' sed -i 's/"hidden_size": 192/"hidden_size": 96/' config.json
check "none of them was uploaded" bash -c "! grep -qx upload '$HF_LOG' 2>/dev/null"
finish
