#!/usr/bin/env bash
# timeout: 240
# cores: 2
# lockstep scaling: a local study is run, killed, stopped, continued and reported. Failed cases are repeated, finished
# ones never. Also which cases are rejected, and what is refused.
source test/support/check.sh

export LOCKSTEP_CACHE=none TMPDIR=$work
export LOCKSTEP_MPIRUN="${MPIRUN:-mpirun} --oversubscribe --bind-to none"
tiny=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8
  data.synthetic_samples=48 cpu.threads=1)
study=$work/study
command=("$lockstep" scaling run "${tiny[@]}" train.global_batch=12 --out "$study" --ranks 1,2 --repeat 2 --steps 16 --warmup 4)
run() { "${command[@]}" "$@"; }
report() { "$lockstep" scaling report "$study" --accept warm-up --accept neighbours "$@" >"$work/text" 2>"$work/errors"; }
shows() { grep -Eq -- "$1" "$work/text" || { cat "$work/text" "$work/errors"; return 1; }; }
n_finished() { find "$study/cases" -name finished.json | wc -l; }
finished_are() { [[ $(n_finished) == "$1" ]]; }
until_true() { for _ in {1..1200}; do "$@" && return; sleep 0.05; done; return 1; }
edited() { # CASE PYTHON: changes `c`, the object in its finished.json
  python3 -c "import json,sys
p='$study/cases/$1/finished.json'; c=json.load(open(p)); $2; json.dump(c,open(p,'w'))"
}

# ---- Before anything runs ----
run --dry-run >"$work/text"
check "a dry run" test $? = 0
check "  prints each command" bash -c "(( \$(grep -c 'mpirun .* -n [12] .* train .*/cases/ranks-000[12]-repeat-[12]/config.yaml$' '$work/text') == 4 ))"
check "  does not know the node-hours" shows '^node-hours: unknown; give --minutes-per-case'
check "  writes nothing" test ! -e "$study"
run --dry-run --minutes-per-case 30 >"$work/text"
check "  estimates them from the minutes per case" shows '^node-hours: 2 for 4 cases of 30 minutes$'
"$lockstep" scaling run "${tiny[@]}" --out "$study" --nodes 1,2,4 --dry-run --ranks-per-node 4 --minutes-per-case 10 --repeat 1 >"$work/text"
check "  for Slurm: sbatch with nodes and ranks" shows '^LOCKSTEP_CASE=.* sbatch .*--nodes=4 --ntasks-per-node=4 --exclusive --no-requeue .*/jobs/scaling.sh$'
check "  for Slurm: node-hours by nodes" shows '^node-hours: 1.17 for 3 cases'
"$lockstep" scaling run "${tiny[@]}" train.batch_per_rank=4 --out "$study" --ranks 1,2 --dry-run >"$work/text"
check "  a batch per rank means weak scaling" shows '^weak scaling, a batch per rank of 4 samples; 60 steps, of which the first 10 are the warm-up; 3 repeats'
"$lockstep" scaling run "${tiny[@]}" train.batch_per_rank=4 --strong --out "$study" --ranks 2,4 --dry-run >"$work/text"
check "  --strong keeps the batch of the fewest ranks" shows '^strong scaling, a global batch of 8 samples'

# ---- Killed, stopped, continued ----
"${command[@]}" >"$work/text" 2>&1 & # not the function, which would run in a subshell
runner=$!
check "a study begins" until_true finished_are 1
kill -KILL $runner
wait $runner 2>/dev/null
check "after a kill, its lock is left" test -e "$study/lock"
first=$(find "$study/cases" -name finished.json | sort | head -1)
before=$(stat -c '%i %Y' "$first")
printf '#!/bin/bash\nkill -INT $PPID; sleep 30\n' >"$work/interrupts"
chmod +x "$work/interrupts"
LOCKSTEP_MPIRUN=$work/interrupts run >"$work/text" 2>&1
check "a signal stops it: exit status 75" test $? = 75
check "  which it says" shows '^Stopped by SIGINT. [1-3] of 4 cases are finished: repeat the command to continue'
check "  and the lock is gone" test ! -e "$study/lock"

