#!/usr/bin/env bash
# cores: 0
# lockstep data encode and decode: the ids of lines of text, and back.
source test/support/check.sh

small=test/golden/tokenizers/tok512.bin
mkdir "$work/story"
gzip -dc test/golden/tokenizers/llama-story.json.gz >"$work/story/tokenizer.json"
printf 'Once upon a time\n\nthere was a  cat\r\nna\303\257ve \344\270\255' >"$work/text"

prints_ids() { diff <(printf '%s\n' "${@:3}") <("$lockstep" data encode "$1" - <<<"$2"); }
check "encode prints the ids of a line" prints_ids "$small" "Once upon a time" "1 403 407 261 378"
check "  of each line" prints_ids "$small" $'Once upon\n a time' "1 403 407" "1 410 261 378"
check "  without what the template adds" diff <(echo "403 407 261 378") <("$lockstep" data encode "$small" - --no-template <<<"Once upon a time")
check "  of a folder with a tokenizer.json" bash -c '"$0" data encode "$1" "$2" >"$3"' "$lockstep" "$work/story" "$work/text" "$work/ids"
check "  one line per line" bash -c '[[ $(wc -l <"$0") == 4 ]]' "$work/ids"
check "  and an empty line has only the begin token" bash -c '[[ $(sed -n 2p "$0") == 1 ]]' "$work/ids"
check "decode undoes encode" bash -c '"$0" data encode "$1" "$2" >"$3" && "$0" data decode "$1" "$3" | cmp - <(cat "$2"; echo)' \
  "$lockstep" "$small" "$work/text" "$work/ids"
check "  in a pipe" bash -c '"$0" data encode "$1" "$2" --no-template | "$0" data decode "$1" - | cmp - <(cat "$2"; echo)' \
  "$lockstep" "$small" "$work/text"
check "  with blanks of any kind" bash -c '[[ $(printf " 403\t407  261 378 \r\n" | "$0" data decode "$1" -) == "Once upon a time" ]]' "$lockstep" "$small"
# Each encoded line is printed before the program waits for more input.
check "a pipe that stays open gets each line at once" bash -c '
  coproc encode { "$0" data encode "$1" -; }
  echo "Once upon a time" >&"${encode[1]}" && read -r -t 20 line <&"${encode[0]}" && [[ $line == "1 403 407 261 378" ]]' "$lockstep" "$small"

check "a missing tokenizer is an error" refused 1 '\[cannot_open\]' "$lockstep" data encode "$work/none.json" "$work/text"
check "  a file that is none" refused 1 '\[model_file_damaged\]' "$lockstep" data encode "$work/text" "$work/text"
check "  a feature that is not supported" refused 2 'none.json.model: the model WordLevel is not supported' bash -c \
  'echo "{\"model\": {\"type\": \"WordLevel\"}}" >"$1/none.json"; "$0" data encode "$1/none.json" "$1/text"' "$lockstep" "$work"
check "  a missing text" refused 1 '\[cannot_open\]' "$lockstep" data encode "$small" "$work/none.txt"
check "  a folder instead of a text" refused 1 '\[cannot_open\]' "$lockstep" data encode "$small" "$work"
check "an id outside of the vocabulary is an error" refused 1 'line 2: the id 512 is outside of the vocabulary, which has the ids 0 to 511' \
  "$lockstep" data decode "$small" - <<<$'5 6\n5 512'
check "  and a word" refused 1 'line 1: expected ids separated by blanks, found x7' "$lockstep" data decode "$small" - <<<"5 x7"
check "  and a number that is too large" refused 1 'found 99999999999' "$lockstep" data decode "$small" - <<<"99999999999"
check "a full output is an error" refused 1 'cannot write to standard output' bash -c '"$0" data encode "$1" "$2" >/dev/full' "$lockstep" "$small" "$work/text"
check "a reader that has read enough is none" bash -c 'yes | head -500000 | "$0" data encode "$1" - 2>"$2" | head -1 && [[ ! -s $2 ]]' "$lockstep" "$small" "$work/errors"

finish
