#!/usr/bin/env bash
# lockstep compare: the keys in which runs differ, and their figures, as a table and as JSON; runs that cannot be
# compared.
source test/support/check.sh

export LOCKSTEP_CACHE=none
train() {
  "$lockstep" train jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8 \
    data.synthetic_samples=24 train.global_batch=12 train.epochs=1 cpu.threads=1 log.tensorboard=false log.progress=false \
    run.directory="$work" "$@"
}
compare() { "$lockstep" compare "$@" >"$work/table" 2>"$work/errors"; }
row() { grep -Eq "^$1 +$2\$" "$work/table" || { cat "$work/table"; return 1; }; }
is_aligned() { [[ $(sed '/^$/d' "$work/table" | awk '{ print length }' | sort -u | wc -l) == 1 ]]; }

check "trains" train run.name=a
check "  and again with other values" train run.name=b optimizer.learning_rate=0.01 train.epochs=2 data.augment=[flip]
check "compares them" compare "$work/a" "$work/b/"
check "  names the runs" row configuration "$work/a +$work/b"
check "  a number that differs" row optimizer.learning_rate '0.02 +0.01'
check "  a list that differs" row data.augment '\[crop, flip\] +\[flip\]'
check "  no key that is the same" bash -c '! grep -Eq "^(train.global_batch|run.name)" "$0"' "$work/table"
check "  the steps" row steps '2 +4'
check "  the samples" row samples '24 +48'
check "  the status" row status 'done +done'
for key in exchanged_bytes buckets; do check "  without sums over ranks, $key is 0" row $key '0 +0'; done
for key in final_loss best_loss best_accuracy samples_per_second seconds; do
  check "  $key" row $key '[0-9.e+-]+ +[0-9.e+-]+'
done
check "  in columns" is_aligned
check "three runs" compare "$work/a" "$work/b" "$work/a"
check "  have three columns" row steps '2 +4 +2'
check "one run has figures" compare "$work/a"
check "the same run twice" compare "$work/a" "$work/a"
check "  does not differ" grep -q 'The configurations do not differ' "$work/table"

check "as JSON" bash -c '"$0" compare "$1" "$2" --json 2>/dev/null >"$3"' "$lockstep" "$work/a" "$work/b" "$work/json"
check "  the configuration" grep -q '"configuration":{.*"optimizer.learning_rate":\["0.02","0.01"\]' "$work/json"
check "  the figures" grep -q '"steps":\[2,4\]' "$work/json"
check "  the runs" grep -q "\"runs\":\[\"$work/a\",\"$work/b\"\]" "$work/json"

# Figures of training and of evaluation are not mixed.
check "a run without evaluations" train run.name=trained data.validation=
check "  beside one with them" compare "$work/a" "$work/trained"
for key in final_loss final_accuracy best_loss best_accuracy; do
  check "  has no $key" row $key '[0-9.e+-]+ +-'
done
check "  but a training loss" row final_train_loss '[0-9.e+-]+ +[0-9.e+-]+'

cp -r "$work/b" "$work/running"
rm "$work/running/metrics.json"
echo running >"$work/running/status"
check "a run in progress" compare "$work/a" "$work/running"
check "  has no figures" row final_loss '[0-9.]+ +-'
check "  but a status" row status 'done +running'
check "  which is explained" grep -q 'running has no metrics.json' "$work/table"
echo '{"steps"' >"$work/running/metrics.json"
check "damaged figures" compare "$work/a" "$work/running"
check "  are explained" grep -q 'metrics.json is damaged: its figures are missing (parse error at line ' "$work/table"
echo '[1]' >"$work/running/metrics.json"
check "figures that are a list" compare "$work/a" "$work/running"
check "  are explained" grep -q 'metrics.json is not a JSON object' "$work/table"
echo '{"steps": 1e999}' >"$work/running/metrics.json"
check "a number that is too large" compare "$work/a" "$work/running"
check "  is explained" grep -q "metrics.json is damaged: its figures are missing (number overflow parsing '1e999')" "$work/table"
echo '{"steps": "4\u001b[2J", "seconds": [1, 2], "versions": 3, "status": 4, "ranks": 2, "final_loss": null}' \
  >"$work/running/metrics.json"
check "figures of wrong types" compare "$work/a" "$work/running"
check "  a text instead of a number" grep -Fq 'metrics.json: steps: expected a number, found "4\u001b[2J"' "$work/table"
check "  a list" grep -Fq 'metrics.json: seconds: expected a number, found [1,2]' "$work/table"
check "  versions" grep -Fq 'metrics.json: versions: expected an object, found 3' "$work/table"
check "  a status" grep -Fq 'metrics.json: status: expected text, found 4' "$work/table"
check "  are left out" row steps '2 +-'
check "  and the others are not" row ranks '1 +2'
ln -s nowhere "$work/link"
check "a broken link" refused 2 'there is no run .*/link: .*/link is a link to nowhere, which does not exist' "$lockstep" compare \
  "$work/a" "$work/link"
check "a missing run" refused 2 'there is no run .*/nowhere' "$lockstep" compare "$work/a" "$work/nowhere"
check "a directory that is no run" refused 2 'it has no config.yaml' "$lockstep" compare "$work/a/checkpoints"
echo 'model: {depth: 19}' >"$work/running/config.yaml"
check "a damaged configuration" refused 2 'config.yaml:1: model.depth' "$lockstep" compare "$work/a" "$work/running"
finish
