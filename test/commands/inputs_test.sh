#!/usr/bin/env bash
# timeout: 200
# No command replaces a file that it reads, whatever name leads to it.
source test/support/check.sh

export LOCKSTEP_CACHE=none
cp data/samples/cifar10_test.h5 "$work/set.h5"
"$lockstep" train jobs/configs/quickstart.yaml model.width=16 device=cpu cpu.threads=1 data.train=data/samples/cifar10_train.h5 \
  data.validation="$work/set.h5" data.image_size=8 train.max_steps=1 run.directory="$work" run.name=run log.progress=false \
  log.tensorboard=false >"$work/log" 2>&1
mkdir -p "$work/images/a"
PYTHONPATH=test/support python3 -c 'import sys; from png import png; sys.stdout.buffer.write(png([bytes(range(24))] * 8))' \
  >"$work/images/a/1.png"
cd "$work" || exit 1
best=run/checkpoints/best model=run/model.safetensors
cp run/config.yaml own.yaml
echo '{}' >run/algorithms.json
cp "$best" best.h5
ln -s best.h5 link.h5
ln best.h5 hard.svg
ln -s set.h5 other_set.h5
ln -s set.h5 set.svg
ln -s run/checkpoints/best best.svg
printf 'time_unix,rank,pid,cpu_percent,rss_mib\n1,0,1,5,100\n' >process_log.csv
cp images/a/1.png picture.png
ln images/a/1.png image.h5
ls images/a/1.png >names.txt
sums() { find . -type f ! -name '.*' -exec sha256sum {} + | sort; }
sums >.before

# keeps FILE COMMAND...: the command refuses to write to its input FILE
keeps() { check "${*:2}" refused 2 "$1 is an input of this command .*give the output another name" "$lockstep" "${@:2}"; }
keeps run/config.yaml evaluate run --json=run/config.yaml
keeps own.yaml evaluate own.yaml --checkpoint best.h5 --json=own.yaml
keeps best.h5 evaluate best.h5 data.validation=set.h5 --json=best.h5
keeps ./link.h5 evaluate best.h5 data.validation=set.h5 --json=./link.h5
keeps hard.svg evaluate best.h5 data.validation=set.h5 --confusion=hard.svg
keeps run/../best.h5 evaluate link.h5 data.validation=set.h5 --json=run/../best.h5
keeps best.svg evaluate run --confusion=best.svg
keeps set.h5 evaluate run --json=set.h5
keeps set.svg evaluate run --confusion=set.svg
keeps best.h5 predict best.h5 picture.png --json=best.h5
keeps images/a/1.png predict run images --csv=images/a/1.png
keeps picture.png predict run images picture.png --json=picture.png
keeps own.yaml plan own.yaml --json=own.yaml
keeps set.h5 plan own.yaml --json=set.h5
keeps run/algorithms.json plan run/config.yaml --json=run/algorithms.json
keeps run/metrics.json compare run --json=run/metrics.json
keeps run/config.yaml compare run/ run --json=run/config.yaml
keeps set.h5 data info set.h5 --json=set.h5
keeps other_set.h5 data verify set.h5 --json=other_set.h5
keeps best.h5 checkpoint info link.h5 --json=best.h5
keeps process_log.csv report memory process_log.csv --json=process_log.csv
keeps set.h5 data import imagefolder images set.h5 --force --statistics-from other_set.h5
ln -s "$work/best.h5" to.safetensors
keeps to.safetensors checkpoint export best.h5 to.safetensors --force
ln -s "$work/$model" to.h5
keeps to.h5 checkpoint import "$model" to.h5 --force
keeps image.h5 data import imagefolder images image.h5 --force
predict_names() { "$lockstep" predict run - --json=names.txt <names.txt; }
check "predict: the names on standard input" refused 2 'names.txt is an input of this command' predict_names
check "predict: the same name for both outputs" refused 2 'two outputs have the same name, ./both' "$lockstep" predict run picture.png --json=both \
  --csv=./both
check "evaluate: the same name for both outputs" refused 2 'two outputs have the same name' "$lockstep" evaluate run --json=both.svg --confusion=both.svg
sums >.after
check "all of them are as they were" cmp .before .after

check "another file beside the inputs is written" "$lockstep" compare run --json=run/compared.json
check "  and replaced" "$lockstep" compare run --json=run/compared.json
check "a device may be both" bash -c '"$0" report memory process_log.csv --json=/dev/null </dev/null' "$lockstep"
check "and so may both outputs" "$lockstep" predict run picture.png --json=/dev/null --csv=/dev/null
finish
