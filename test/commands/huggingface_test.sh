#!/usr/bin/env bash
# Hugging Face directories and llama2.c files: import, export, the files next to the weights, and what is refused.
source test/support/check.sh

# The output of the last command is in $work/log.
checkpoint() {
  "$lockstep" checkpoint "$@" 2>&1 | tee "$work/log"
  return "${PIPESTATUS[0]}"
}
prints() { check "$1" grep -Eq -- "$2" "$work/log"; }
# one_error STATUS MESSAGE CODE COMMAND...: a refusal is one error with its remedy and its code, and no other line.
one_error() {
  refused "$1" "^lockstep: error: .*$2" "${@:4}" && grep -q '^  remedy: ' "$work/.refused" &&
    grep -qx "  \[$3\]" "$work/.refused" && [[ $(wc -l <"$work/.refused") == 3 ]]
}
story=test/golden/llama-story
# The names are in the same order, and all tensors are bf16: 656,000 values.
same_values() { cmp <(tail -c 1312000 "$1") <(tail -c 1312000 "$2"); }

check "imports a directory" checkpoint import "$story" "$work/a.h5"
prints "  with its 20 tensors" 'a.h5: 20 tensors; llama, 2 layers of width 128, 656000 parameters'
check "  as a valid checkpoint" checkpoint verify "$work/a.h5"
check "  that is described" checkpoint info "$work/a.h5"
prints "  of the family llama" '^model.family +llama'
prints "  whose tied matrix is the embedding" '^/parameters/model.embed_tokens.weight +\(2048, 128\)'
check "describes the directory itself" checkpoint info "$story"
prints "  with its type" '^dtype +bf16'
prints "  with its tensors" '^model.embed_tokens.weight +\(2048, 128\)'
check "exports it" checkpoint export "$work/a.h5" "$work/hf"
prints "  and says that the tokenizer is missing" 'hf has no tokenizer: --files'
check "  with the same config.json" cmp "$story/config.json" "$work/hf/config.json"
check "  and the same values in the same type" same_values "$story/model.safetensors" "$work/hf/model.safetensors"
check "imports the export" checkpoint import "$work/hf" "$work/b.h5"
check "  with the same bytes" cmp "$work/a.h5" "$work/b.h5"

check "does not replace a directory" one_error 2 'hf already exists; use --force' data_exists checkpoint export "$work/a.h5" "$work/hf"
mkdir "$work/words" && echo words >"$work/words/tokenizer.json" && echo '{}' >"$work/words/generation_config.json"
check "  unless --force says so" checkpoint export "$work/a.h5" "$work/hf" --force --dtype fp16 --files "$work/words"
check "  then the tokenizer is there" diff -r --exclude=config.json --exclude=model.safetensors --exclude=README.md "$work/words" "$work/hf"
check "  and config.json names the new type" grep -q '"torch_dtype": "float16"' "$work/hf/config.json"
check "  in which the values are" test "$(stat -c %s "$work/hf/model.safetensors")" -lt 1400000
echo mine >"$work/hf/notes.txt"
check "does not remove what it has not written" one_error 2 'since it contains notes.txt' data_exists checkpoint export "$work/a.h5" "$work/hf" --force
check "  so that it is still there" grep -q mine "$work/hf/notes.txt"
check "leaves nothing behind" test -z "$(compgen -G "$work/*.partial*")"

mkdir -p "$work/run/checkpoints" "$work/run/model"
cp "$work/a.h5" "$work/run/checkpoints/step-00000000.h5" && ln -s step-00000000.h5 "$work/run/checkpoints/best"
echo of the run >"$work/run/model/tokenizer.json"
check "exports a checkpoint of a run" checkpoint export "$work/run/checkpoints/best" "$work/of-run"
check "  with the tokenizer of the run" cmp "$work/run/model/tokenizer.json" "$work/of-run/tokenizer.json"

cp "$story/config.json" "$work/run/model/"
check "names the model of a run" one_error 2 'run is a run: give .*/run/model, the directory of its model' usage checkpoint import "$work/run" "$work/x.h5"
rm "$work/run/model/config.json"

