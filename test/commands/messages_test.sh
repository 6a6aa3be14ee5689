#!/usr/bin/env bash
# timeout: 300
# Wrong input to several commands: each error names what is wrong, its place and the remedy, and nothing is left behind.
source test/support/check.sh

export LOCKSTEP_CACHE=none
small=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8
  data.synthetic_samples=96 train.global_batch=12 train.epochs=1 cpu.threads=1 log.progress=false log.tensorboard=false
  run.directory="$work")
train() { "$lockstep" train "${small[@]}" "$@"; }

# A configuration file with each key on a known line.
cat >"$work/keys.yaml" <<'YAML'
train:
  freeze: [layer9]
optimizer:
  groups: ["fc learning_rate=1", "fc.bias weight_decay=0"]
checkpoint:
  best: precision
YAML
with() { refused 2 "$1" "$lockstep" plan "${small[@]}" "$work/keys.yaml" "${@:2}"; }
check "a pattern of train.freeze has its place" with "keys.yaml:2: train.freeze: no parameter matches layer9" checkpoint.best=auto
check "  so has checkpoint.best" with 'keys.yaml:6: checkpoint.best: expected one of auto'
check "  and a pattern of optimizer.groups" with 'command line: optimizer.groups: no parameter matches head' checkpoint.best=auto \
  train.freeze=[] 'optimizer.groups=[head weight_decay=0]'
check "  and the two parameters of a layer" with 'command line: train.freeze selects fc.bias and not fc.weight' checkpoint.best=auto \
  train.freeze=fc.bias
check "  and a global batch for too many ranks" with 'command line: a global batch of 12 samples cannot be divided' checkpoint.best=auto \
  train.freeze=[] optimizer.groups=[] --ranks 13
check "a group that another one shadows" with \
  'keys.yaml:4: optimizer.groups: all parameters that "fc.bias" selects belong to the group "fc" before it' checkpoint.best=auto train.freeze=[]
check "  or several others" with '"fc" selects belong to the groups "fc.weight", "fc.bias" before it' checkpoint.best=auto train.freeze=[] \
  'optimizer.groups=[fc.weight weight_decay=0, fc.bias weight_decay=1, fc weight_decay=2]'
check "  in part is none" "$lockstep" plan "${small[@]}" 'optimizer.groups=[fc.bias weight_decay=1, fc weight_decay=2]'
check "a warm-up that is longer than the data" refused 2 'command line: the warm-up must not be longer than the schedule' train \
  run.name=warm schedule.warmup_epochs=0 schedule.warmup_steps=1000 --dry-run

# An evaluation that does not fit into memory is not blamed on the training.
large=(evaluation.batch_per_rank=16777216)
check "an evaluation that does not fit" refused 1 'command line: an evaluation needs .* lower evaluation.batch_per_rank' train run.name=large \
  "${large[@]}"
check "  in plan" bash -c '"$0" plan "$@" | grep "^The evaluation does NOT fit: .* Lower evaluation.batch_per_rank"' "$lockstep" "${small[@]}" "${large[@]}"
check "  with an automatic batch" refused 1 'beside an evaluation with 16777216 samples at once \(evaluation.batch_per_rank\)' train \
  run.name=large "${large[@]}" train.batch_per_rank=auto

check "  nor one that is impossible" refused 2 'a rank would evaluate 4000000000 samples at once; .*: lower evaluation.batch_per_rank$' train \
  run.name=large evaluation.batch_per_rank=4000000000
check "an option after --" refused 2 '\-\-fresh is after `--`, where no option can be: write it before' "$lockstep" train "${small[@]}" -- --fresh

# Empty file names.
for command in "plan ${small[*]} --json=" "plan ${small[*]} --device=" "predict x y --csv=" "evaluate x --confusion="; do
  check "${command%% *} with ${command##* }" refused 2 "nothing follows the \`=\` of ${command##* }: give a value" "$lockstep" $command
done
check "evaluate --confusion ''" refused 2 'confusion: found an empty text; expected --confusion FILE.svg' "$lockstep" evaluate x --confusion ''

