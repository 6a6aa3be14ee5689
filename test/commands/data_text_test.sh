#!/usr/bin/env bash
# timeout: 200
# data import text, info and verify: from text files and JSON Lines to tokens, which are compared with those of Hugging
# Face's library and of `data encode`; wrong input; an import that is stopped.
source test/support/check.sh
tokenizer=data/samples/tokenizer.json
prints() { refused 0 "$@"; }
import() { "$lockstep" data import text "$@" --tokenizer $tokenizer; }
field() { "$lockstep" data info "$1" --json 2>/dev/null | grep -oE "\"$2\":[^,}]*" | cut -d: -f2; }
ids() { # the ids in a set of uint16, separated by spaces
  od -An -v -w2 -t u2 -j "$(field "$1" tokens_offset_bytes)" -N $((2 * $(field "$1" tokens))) "$1" | xargs
}
mkdir "$work/in"

# The ids are those of Hugging Face's library; 0 is <|endoftext|>.
printf 'First Citizen:\nBefore we proceed any further, hear me speak.\n' >"$work/in/citizen.txt"
check "imports a text file" prints '^Imported 1 document with 22 tokens \(61 B of text\) from 1 file into ' \
  import "$work/in/citizen.txt" "$work/set.h5"
check "  with the ids of Hugging Face's library" test "$(ids "$work/set.h5")" = "641 418 892 26 199 770 556 332 582 307 316 807 272 362 701 12 678 321 622 14 199 0"
check "an existing set stays" refused 2 'use --force to replace it' import "$work/in/citizen.txt" "$work/set.h5"
check "  unless --force is given" import "$work/in/citizen.txt" "$work/set.h5" --force
cp $tokenizer "$work/tokenizer.json"
for input in in/citizen.txt tokenizer.json; do
  ln -f "$work/$input" "$work/input.h5"
  check "an input is never replaced: $input" refused 2 'is an input of this command' \
    "$lockstep" data import text "$work/in/citizen.txt" "$work/input.h5" --force --tokenizer "$work/tokenizer.json"
done
rm "$work/input.h5"
check "  and stays as it was" cmp $tokenizer "$work/tokenizer.json"

# As JSON Lines, every line of a text is a document, and has the ids that `data encode` prints.
sed 's/.*/{"id": 7, "body": "&"}/' <<<$'The king is dead.\n\nLong live the king!\n<|endoftext|> 42' >"$work/in/lines.jsonl"
check "imports JSON Lines" prints '4 documents' import "$work/in/lines.jsonl" "$work/lines.h5" --field body
sed -E 's/.*"body": "(.*)"\}/\1/' "$work/in/lines.jsonl" >"$work/lines.txt"
check "  with the ids of data encode" test "$(ids "$work/lines.h5")" = \
  "$("$lockstep" data encode $tokenizer "$work/lines.txt" | sed 's/$/ 0/' | xargs)"
check "  a range of them" prints '2 documents' import "$work/in/lines.jsonl" "$work/part.h5" --field body --start 1 --end 3
check "  which is recorded" test "$(field "$work/part.h5" source)" = '"lines.jsonl; documents 1 to 2"'
check "  a range that does not exist" refused 2 'end 5 is not a range of the 4 documents' \
  import "$work/in/lines.jsonl" "$work/none.h5" --field body --end 5
check "a folder is imported in the order of the paths" import "$work/in" "$work/folder.h5" --field body
check "  text and JSON Lines" test "$(ids "$work/folder.h5")" = "$(ids "$work/set.h5") $(ids "$work/lines.h5")"
check "info describes the set" prints 'documents  5, of ' "$lockstep" data info "$work/folder.h5"
check "  its vocabulary" test "$(field "$work/folder.h5" vocabulary_size)" = 1024
check "  its longest document" test "$(field "$work/folder.h5" longest_document)" = 22
check "verify finds no damage" prints 'of tokens and documents match' "$lockstep" data verify "$work/folder.h5"
printf '\377' | dd of="$work/folder.h5" bs=1 seek="$(field "$work/folder.h5" tokens_offset_bytes)" conv=notrunc status=none
check "  and finds a changed byte" refused 1 "block 0 of '/tokens' .* is damaged" "$lockstep" data verify "$work/folder.h5"
check "a set of text is no checkpoint" refused 1 'is a data set of text, not a checkpoint' "$lockstep" checkpoint info "$work/set.h5"