check "exports a .safetensors file" checkpoint export "$work/a.h5" "$work/a.safetensors"
prints "  with transformers' names" 'with the names of transformers'
check "  that is imported" checkpoint import "$work/a.safetensors" "$work/c.h5"
check "  with the same values" checkpoint diff "$work/a.h5" "$work/c.h5"
check "  and exported in fp32" checkpoint export "$work/c.h5" "$work/fp32"
prints "  as its output says" '20 tensors of step 0 in fp32, README.md, config.json, generation_config.json'

# What is written next to the weights of an imported model.
card=$work/fp32/README.md
check "the card names the architecture" grep -qx '| architecture | LlamaForCausalLM |' "$card"
check "  and the type" grep -qx '| type of the weights | fp32 |' "$card"
check "  says that the licence is unknown" grep -qx 'license: unknown' "$card"
prints "  as the output does" 'fp32/README.md states no licence: --license ID sets it'
check "the begin and the end of a text are those of config.json" diff "$work/fp32/generation_config.json" - <<'JSON'
{
  "bos_token_id": 1,
  "eos_token_id": 2
}
JSON
check "exports several files" checkpoint export "$work/a.h5" "$work/shards" --max-shard-size 500kb --license apache-2.0 --dtype bf16
check "  of at most that size, one with the embedding of 524 kB alone" test "$(ls "$work/shards" | grep -c 'model-0000[1-3]-of-00003.safetensors')" = 3
check "  with the licence" grep -qx 'license: apache-2.0' "$work/shards/README.md"
check "  and nothing to say about it" bash -c "! grep licence '$work/log'"
check "  they are sound" checkpoint verify "$work/shards"
check "  and the same model" checkpoint diff "$work/a.h5" "$work/shards"
check "a size that is none" one_error 2 'max-shard-size: expected a size such as 5GB' usage checkpoint export "$work/a.h5" "$work/n" --max-shard-size 5
check "a licence that is none" one_error 2 'license: model.license: expected an identifier' config_invalid checkpoint export "$work/a.h5" "$work/n" --license 'My own'

check "imports a file of llama2.c" checkpoint import --format llama2c test/golden/stories260K/stories260K.bin "$work/s.h5"
prints "  with its 47 tensors" 's.h5: 47 tensors; llama, 5 layers of width 64, 260032 parameters'
check "  and exports it" checkpoint export "$work/s.h5" "$work/s"
head -c 1000000 test/golden/stories260K/stories260K.bin >"$work/short.bin"
check "a truncated one is refused" one_error 1 'short.bin is truncated .* has 1056540 bytes, the file has 1000000' model_file_damaged \
  checkpoint import --format llama2c "$work/short.bin" "$work/n.h5"
check "a .bin file needs --format" one_error 2 'found .*short.bin; --format llama2c' usage checkpoint import "$work/short.bin" "$work/n.h5"

check "a language model is not exported to ONNX" one_error 2 'only ResNets are exported as .onnx: give a directory' not_supported \
  checkpoint export "$work/a.h5" "$work/a.onnx"
check "nor to other formats" one_error 2 'or be a directory, found .*a.gguf' usage checkpoint export "$work/a.h5" "$work/a.gguf"
check "--dtype is for directories" one_error 2 'are for exported directories' usage checkpoint export "$work/a.h5" "$work/z.safetensors" --dtype bf16
check "a file of a directory is not enough" one_error 2 'contains the weights of a language model: give the directory' usage \
  checkpoint import "$story/model.safetensors" "$work/n.h5"
