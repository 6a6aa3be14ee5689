#!/usr/bin/env bash
# The program's own options, its exit statuses, and where messages go.
set -uo pipefail
lockstep=${LOCKSTEP:-build/lockstep}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect STATUS "text on standard output" "text on standard error" ARGUMENTS...
expect() {
  local status=$1 out=$2 err=$3
  shift 3
  "$lockstep" "$@" >"$work/out" 2>"$work/err"
  local got=$?
  if [[ $got != "$status" || $(<"$work/out") != *"$out"* || $(<"$work/err") != *"$err"* ]]; then
    echo "lockstep $*: expected status $status with \"$out\" and \"$err\"; found status $got with"
    cat "$work/out" "$work/err"
    failed=1
  fi
}
quiet() { # the last command must not have written to this stream
  if [[ -s $work/$1 ]]; then echo "expected nothing on standard $1, found:"; cat "$work/$1"; failed=1; fi
}

expect 0 "oneDNN" "" --version; quiet err
expect 0 '"libraries":{' "" --version --json; quiet err
expect 0 "Usage: lockstep" "" --help
expect 0 "Usage: lockstep train" "" train --help
expect 0 "Usage: lockstep data import" "" help data import
expect 0 "! train.global_batch " "" help config; quiet err
expect 0 "* optimizer.kind " "" help config optimizer; quiet err
if grep -q 'train\.' "$work/out"; then echo "help config optimizer shows keys of train"; failed=1; fi
expect 0 "Name of the run" "" help config run.name; quiet err
expect 0 "model.depth=18" "" help config run.name model.depth
expect 0 "cannot_open (exit status 1): a file or folder does not exist or cannot be opened" "" help errors; quiet err
expect 2 "" "there is no key or group run.nmae; the nearest is run.name" help config run.nmae; quiet out
expect 0 "Usage: lockstep [OPTIONS] [SUBCOMMAND]" "" help; quiet err
expect 0 "Usage: lockstep help" "" help help
if grep -q 'model\.width' "$work/out"; then echo "help config shows model.width, which is for tests"; failed=1; fi
expect 2 "" "a command is missing" ; quiet out
expect 2 "" "remedy: see \`lockstep train --help\`" train --frehs x.yaml
expect 2 "" "there is no help topic nothing" help nothing
expect 2 "" "cannot open absent.yaml: No such file or directory" train absent.yaml; quiet out
expect 2 "" "command line: there is no key train.epoch; the nearest is train.epochs" train train.epoch=3
expect 2 "" "[config_invalid]" plan train.epoch=3

# Mistakes of new users.
expect 2 "" "there is no command \`lockstep trian\` (the nearest is train); the commands are train, evaluate" trian
expect 2 "" "there is no command \`lockstep trian\`" trian --help; quiet out
expect 2 "" "there is no command \`lockstep checkpoint verfy\` (the nearest is verify); the commands are info, verify" checkpoint verfy
expect 2 "" "there is no command \`lockstep data xyz\`; the commands are" data xyz --help; quiet out
expect 2 "" "A subcommand is required: one of import, info, verify, show, encode, decode" data
expect 2 "" "remedy: see \`lockstep data --help\`" data
expect 2 "" "CONFIG is required; expected CONFIG ..., required: YAML files and key=value overrides; later ones override earlier ones" train
expect 2 "" "remedy: see \`lockstep train --help\`" train
expect 2 "" "not expected: --frehs; the nearest is --fresh" train x.yaml --frehs
expect 2 "" "not expected: --zzz" train x.yaml --zzz
expect 2 "" "not expected: b" checkpoint info a b
expect 2 "" "--ranks: Value 0 not in range 1 to 1048576; expected --ranks N (1 to 1048576), default 1" plan --ranks 0 x.yaml
expect 2 "" "remedy: see \`lockstep plan --help\`" plan --ranks 0 x.yaml
expect 2 "" "--ranks: Value four not in range 1 to 1048576" plan --ranks four x.yaml
expect 2 "" "missing; expected --ranks N (1 to 1048576), default 1" plan --ranks
expect 2 "" "--ranks: At Most 1 required but received 2" plan --ranks 2 --ranks 3 x.yaml
expect 2 "" "missing; expected --allow-change KEY" train x.yaml --allow-change
expect 2 "" "--json requires --version" --json
expect 2 "" "--per-class excludes --limit" data import cifar10 a b --limit 3 --per-class 2
expect 2 "" "there is no command \`lockstep data import cifr10\` (the nearest is cifar10); the commands are cifar10, mnist, imagefolder, tiny-imagenet, webdataset, text, chat" data import cifr10 a b
expect 2 "" "--dry-run = maybe; expected --dry-run: " train x.yaml --dry-run=maybe
expect 0 "--ranks N (1 to 1048576), default 1" "" plan --help
expect 0 "--json[=FILE]" "" plan --help
expect 2 "" "data.train: expected the path of a data set, or synthetic, found nothing" plan run.name=x
expect 2 "" "/dev/zero is not a regular file" plan /dev/zero
expect 2 "" "has more than 1048576 bytes" plan <(head -c 1048577 /dev/zero)
expect 2 "" "cpu.threads: expected one of auto | 1 to 1024, found \"100000\"" plan cpu.threads=100000
expect 2 "" "train.global_batch: expected a whole number, 0 to 4294967295" plan train.global_batch=9000000000000000000
expect 2 "" "found \"a\\x00b\"" train <(printf 'run: {name: "a\\0b"}\n')
expect 2 "" "comm.bucket_mb: expected a number, greater than 0, up to 1048576" plan comm.bucket_mb=1e300
expect 2 "" "relative to run.directory, found \"/tmp/x\"" plan run.name=/tmp/x
expect 2 "" "the nearest is train.epochs" plan TRAIN.EPOCHS=3
expect 2 "" "--allow-change: there is no key train.max_stepz; the nearest is train.max_steps" \
  train data.train=synthetic --allow-change train.max_stepz