# ---- Failed cases ----
cat >"$work/broken" <<'END' # leaves weights, as a case that is interrupted after its last step does
#!/bin/bash
run=$(dirname "${@: -1}")/run
mkdir -p "$run/checkpoints"
touch "$run/checkpoints/step-00000016.h5" "$run/model.safetensors"
echo "the network is down"
exit 9
END
chmod +x "$work/broken"
LOCKSTEP_MPIRUN=$work/broken run >"$work/text" 2>&1
check "failed cases: exit status 1" test $? = 1
check "  with their output" shows '^  \| the network is down$'
check "  and what to do" shows '^[1-3] failed: repeat the command to run them again'
printf '#!/bin/bash\nprintf "step 1\\nlockstep: error: the disk is full\\n  remedy: free space\\n  [system_call]\\n"; seq -f "mpirun %%g" 20; exit 1\n' >"$work/full-disk"
chmod +x "$work/full-disk"
LOCKSTEP_MPIRUN=$work/full-disk run >"$work/text" 2>&1
check "a case that ends with an error of the program" shows '^  \| lockstep: error: the disk is full$'
check "  is reported with its remedy" shows '^  \| +remedy: free space$'
check "  and without what mpirun says then" bash -c "! grep '| mpirun\|step 1' '$work/text'"
check "the same command continues the study" run
check "  to its end" finished_are 4
check "  keeps the files of failed attempts" grep -rq 'the network is down' "$study/cases" --include=output.txt
check "  and has not touched the finished case" test "$before" = "$(stat -c '%i %Y' "$first")"
check "  the cases keep no weights" bash -c "! find '$study/cases' -name '*.h5' -o -name '*.safetensors' | grep ."
sums=$(cat "$study"/cases/*/finished.json | sha256sum)
run >"$work/text" 2>&1
check "a finished study runs nothing" shows '^4 of 4 cases are finished'
check "  and changes nothing" test "$sums" = "$(cat "$study"/cases/*/finished.json | sha256sum)"
run --dry-run >"$work/text"
check "  a dry run has no commands, and 0 node-hours" shows '^node-hours: 0 for 0 cases of [0-9.e-]+ minutes, the mean of those that are finished$'

# ---- Reports ----
check "a report" report
check "  of strong scaling" shows '^strong scaling, a global batch of 12 samples; 16 steps, of which the first 4 are the warm-up; 2 repeats$'
check "  with the baseline" shows '^Baseline \(Single rank\): [0-9.]+ s per step, the mean of 2 cases$'
check "  with the speedup" shows '^Multi-rank \(2 ranks, 1 node\)  2 of 2  +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$'
for figures in 'training loss  training accuracy, %  samples/s  rank 0 peak, MiB  rank 0 average, MiB  rank 0 mode, MiB  throughput scaling  memory average scaling' \
  'time of a step, s  utilisation, %  FLOPs of the model, GFLOP/s  waiting for communication, ms  waiting for data, ms'; do
  check "  with the figures $figures" shows "^configuration +$figures$"
done
check "  in one row per size" shows '^Multi-rank \(2 ranks, 1 node\)( +[0-9.]+){8}$'
check "Markdown" report --format markdown
check "  has tables" shows '^\| Multi-rank \(2 ranks, 1 node\) \| 2 of 2 \| '
check "CSV" report --format csv
check "  has 15 figures of 2 sizes" bash -c "(( \$(wc -l <'$work/text') == 31 ))"
check "LaTeX" report --format latex
check "  has tables" shows '^    Multi-rank \(2 ranks, 1 node\) & 2 of 2 & [0-9.]+ & '
check "JSON, to a file" report --format json --output "$work/report.json"
check "  has all cases and figures" python3 -c "
import json; r = json.load(open('$work/report.json'))
assert len(r['cases']) == 4 and all(c['averaged'] for c in r['cases']), r['cases']
one, two = r['sizes']
assert abs(two['figures']['speedup']['mean'] - two['figures']['samples_per_second']['mean'] / one['figures']['samples_per_second']['mean']) < 1e-9
assert abs(two['figures']['efficiency']['mean'] - two['figures']['speedup']['mean'] / 2) < 1e-9
assert sum(h['ranks'] for h in r['cases'][0]['hosts']) == r['cases'][0]['ranks']"