# Broken links.
ln -s gone "$work/linked"
check "RUN is a broken link" refused 1 'linked is a link to gone, which does not exist; create that folder, or remove the link' train run.name=linked
check "  and --dry-run says so" refused 1 'linked is a link to gone, which does not exist; create' train run.name=linked --dry-run
check "a run" train run.name=a
links=$work/a/checkpoints
ln -sfn step-99.h5 "$links/best"
broken='best is a link to step-99.h5, which does not exist'
check "evaluate: a broken link in the run" refused 1 "$broken: name another checkpoint" "$lockstep" evaluate "$work/a"
check "predict" refused 1 "$broken: name another checkpoint" "$lockstep" predict "$work/a" "$work"/*.yaml
check "evaluate: the link itself" refused 1 "$broken" "$lockstep" evaluate "$links/best" data.validation=synthetic
check "predict" refused 1 "$broken" "$lockstep" predict "$links/best" "$work/keys.yaml"
check "checkpoint.resume_from" refused 1 "$broken" train run.name=b checkpoint.resume_from="$links/best"
check "resuming" refused 0 "the best checkpoint so far is not known: .*$broken" train run.name=a train.epochs=2
check "  finds a new one" test "$(readlink "$links/best")" = step-00000016.h5

# A RUN/config.yaml that was damaged or edited. The message and its remedy must help.
cp "$work/a/config.yaml" "$work/good.yaml"
for damage in 'train: [1' $'\x01\x02' 'a b c'; do
  echo "$damage" >"$work/a/config.yaml"
  check "a damaged config.yaml" refused 2 'a/config.yaml:?.*; the run to resume was started with this file: restore it, or remove it' train run.name=a \
    train.epochs=3
  check "  and no remedy that contradicts" grep -q '^  remedy: correct the line or the path in the message, or restore the file' "$work/.refused"
done
rm "$work/a/config.yaml"
check "  that was removed" train run.name=a train.epochs=3
sed -i 's/learning_rate: .*/learning_rate: 0.7/' "$work/a/config.yaml"
check "an edited config.yaml is named" refused 2 'what is learned differ from those in .*a/config.yaml:$' train run.name=a train.epochs=4
rm "$work/a/config.yaml"
check "  without it, the checkpoint decides" refused 2 'what is learned differ from those in .*checkpoints/step-00000024.h5:$' train run.name=a \
  train.epochs=4 optimizer.learning_rate=0.7
check "  and the run resumes" train run.name=a train.epochs=4

# Folders without permission.
if obeys_permissions; then
  closed() { # WHAT STATUS PATTERN COMMAND...: while RUN/checkpoints may not be read
    chmod 000 "$links"
    check "$1" refused "$2" "$3" unprivileged "$lockstep" "${@:4}"
    chmod 755 "$links"
  }
  closed "evaluate: a folder of checkpoints without permission" 1 'cannot open .*checkpoints/best: Permission denied' evaluate "$work/a"
  check "  with the remedy" grep -q 'remedy: check the path, .* and the permission to read it' "$work/.refused"
  closed "  a file in it" 1 'cannot open .*checkpoints/best: Permission denied' evaluate "$links/best" data.validation=synthetic
  closed "predict" 1 'cannot open .*checkpoints/best: Permission denied' predict "$work/a" "$work/keys.yaml"
  closed "train" 1 'cannot list .*checkpoints: Permission denied' train "${small[@]}" run.name=a
  closed "train --dry-run" 1 'cannot list .*checkpoints: Permission denied' train "${small[@]}" run.name=a --dry-run
  mkdir -m 000 "$work/closed"
  mkdir -m 555 "$work/readonly"
  for name in closed closed/run closed/deep/run readonly readonly/run; do
    check "--dry-run: $name without permission" refused 1 "$name.*: Permission denied" unprivileged "$lockstep" train "${small[@]}" run.name=$name --dry-run
    check "  with the remedy" grep -q 'remedy: choose another run.directory or run.name, or check the free space and the permissions' "$work/.refused"
  done
fi

# A limit on the number of open files.
open_files() { (ulimit -n "$1" && exec "$lockstep" "${@:2}"); }
check "too few open files" refused 1 'may open only 20 files, and needs at least 64: raise the limit with .ulimit -n 1024.' open_files 20 train "${small[@]}" run.name=few
check "  do not leave a run" test ! -e "$work/few"
check "  and are reported by other commands" refused 1 'may open only 20 files' open_files 20 plan "${small[@]}"
check "  64 are enough" open_files 64 train "${small[@]}" run.name=few