echo "Full fathom five" >"$work/-dash.txt"
tokenizer=$PWD/data/samples/tokenizer.json program=$(realpath "$lockstep")
cd "$work" || exit 1
here=$lockstep lockstep=$program
expect 0 "Imported 1 document" "" data import text --tokenizer "$tokenizer" -- -dash.txt dash.h5
expect 2 "" "./-dash.txt" data import text -dash.txt dash.h5 --tokenizer "$tokenizer"
expect 2 "" "--tokenizer is after" data import text -- -dash.txt dash.h5 --tokenizer "$tokenizer"
expect 2 "" "--tokenizer is required" data import text -- -dash.txt dash.h5
lockstep=$here
cd "$OLDPWD" || exit 1
touch "$work/file"
expect 1 "" "[run_directory]" train data.train=synthetic run.directory="$work/file" model.classes=10 cpu.threads=1
expect 1 "" "is a data set of images, not a checkpoint" checkpoint info data/samples/cifar10_test.h5; quiet out
expect 1 "" "[checkpoint_format]" checkpoint verify data/samples/cifar10_test.h5; quiet out
expect 1 "" "[cannot_open]" checkpoint verify "$work/absent.h5"; quiet out
expect 1 "" "[data_format]" data verify README.md; quiet out
expect 1 "" "[data_damaged]" data info "$work/file"; quiet out
cp "$work/file" "$work/empty.safetensors"
expect 1 "" "[model_file_damaged]" checkpoint import "$work/empty.safetensors" "$work/new.h5"
touch "$work/there.h5"
expect 2 "" "there.h5 already exists; use --force to replace it" checkpoint import "$work/empty.safetensors" "$work/there.h5"
expect 0 '"good":true' "is valid" data verify data/samples/cifar10_test.h5 --json
expect 1 "is valid" "No such file or directory" data verify data/samples/cifar10_test.h5 --json=/absent/x.json

printf 'run: {seed: 1}\ntrain:\n  epochs: three\n' >"$work/bad.yaml"
expect 2 "" "bad.yaml:3: train.epochs: expected a whole number, 1 to 2147483647, found \"three\"" train "$work/bad.yaml"

# Models and data with different numbers of classes.
small=(data.train=data/samples/cifar10_test.h5 cpu.threads=1 model.width=16 data.image_size=16 train.global_batch=4
  train.max_steps=1 run.directory="$work")
expect 0 "" "model.classes is 20, but data/samples/cifar10_test.h5 has 10 classes: no sample has one of the other 10; set model.classes=10" \
  train "${small[@]}" model.classes=20 run.name=more
if [[ $(grep -c 'model.classes is 20' "$work/out" "$work/err" | awk -F: '{n += $2} END {print n}') != 1 ]]; then echo "expected one warning"; failed=1; fi
expect 0 "" "model.classes is 20, but data/samples/cifar10_train.h5 has 10 classes" train "${small[@]}" data.train=synthetic \
  data.validation=data/samples/cifar10_train.h5 evaluation.max_samples=8 model.classes=20 run.name=validation
expect 2 "" "has 10 classes, but the model has 9: set model.classes=10" train "${small[@]}" model.classes=9 run.name=fewer
expect 2 "" "cifar10_test.h5 has 10 classes, but the model has 9: set model.classes=10" train "${small[@]}" data.train=synthetic \
  data.validation=data/samples/cifar10_test.h5 model.classes=9 run.name=fewer

# Under a launcher, every rank ends with the same status.
timeout 60 "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n 3 "$lockstep" train train.epoch=3 >"$work/out" 2>"$work/err"
got=$?
if [[ $got != 2 ]] || ! grep -q "the nearest is train.epochs" "$work/err"; then
  echo "3 ranks with an unknown key: expected status 2, found $got with"
  cat "$work/out" "$work/err"
  failed=1
fi
exit $failed