check "a source that does not exist" one_error 1 'nowhere does not exist' cannot_open checkpoint import "$work/nowhere" "$work/n.h5"
check "no directory for --files" one_error 1 'nowhere is not a directory' cannot_open \
  checkpoint export "$work/a.h5" "$work/n" --files "$work/nowhere"

# bad WHAT STATUS MESSAGE CODE SED-SCRIPT: tests a directory whose config.json was changed
bad_config() {
  rm -rf "$work/bad" && mkdir "$work/bad" && cp "$story/model.safetensors" "$work/bad" && sed "$5" "$story/config.json" >"$work/bad/config.json"
  check "$1" one_error "$2" "$3" "$4" checkpoint import "$work/bad" "$work/n.h5"
}
bad_config "a config with another width" 1 \
  'model.embed_tokens.weight of .*bad has the shape \(2048, 128\), but \(2048, 256\) according to the configuration: use the config.json' \
  checkpoint_mismatch 's/"hidden_size": 128/"hidden_size": 256/'
bad_config "a config with more layers" 1 'bad has no tensor model.layers.2.input_layernorm.weight, which has the shape \(128\)' \
  checkpoint_mismatch 's/"num_hidden_layers": 2/"num_hidden_layers": 3/'
bad_config "a config with fewer layers" 1 'bad has a tensor model.layers.1.input_layernorm.weight of shape \(128\), which a model of this' \
  checkpoint_mismatch 's/"num_hidden_layers": 2/"num_hidden_layers": 1/'
bad_config "a config without tied embeddings" 1 'bad has no tensor model.embed_tokens.weight' \
  checkpoint_mismatch 's/"tie_word_embeddings": true/"tie_word_embeddings": false/'
bad_config "a config with a key that is not known" 2 'bad/config.json: the key "qk_clip" .* is not known' model_feature \
  's/"pretraining_tp": 1/"qk_clip": 1/'
bad_config "a config that is not JSON" 1 'config.json is not valid JSON: line 2, column ' model_file_damaged 's/{/[/'
rm "$work/bad/model.safetensors" && cp "$story/config.json" "$work/bad"
check "a directory without weights" one_error 1 'has neither model.safetensors nor' cannot_open checkpoint import "$work/bad" "$work/n.h5"
check "a directory without config.json" one_error 1 'words/config.json: No such file' cannot_open checkpoint import "$work/words" "$work/n.h5"
sed 's/"hidden_size": 128,/&&/' "$story/config.json" >"$work/bad/config.json"
check "a key that occurs twice" one_error 1 'config.json: an object has the key "hidden_size" twice' model_file_damaged checkpoint import "$work/bad" "$work/n.h5"

# verify, diff and evaluate accept what other programs have written.
check "verifies a directory" checkpoint verify "$story"
prints "  says what it checked" 'llama-story is complete: [0-9]+ tensors, .*all values are finite, and the tensors are those of its config.json'
check "  and its file" checkpoint verify "$story/model.safetensors"
mkdir "$work/damaged" && cp "$story/config.json" "$work/damaged" && head -c -1 "$story/model.safetensors" >"$work/damaged/model.safetensors"
check "  and finds damage" one_error 1 'model.safetensors is (damaged|truncated)' model_file_damaged checkpoint verify "$work/damaged"
check "a directory equals what was imported from it" checkpoint diff "$story" "$work/a.h5"
prints "  tensor by tensor" 'All bytes of all [0-9]+ tensors are equal'
differs() { "$lockstep" checkpoint diff "$@" >"$work/.diff" 2>&1; [[ $? == 1 ]]; }
check "  and differs from another model" differs "$story" "$work/s.h5"
check "evaluate names the directory that a file needs" one_error 1 'contains the weights of a language model, which config.json describes: give the directory'   checkpoint_mismatch "$lockstep" evaluate "$story/model.safetensors" data.validation=synthetic

check "nothing was written" test ! -e "$work/n.h5" -a ! -e "$work/n" -a ! -e "$work/a.onnx"
finish
