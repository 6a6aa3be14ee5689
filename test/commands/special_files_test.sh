#!/usr/bin/env bash
# Pipes, sockets, devices and folders where a command reads a file: each is refused at once, whether the command line, a
# configuration, an index or a folder names it. What a shell writes for `<(command)` and for standard input can be read.
source test/support/check.sh
tokenizer=data/samples/tokenizer.json
story=test/golden/llama-story
pipe=$work/pipe
mkfifo "$pipe"
# not_a_file WHAT COMMAND...: the command ends by itself
not_a_file() {
  "$lockstep" "${@:2}" >"$work/.check" 2>&1 & # in the background: a command that waits for a pipe is killed below
  local process=$! status
  for _ in {1..200}; do kill -0 $process 2>/dev/null || break; sleep 0.1; done
  kill -9 $process 2>/dev/null && echo "it waits" >>"$work/.check"
  wait $process
  status=$?
  if ((status == 1 || status == 2)) && grep -q 'is not a regular file' "$work/.check"; then good "$1"; else bad "$1"; tail -5 "$work/.check"; fi
}
# with NAME FOLDER: a copy of the folder in which NAME is a pipe
with() {
  rm -rf "$work/with" && cp -r "$2" "$work/with" && rm -f "$work/with/$1" && mkfifo "$work/with/$1"
}

not_a_file "a configuration" plan "$pipe"
not_a_file "  that is a folder" plan "$work"
not_a_file "  or a device" plan /dev/zero
python3 -c "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])" "$work/socket"
not_a_file "  or a socket" plan "$work/socket"
language=(plan model.family=llama device=cpu data.train=synthetic)
not_a_file "model.config" "${language[@]}" model.config="$pipe"
with config.json "$story"
not_a_file "model.from" "${language[@]}" model.from="$work/with"
not_a_file "a data set" plan device=cpu data.train="$pipe"
not_a_file "  that is described" data info "$pipe"
not_a_file "a text" data import text "$pipe" "$work/o.h5" --tokenizer $tokenizer
echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}' >"$work/chat.jsonl"
chat=(data import chat "$work/chat.jsonl" "$work/o.h5")
not_a_file "a tokenizer" "${chat[@]}" --tokenizer "$pipe"
not_a_file "a template" "${chat[@]}" --tokenizer $tokenizer --template "$pipe"
mkdir "$work/tokenizer" && cp $tokenizer "$work/tokenizer"
for name in tokenizer.json tokenizer_config.json chat_template.jinja; do
  with $name "$work/tokenizer"
  not_a_file "  in a folder: $name" "${chat[@]}" --tokenizer "$work/with"
done
not_a_file "what is encoded" data encode $tokenizer "$pipe"
not_a_file "prompts" generate "$story" --tokenizer $tokenizer --prompts "$pipe" device=cpu
not_a_file "a checkpoint" checkpoint info "$pipe"
for name in config.json model.safetensors; do
  with $name "$story"
  not_a_file "  of another program: $name" checkpoint info "$work/with"
done
cp -r "$story" "$work/index"
mv "$work/index/model.safetensors" "$work/index/a.safetensors"
python3 - "$work/index" <<'PYTHON'
import json, struct, sys
with open(sys.argv[1] + "/a.safetensors", "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
names = [name for name in header if name != "__metadata__"]
json.dump({"weight_map": {name: "a.safetensors" for name in names}}, open(sys.argv[1] + "/model.safetensors.index.json", "w"))
PYTHON
check "  an index" "$lockstep" checkpoint info "$work/index"
for name in a.safetensors model.safetensors.index.json; do
  with $name "$work/index"
  not_a_file "    with $name" checkpoint info "$work/with"
done
for name in adapter_config.json adapter_model.safetensors; do
  with $name test/golden/lora_qwen2
  not_a_file "  adapters: $name" checkpoint info "$work/with"
done
not_a_file "a log of memory use" report memory "$pipe"
mkdir "$work/run" && echo '{"event": "step", "step": 1, "time_unix": 1, "loss": 1}' >"$work/run/metrics.jsonl"
cp jobs/configs/quickstart.yaml "$work/run/config.yaml"
for name in metrics.jsonl log.txt trace.json; do
  with $name "$work/run"
  not_a_file "a run: $name" report "$work/with"
done
mkdir -p "$work/tiny/train" && mkfifo "$work/tiny/wnids.txt"
not_a_file "a list of classes" data import tiny-imagenet "$work/tiny" "$work/o.h5"
not_a_file "measured costs" plan jobs/configs/quickstart.yaml device=cpu --ranks 2 --nodes 2 --model "$pipe"

printf 'a\nb\n' >"$work/lines"
"$lockstep" data encode $tokenizer "$work/lines" >"$work/ids"
check "<(command) is read" cmp "$work/ids" <("$lockstep" data encode $tokenizer <(cat "$work/lines"))
check "  also as a configuration" "$lockstep" plan <(cat jobs/configs/quickstart.yaml) device=cpu
check "/dev/stdin is read" cmp "$work/ids" <("$lockstep" data encode $tokenizer /dev/stdin <"$work/lines")
check "  also when it is a pipe" cmp "$work/ids" <(cat "$work/lines" | "$lockstep" data encode $tokenizer /dev/stdin)
finish