# ---- Rejected cases ----
for each in "$study"/cases/*; do edited "$(basename "$each")" "c['hosts'][0]['busy_cores_of_others'] = 0; c['step_seconds'] = [0.5] * 16"; done
strict() { "$lockstep" scaling report "$study" >"$work/text" 2>"$work/errors"; }
edited ranks-0002-repeat-1 "c['build'] = 'another'"
check "a case of another build" strict
check "  is rejected" shows '^ranks-0002-repeat-1: rejected \(build\): it ran with another build: another\.$'
check "  and not averaged" shows '^Multi-rank \(2 ranks, 1 node\)  1 of 2 '
check "  so there is no interval, which is said" shows '^A figure of one or two cases has no confidence interval'
check "  unless it is accepted" "$lockstep" scaling report "$study" --accept build --output "$work/text"
check "  and averaged" shows '^Multi-rank \(2 ranks, 1 node\)  2 of 2 '
edited ranks-0002-repeat-1 "c['build'] = json.load(open('$study/study.json'))['build']; c['hosts'][0]['busy_cores_of_others'] = 1.75"
check "a case with other programs on its host" strict
check "  is rejected" shows '^ranks-0002-repeat-1: rejected \(neighbours\): other programs kept 1\.8 cores of .* busy\.$'
edited ranks-0002-repeat-1 "c['hosts'][0]['busy_cores_of_others'] = 0; c['step_seconds'][4:8] = [2, 1.9, 1.9, 2]"
check "a case that still became faster" strict
check "  is rejected" shows '^ranks-0002-repeat-1: rejected \(warm-up\): the warm-up of 4 steps was too short'
edited ranks-0002-repeat-1 "c['step_seconds'] = [0.25] * 16; c['hosts'][0]['cores'] = 1"
check "ranks that shared a core" strict
check "  are remarked" shows '^With 2 ranks, 2 of them shared 1 core of one machine: this size measures these cores'
check "  with all cases" shows '^Multi-rank \(2 ranks, 1 node\)  2 of 2 '

# ---- Damaged files, and what is refused ----
cp -r "$study" "$work/copy"
echo '{"format": 1' >"$work/copy/cases/ranks-0001-repeat-1/finished.json"
check "a damaged case is reported" refused 1 'ranks-0001-repeat-1/finished.json is not valid JSON' "$lockstep" scaling report "$work/copy"
echo '{"format": 1}' >"$work/copy/cases/ranks-0001-repeat-1/finished.json"
check "  so is an incomplete one, with the remedy" refused 1 'remove the file to repeat the case' "$lockstep" scaling report "$work/copy"
rm "$work/copy/cases/ranks-0001-repeat-1/finished.json"
check "  without the file, the case is not finished" bash -c "'$lockstep' scaling report '$work/copy' | grep -q '1 of 4 cases are not finished'"
sed -i 's/"launcher": "local"/"launcher": "slurm"/' "$work/copy/study.json"
few=$work/copy/cases/ranks-0001-repeat-1/run/metrics.jsonl
head -n 8 "$few" >"$work/half" && mv "$work/half" "$few"
check "  nor is one whose job has left too few steps" bash -c "'$lockstep' scaling report '$work/copy' | grep -q '1 of 4 cases are not finished'"
head -c 100 "$study/study.json" >"$work/copy/study.json"
check "a half-written study.json" refused 1 'study.json is not valid JSON' "$lockstep" scaling report "$work/copy"
check "  stops the study" refused 1 'study_damaged' "$lockstep" scaling run "${tiny[@]}" --out "$work/copy" --ranks 1
rm "$work/copy/study.json"
check "without study.json it is no study" refused 2 'is not a scaling study: it has no study.json' "$lockstep" scaling report "$work/copy"
check "a directory that does not exist" refused 2 'there is no study' "$lockstep" scaling report "$work/none"
changed() { "$lockstep" scaling run "${tiny[@]}" train.global_batch="$1" --out "$study" --ranks 1,2 --repeat 2 --steps "$2" --warmup 4; }
check "another configuration" refused 2 'train.global_batch: 12 before, 24 now' changed 24 16
check "other settings" refused 2 'steps: 16 before, 17 now' changed 12 17
check "  with the remedy" refused 2 'remedy: undo the change, or start anew: .* a study with another --out' changed 12 17
echo "$(hostname) 1 1" >"$study/lock"
check "the lock of a process that is gone is taken over" run
echo "another-host 4711 1" >"$study/lock"
check "that of another host is not" refused 1 'process 4711 on another-host works on this study' run
rm "$study/lock"
new() { "$lockstep" scaling run "$@" --out "$work/new"; }
check "a configuration that does not exist" refused 2 'config_unreadable' new "$work/none.yaml" --ranks 1
check "numbers that are none" refused 2 "\-\-ranks: expected numbers" new "${tiny[@]}" --ranks 1,x
check "too few steps to measure" refused 2 'a case of 12 steps with a warm-up of 8 measures fewer than 5' \
  new "${tiny[@]}" --ranks 1 --steps 12 --warmup 8
check "neither ranks nor nodes" refused 2 'expected --ranks or --nodes' new "${tiny[@]}"
check "nodes without Slurm" refused 2 '\-\-local runs on one machine' new "${tiny[@]}" --nodes 2 --local
check "a batch that is too small" refused 2 'too few samples for 16 ranks' new "${tiny[@]}" train.global_batch=12 --ranks 1,16
check "no mpirun" refused 2 'no-such-mpirun cannot be started' env LOCKSTEP_MPIRUN=no-such-mpirun \
  "$lockstep" scaling run "${tiny[@]}" --out "$work/new" --ranks 1
rm -rf "$work/new"
check "no sbatch" refused 2 'sbatch cannot be started|sbatch refused' env PATH="$work" "$lockstep" scaling run "${tiny[@]}" --out "$work/new" --nodes 1
rm -rf "$work/new"
check "what the program refuses" refused 2 'The study ends here, since the program refused to start' new "${tiny[@]}" comm.backend=nccl --ranks 2,1
mkdir "$work/full"
touch "$work/full/file"
check "a directory with other files" refused 2 'is not a study, and not empty' "$lockstep" scaling run "${tiny[@]}" --out "$work/full" --ranks 1
if obeys_permissions; then
  mkdir "$work/closed"
  chmod 500 "$work/closed"
  check "a directory that cannot be written" refused 1 'cannot create the directory .*Permission denied' \
    unprivileged "$lockstep" scaling run "${tiny[@]}" --out "$work/closed/study" --ranks 1
fi
check "a full disk" refused 1 'study/lock: File too large' bash -c "
  (ulimit -f 0; exec '$lockstep' scaling run ${tiny[*]} --out '$work/too-large/study' --ranks 1 2>&1) | cat; exit \${PIPESTATUS[0]}"
# ---- Predictions, and additional sizes ----
for each in "$study"/cases/*; do edited "$(basename "$each")" "c['hosts'][0]['cores'] = 1"; done
check "predictions" report --predict 4,8
check "  with the cost model" shows '^compute +[0-9.]+ s \+ [0-9.]+ ms per sample of a rank'
check "  and the cores that they assume" shows '^Predictions assume that each node has 1 core, as in the study\.$'
check "  and its error" shows '^The model was fitted to 1, 2 ranks\. At these, it is wrong by [0-9.]+ % '
check "  with an interval" shows '^    4      1  +4  +[0-9.]+ +[0-9.e-]+ to [0-9.]+ +-  +-  +1, 2$'
check "  are written to the study" test -s "$study/predictions.json"
check "  and shown without being asked for" report
check "  with all sizes" shows '^    8      1  +8  +[0-9.]+ '
check "JSON has them" report --format json
check "  with the model" python3 -c "
import json; r = json.load(open('$work/text'))
assert [p['ranks'] for p in r['predictions']] == [4, 8] and r['model']['buckets'] > 0, r"
check "CSV has them" report --format csv
check "  with their interval" shows '^4,1,0,0,predicted_step_seconds,[0-9.]+,[0-9.e-]+,[0-9.]+,,,$'
check "LaTeX has them" report --format latex
check "  as a table" shows '^    4 & 1 & 4 & [0-9.]+ & '
check "a measured size is not predicted" refused 2 '\-\-predict: 2 ranks have been measured' "$lockstep" scaling report "$study" \
  --accept warm-up --accept neighbours --predict 2
check "  nor is one that has no sample for each rank" refused 2 '\-\-predict: a global batch of 12 has too few samples for 16 ranks' \
  "$lockstep" scaling report "$study" --accept warm-up --accept neighbours --predict 16
check "a report does not replace the model" refused 2 'model.json' "$lockstep" scaling report "$study" --output "$study/model.json"
"$lockstep" plan "${tiny[@]}" train.global_batch=12 train.epochs=3 --ranks 4 --nodes 2 --model "$study/model.json" --json="$work/plan.json" >"$work/text"
check "a plan with the model" shows '^  training +[0-9.]+ (s|min|h) \(12 steps\), [0-9.e-]+ node-hours$'
check "  says that the study knew no network" shows '^  The study had no case on several nodes: '
check "  in JSON" python3 -c "
import json; p = json.load(open('$work/plan.json'))['predicted']
assert p['steps'] == 12 and abs(p['node_hours'] * 3600 - 2 * p['seconds']) < 1e-9 and 0 < p['efficiency'], p"
"$lockstep" plan "${tiny[@]}" train.global_batch=12 --ranks 4 --model "$study/model.json" --json="$work/plan.json" >"$work/text"
check "  of a size that the report has predicted" shows '^  cores       4 ranks per core: each node has 1 core, as in the study$'
check "  gives the same answer" python3 -c "
import json; plan = json.load(open('$work/plan.json'))['predicted']
report = next(p for p in json.load(open('$study/predictions.json'))['predictions'] if p['ranks'] == 4)
for key in plan.keys() & report.keys():
    assert abs(plan[key] - report[key]) <= 1e-9 * abs(report[key]), (key, plan[key], report[key])
assert {'step_seconds', 'sharing', 'interval_low', 'samples_per_rank'} <= plan.keys()"
check "  that is no model" refused 1 'study.json is not a cost model' "$lockstep" plan "${tiny[@]}" --model "$study/study.json"
more=("$lockstep" scaling run "${tiny[@]}" train.global_batch=12 --out "$study" --repeat 2 --steps 16 --warmup 4)
"${more[@]}" --ranks 1,2,4 >"$work/text" 2>&1
check "a study is extended" shows '; 2 cases of additional sizes follow$'
check "  and all cases are finished" finished_are 6
check "  but sizes are not left out" refused 2 'ranks: 1 on 1, 2 on 1, 4 on 1 before, 1 on 1, 4 on 1 now' "${more[@]}" --ranks 1,4
check "the report" report
check "  has the measurement beside the prediction" shows '^    4      1  +4  +[0-9.]+ +[0-9.e-]+ to [0-9.]+ +[0-9.]+ +[+-][0-9.]+  +1, 2$'
check "a page" report --format html --figures "$work/figures"
check "  with its charts" test -s "$work/figures/speedup.svg" -a -s "$work/figures/efficiency.svg" -a -s "$work/figures/time.svg" \
  -a -s "$work/figures/memory.svg" -a -s "$work/figures/loss.svg"
check "  is XML" python3 -c "
import xml.etree.ElementTree as tree; tree.parse('$study/report.html')"
check "figures without a page" refused 2 '\-\-figures is for --format html' "$lockstep" scaling report "$study" --figures "$work/none"
head -c 50 "$study/model.json" >"$work/half" && mv "$work/half" "$study/model.json"
check "a damaged model is named" refused 1 'model.json' "$lockstep" scaling report "$study"
rm "$study/model.json"
echo '{}' >"$study/predictions.json"
check "damaged predictions are named" refused 1 'predictions.json is damaged.*remove the file' "$lockstep" scaling report "$study"
finish
