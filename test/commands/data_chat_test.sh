#!/usr/bin/env bash
# data import chat, show, info and verify: templates, which tokens count, slices, and wrong input, which leaves nothing
# behind.
source test/support/check.sh
prints() { refused 0 "$@"; }
field() { "$lockstep" data info "$1" --json 2>/dev/null | grep -oE "\"$2\":[^,}]*" | cut -d: -f2; }
# The tokenizer of the samples, with the tokens of ChatML added.
mkdir "$work/chatml" "$work/plain"
cp data/samples/tokenizer.json "$work/plain"
python3 - "$work" <<'PYTHON'
import json, pathlib, sys
work = pathlib.Path(sys.argv[1])
tokenizer = json.loads(pathlib.Path("data/samples/tokenizer.json").read_text())
for i, content in enumerate(["<|im_start|>", "<|im_end|>"]):
    tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=1024 + i, content=content))
(work / "chatml/tokenizer.json").write_text(json.dumps(tokenizer))
turn = "'<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n'"
template = ("{% for message in messages %}{% if loop.first and message.role != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}"
            "{% endif %}{{ " + turn + " }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
(work / "chatml/tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": template}))
PYTHON
cat >"$work/two.jsonl" <<'JSON'
{"messages": [{"role": "user", "content": "Who is there?"}, {"role": "assistant", "content": "Nay, answer me."}]}
{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Long live the king!"}, {"role": "assistant", "content": "Bernardo?"}, {"role": "user", "content": "He."}, {"role": "assistant", "content": "\n He."}]}
JSON
import() { "$lockstep" data import chat "$1" "$work/$2" --tokenizer "$work/chatml" "${@:3}"; }

check "imports conversations" prints '^Imported 2 conversations with [0-9]* tokens' import "$work/two.jsonl" auto.h5
out=$(import "$work/two.jsonl" auto.h5 --force)
check "  counts the answers" grep -q '^Answers: 3 with ' <<<"$out"
check "  reports what is truncated" grep -q '^Truncated: 0 conversations (--max-tokens is not set)' <<<"$out"
check "  and left out" grep -q '^Left out: 0 conversations (0 without an assistant' <<<"$out"
check "  names the template and the token that ends answers" grep -q 'chatml/tokenizer_config.json. Each answer ends with <|im_end|> (1025)' <<<"$out"
check "show prints the text with the default system message" prints 'Be kind' "$lockstep" data show "$work/auto.h5"
check "  the tokens of answers" prints '^ *[0-9]+ +1025  yes +"<.im_end.>"' "$lockstep" data show "$work/auto.h5" --sample 1
check "  and no escape sequences into a file" bash -c "! '$lockstep' data show '$work/auto.h5' | grep -q $'\e'"
check "  unless it is asked for colours" bash -c "'$lockstep' data show '$work/auto.h5' --colour always | grep -q $'\e\[1;32mNay, answer me.<|im_end|>'"
check "  a limited number of tokens" prints '... [0-9]+ more tokens; --limit 0' "$lockstep" data show "$work/auto.h5" --limit 5
check "  for programs" bash -c "'$lockstep' data show '$work/auto.h5' --sample 1 --json 2>/dev/null | python3 -c '
import json, sys
sample = json.load(sys.stdin)
assert len(sample[\"answers\"]) == 2 and sample[\"tokens\"][sample[\"answers\"][1][1] - 1] == 1025, sample[\"answers\"]
assert sample[\"text\"].startswith(\"<|im_start|>system\nBe brief.<|im_end|>\n\"), sample[\"text\"]'"
check "  a sample that does not exist" refused 2 'sample 2 is not one of the 2 conversations' "$lockstep" data show "$work/auto.h5" --sample 2
check "show prints documents of text" prints 'document 0 of ' "$lockstep" data show data/samples/shakespeare_test.h5 --limit 10
check "  and images" prints '32 x 32 pixels .height, width., 3 channels' "$lockstep" data show data/samples/cifar10_test.h5 --sample 3
check "  with a picture" bash -c "'$lockstep' data show data/samples/cifar10_test.h5 --colour always | grep -q $'\e\[48;2;'"
check "info describes them" prints '2 conversations, of ' "$lockstep" data info "$work/auto.h5"
check "  and their answers" prints 'answers +3 with .* count towards the loss' "$lockstep" data info "$work/auto.h5"
check "verify finds no damage" prints 'of tokens, documents and answers match' "$lockstep" data verify "$work/auto.h5"
check "a preset" import "$work/two.jsonl" preset.h5 --template chatml
check "  has no default system message" bash -c "! '$lockstep' data show '$work/preset.h5' | grep -q kind"
printf "%s" "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}" >"$work/own.jinja"
check "a template of one's own" import "$work/two.jsonl" own.h5 --template "$work/own.jinja"
check "  with the tokens of tokenizer_config.json" prints 'user: Who is there\?<.im_end.>assistant: Nay' "$lockstep" data show "$work/own.h5"
check "truncated ones are counted" prints '^Truncated: 1 conversation to 20 tokens' import "$work/two.jsonl" short.h5 --max-tokens 20 --template chatml
check "dropped ones, too" prints '1 longer than --max-tokens' import "$work/two.jsonl" drop.h5 --max-tokens 30 --too-long drop --template chatml
# Marks, turns that are left out, and tools
printf "%s" "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}{% else %}{{ m.content }}{% endif %}{% if tools %}{{ tools | tojson }}{% endif %}{% endfor %}" >"$work/marked.jinja"
sed 's/"Bernardo?"/"Bernardo?", "train": false/; s/^{/{"tools": [{"name": "look", "days": 1}], /' "$work/two.jsonl" >"$work/tools.jsonl"
check "{% generation %} and train: false" prints '^Answers: 2 with ' import "$work/tools.jsonl" marked.h5 --template "$work/marked.jinja"
check "  without the end token, which is not marked" prints '^ *[0-9]+ +1025  - +"<.im_end.>"' "$lockstep" data show "$work/marked.h5" --sample 1
check "  so that the summary names none" test "$(import "$work/tools.jsonl" marked.h5 --template "$work/marked.jinja" --force | grep -c '1025')" = 0
check "  tools are in the text" prints '"name": "look", "days": 1' "$lockstep" data show "$work/marked.h5"
check "  and refused by a template that has no place for them" refused 2 'tools.jsonl:1: the chat template chatml does not use "tools"' \
  import "$work/tools.jsonl" none.h5 --template chatml
# A template that never ends
printf "%s" "{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}" >"$work/endless.jinja"
check "a template that never ends" refused 2 '\[chat_template\]|endless.jinja: it takes more than' import "$work/two.jsonl" none.h5 --template "$work/endless.jinja"
printf "%s" "{% if messages|length == 3 and messages[2].content == 'Two' %}{{ raise_exception('no') }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}" >"$work/three.jinja"
check "a template that refuses what finds its end token" refused 2 'three.jinja refuses the conversation: no' import "$work/two.jsonl" none.h5 --template "$work/three.jinja"
# A signal ends an import also within a batch of conversations; these take minutes.
printf "%s" "{% for i in range(150000) %}{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}" >"$work/slow.jinja"
for i in {1..1000}; do head -1 "$work/two.jsonl"; done >"$work/slow.jsonl"
check "SIGTERM ends a slow template" refused 75 'stopped by SIGTERM' timeout --preserve-status -s TERM 5 \
  "$lockstep" data import chat "$work/slow.jsonl" "$work/none.h5" --tokenizer "$work/chatml" --template "$work/slow.jinja"
for i in {1..100}; do head -1 "$work/two.jsonl"; done >"$work/many.jsonl"
check "a part" import "$work/many.jsonl" most.h5 --fraction 0.8 --seed 3
check "the rest of it" import "$work/many.jsonl" rest.h5 --fraction 0.8:1 --seed 3
check "  are all" test $(($(field "$work/most.h5" documents) + $(field "$work/rest.h5" documents))) = 100

# Wrong input. Nothing is left of these imports.
sed 's/system/gpt/' "$work/two.jsonl" >"$work/role.jsonl"
echo '{"messages": []}' >"$work/empty.jsonl"
printf '%s' '{% macro turn(m) %}{{ m }}{% endmacro %}' >"$work/macro.jinja"
ls -A "$work" >"$work/.before"
check "an unknown role" refused 1 'role.jsonl:2: message 1 has the role "gpt", which is not known: rename it' import "$work/role.jsonl" new.h5
check "an empty conversation" refused 1 'empty.jsonl:1: the conversation is empty: remove it' import "$work/empty.jsonl" new.h5
check "a tokenizer without a template" refused 2 'has no chat template .* name one with --template chatml, llama3 or FILE' \
  "$lockstep" data import chat "$work/two.jsonl" "$work/new.h5" --tokenizer "$work/plain"
check "a template that does not fit" refused 2 'chatml uses <.im_start.>, which is not one token of the tokenizer .*: choose' \
  "$lockstep" data import chat "$work/two.jsonl" "$work/new.h5" --tokenizer "$work/plain" --template chatml
check "a template that is not supported is named" refused 2 'macro.jinja, line 1: the statement macro is not supported' \
  import "$work/two.jsonl" new.h5 --template "$work/macro.jinja"
check "a template that does not exist" refused 2 'expected chatml, llama3, auto or a file, found vicuna' import "$work/two.jsonl" new.h5 --template vicuna
check "a fraction that is none" refused 2 'fraction: expected a number from 0 to 1, or two as in 0.9:1, found 2' import "$work/two.jsonl" new.h5 --fraction 2
check "--too-long without a length" refused 2 'too-long drop needs --max-tokens' import "$work/two.jsonl" new.h5 --too-long drop
check "nothing is left of them" diff "$work/.before" <(ls -A "$work")
finish
