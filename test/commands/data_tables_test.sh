#!/usr/bin/env bash
# data import from folders with Parquet files, as the Hugging Face Hub has them, and from CSV: text, conversations and
# images of both splits; where lockstep-arrow, which reads Parquet, is looked for, and what happens without it.
source test/support/check.sh
prints() { refused 0 "$@"; }
tables=test/golden/tables
tokenizer=data/samples/tokenizer.json
import() { "$lockstep" data import text "$@" --tokenizer $tokenizer; }
[[ -x ${lockstep%/*}/lockstep-arrow ]] || { echo "skipped: lockstep-arrow was not built"; exit 77; }

check "text of the split for training" prints '^Imported 9 documents with ' import $tables/snapshot "$work/text.h5"
check "  which is recorded" prints 'source +snapshot; split train$' "$lockstep" data info "$work/text.h5"
check "  of another split" prints '^Imported 4 documents' import $tables/snapshot "$work/test.h5" --split test
printf '{"text": "a"}\n' | cat - <(printf '{"text": "b"}') | gzip >"$work/lines.jsonl.gz"
check "  of compressed lines" prints '^Imported 2 documents' import "$work/lines.jsonl.gz" "$work/lines.h5"
check "  of CSV" prints '^Imported 3 documents' import $tables/quoted.csv "$work/csv.h5"
check "rows without a text are left out" prints '^Left out: 1 document without' import $tables/coded.parquet "$work/null.h5"
check "a split that is not there" refused 1 'has no split validation, but test .1 file., train .2 files.' \
  import $tables/snapshot "$work/new.h5" --split val
check "a column that is not there" refused 1 'has no column "body", but "id" .int64., "text" .string.: choose one with --field' \
  import $tables/snapshot "$work/new.h5" --field body

printf '%s' '{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}' >"$work/plain.jinja"
chat() { "$lockstep" data import chat "$@" --tokenizer $tokenizer --template "$work/plain.jinja"; }
check "conversations of the split for training" prints '^Imported 5 conversations' chat $tables/conversations "$work/chat.h5"
check "  have the messages" prints 'Who is there, 3\?.*Answer 3\.' "$lockstep" data show "$work/chat.h5" --sample 3
check "  of the other split" prints '^Imported 2 conversations' chat $tables/conversations "$work/chat_test.h5" --split test

images() { "$lockstep" data import imagefolder $tables/images "$@"; }
check "images" prints '^Imported 7 train images of 5 x 6 x 3 in 3 classes' images "$work/train.h5"
check "  of the other split" images "$work/val.h5" --split val --statistics-from "$work/train.h5"
check "  with the names of their classes" bash -c "'$lockstep' data info '$work/val.h5' --json 2>/dev/null | grep -q '\"cat\",\"dog\",\"fox\"'"
check "  stored as they are" prints 'Stored: .* of PNG bytes' images "$work/encoded.h5" --store encoded
check "columns are for tables" refused 2 'name columns of Parquet and Arrow files' \
  "$lockstep" data import imagefolder data "$work/new.h5" --label label
check "nothing is left of what was refused" test ! -e "$work/new.h5"

# As `make install` places them; then without it.
mkdir -p "$work/there/bin" "$work/there/lib/lockstep"
cp "$lockstep" "$work/there/bin/lockstep"
ln -s "${lockstep%/*}/lockstep-arrow" "$work/there/lib/lockstep/"
lockstep=$work/there/bin/lockstep
check "the installed program finds lockstep-arrow" import $tables/snapshot "$work/text.h5" --force
rm "$work/there/lib/lockstep/lockstep-arrow"
check "without it, Parquet is refused" refused 2 'is a Parquet file, for which Lockstep needs the libraries of Arrow' \
  import $tables/snapshot "$work/new.h5"
check "  and CSV is not" import $tables/quoted.csv "$work/csv.h5" --force
finish