# Wrong input and wrong command lines. Nothing is left of these imports.
echo '{"text": "good"}' >"$work/wrong.jsonl"
echo '{"text": 5}' >>"$work/wrong.jsonl"
ls -A "$work" >"$work/.before"
check "a wrong line is named" refused 1 'wrong.jsonl:2: the field "text": expected a string, found a JSON number' import "$work/wrong.jsonl" "$work/new.h5"
check "a source that does not exist" refused 1 'there is no text .*none.txt' import "$work/none.txt" "$work/new.h5"
check "  with a remedy about text" grep -q 'data import KIND --help' "$work/.refused"
check "a file whose size the system does not know" refused 1 'cpuinfo is no ordinary file: it contains text, but its size is 0; copy it first' \
  import /proc/cpuinfo "$work/new.h5"
check "a missing field is named" refused 1 'lines.jsonl:1: the object has no field "text"; --field' import "$work/in/lines.jsonl" "$work/new.h5"
check "a line that is too long is named" refused 1 'lines.jsonl:1: this line has more than 10 bytes; --max-line' \
  import "$work/in/lines.jsonl" "$work/new.h5" --max-line 10
check "no source" refused 2 'expected at least two files, SOURCE... OUT.h5, found only' import "$work/new.h5"
check "no tokenizer" refused 2 '.-tokenizer is required' "$lockstep" data import text "$work/in" "$work/new.h5"
check "a tokenizer that does not exist" refused 1 'cannot_open' "$lockstep" data import text "$work/in" "$work/new.h5" --tokenizer "$work/none.json"
check "a kind that does not exist" refused 2 'there is no command `lockstep data import texts` .the nearest is text.' \
  "$lockstep" data import texts a b
check "nothing is left of them" diff "$work/.before" <(ls -A "$work")

# An import that is stopped leaves nothing behind, not even if it is stopped while it writes.
mkdir "$work/big"
yes '{"text": "Now is the winter of our discontent made glorious summer by this sun of York."}' | head -n 2000000 >"$work/long.jsonl"
for signal in INT TERM; do
  "$lockstep" data import text "$work/long.jsonl" "$work/big/new.h5" --tokenizer $tokenizer >"$work/stopped.out" 2>&1 &
  import=$!
  until ls -l /proc/$import/fd 2>/dev/null | grep -q 'big/.*(deleted)' || ! kill -0 $import 2>/dev/null; do sleep 0.05; done
  kill -$signal $import
  wait $import
  status=$?
  check "SIG$signal ends an import" test $status = 75
  check "  which says so" grep -q "stopped by SIG$signal: nothing was written" "$work/stopped.out"
  check "  and leaves nothing" test -z "$(ls -A "$work/big")"
done

# Also while it parses or encodes a single line. Before, the import was complete before the signal was noticed.
python3 - "$work" <<'PYTHON'
import json, random, sys
letters = bytes(random.Random(1).randbytes(20_000_000)).translate(bytes(97 + i % 26 for i in range(256))).decode()
for name, text in (("word", letters), ("words", 2 * " ".join(letters[i : i + 20] for i in range(0, len(letters), 20)))):
    with open(f"{sys.argv[1]}/{name}.jsonl", "w") as file:
        file.write(json.dumps({"text": text}) + "\n")
PYTHON
for name in word words; do
  "$lockstep" data import text "$work/$name.jsonl" "$work/big/new.h5" --tokenizer $tokenizer >"$work/stopped.out" 2>&1 &
  import=$!
  size=$(stat -c %s "$work/$name.jsonl")
  until (($(sed -n 's/^rchar: //p' /proc/$import/io 2>/dev/null || echo "$size") >= size)); do sleep 0.05; done
  sleep 0.2 # the line has been read, and is parsed or encoded
  kill -TERM $import
  wait $import
  status=$?
  check "SIGTERM ends the import of one long line: $name" test $status = 75 -a -z "$(ls -A "$work/big")"
  rm -f "$work/big/new.h5"
done
finish