# Data that is missing: the remedy fits any kind of data.
check "a missing data set" refused 1 'cannot open none.h5: No such file' train run.name=none data.train=none.h5
check "  with a remedy for all kinds of data" grep -q "remedy: check the path, .* creates data sets, and data.train=synthetic needs none$" "$work/.refused"

# The output of an import is a data set.
cp "$work/keys.yaml" "$work/kept.yaml"
for output in kept.yaml set cifar10.bin; do
  for kind in "cifar10 none" "imagefolder none" "text none --tokenizer none"; do
    source=${kind#* } kind=${kind%% *}
    check "data import $kind to $output" refused 2 "must end in .h5, found .*$output\$" "$lockstep" data import $kind ${source%% *} "$work/$output" \
      --force ${source#none}
  done
done
check "  replaces nothing" cmp "$work/keys.yaml" "$work/kept.yaml"

# One mean or standard deviation makes synthetic images grey, in all sets.
for key in mean std; do
  check "one value of data.$key" train run.name=grey-$key "data.$key=[0.5]"
  check "  makes synthetic images grey" grep -q '8x8x1, ' "$work/grey-$key/log.txt"
done
cp "$work/grey-mean/checkpoints/latest" "$work/grey.h5"
check "synthetic images have the channels of the model" "$lockstep" evaluate "$work/grey.h5" data.validation=synthetic cpu.threads=1
check "different numbers of values are refused" refused 2 'one number per channel, found 3 and 1' train run.name=none \
  'data.mean=[0.5,0.5,0.5]' 'data.std=[0.5]'

# Single-process commands of which a launcher starts several processes.
for command in "predict $work/a x.png" "data import cifar10 x y" "plan ${small[*]}" "compare $work/a" "checkpoint export x y.onnx"; do
  check "several processes: ${command%% /*}" refused 2 'is a command of one process, but 2 were started' env OMPI_COMM_WORLD_SIZE=2 \
    OMPI_COMM_WORLD_RANK=0 $lockstep $command
done
check "  of Slurm" refused 2 'but 3 were started' env SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=3 "$lockstep" compare "$work/a"
check "  of PMI" refused 2 'but 4 were started' env PMI_RANK=0 PMI_SIZE=4 "$lockstep" compare "$work/a"
check "one process of mpirun in a Slurm step of two" env OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 SLURM_STEP_ID=1 SLURM_PROCID=0 \
  SLURM_STEP_NUM_TASKS=2 "$lockstep" compare "$work/a"
check "help is for any process" env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 "$lockstep" help config run
check "mpirun" refused 2 'is a command of one process, but 2 were started' mpirun --oversubscribe -n 2 "$lockstep" compare "$work/a"

# Files that cannot grow (ulimit -f): an error, and no partial file.
mkdir "$work/out"
for i in {0..9}; do printf "\\x0$i"; head -c 3072 /dev/urandom; done >"$work/data_batch_1.bin"
check "an import" "$lockstep" data import cifar10 "$work/data_batch_1.bin" "$work/good.h5"
limited() { (ulimit -f 8; exec "$lockstep" "$@") 2>&1 | cat; return "${PIPESTATUS[0]}"; }
check "a limit of the file size: export" refused 1 '\[system_call\]' limited checkpoint export "$links/latest" "$work/out/a.safetensors"
check "  to onnx" refused 1 '\[system_call\]' limited checkpoint export "$links/latest" "$work/out/a.onnx"
check "  data import" refused 1 '\[system_call\]' limited data import cifar10 "$work/data_batch_1.bin" "$work/out/a.h5"
check "  leaves nothing" bash -c '[[ -z $(ls -A "$0") ]]' "$work/out"

# Names with escape sequences.
name=$'\e[31mred.png'
check "an escape sequence in an error" bash -c '! "$0" predict "$1" "$2" >"$3" 2>&1 && ! grep -q "$4" "$3"' "$lockstep" "$work/$name" x "$work/escape" $'\e'
check "  is shown" grep -Fq '\x1b[31mred.png' "$work/escape"
check "  in a warning" bash -c '! "$0" predict "$1" "$2" >"$3" 2>&1 && ! grep -q "$4" "$3"' "$lockstep" "$links/latest" "$work/$name" "$work/escape" $'\e'
check "  is shown" grep -Fq '\x1b[31mred.png' "$work/escape"
finish
