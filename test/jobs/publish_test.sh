#!/usr/bin/env bash
# timeout: 200
# cores: 0
# Jobs that publish their models (PUSH_TO, PUSH_EVERY), with Slurm's commands replaced (slurm.sh), and with a program in place
# of `hf` that records the commits: each epoch once, also after a requeue; no failure changes the run or the job.
source test/support/check.sh
source test/jobs/slurm.sh
trap 'kill -KILL $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
runs=$work/jobs/runs
not() { ! "$@"; }
fake hf <<END_OF_SCRIPT
case \$1 in
  auth) test ! -e "$work/no-network" ;;
  upload)
    until [[ ! -e $work/slow ]]; do sleep 0.1; done
    if [[ -e $work/refused ]]; then echo "401 Unauthorized: \$HF_TOKEN" >&2; exit 1; fi
    echo "\$2 \${*: -1} \$(cksum <"\$3/model.safetensors")" >>"$work/commits" ;;
esac
END_OF_SCRIPT
cat >"$work/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "tie_word_embeddings": true}
JSON
repository=$PWD
script train "push_interval=0.2; cd $repository; launch train jobs/configs/gpt_small_shakespeare.yaml model.config=$work/config.json \
device=cpu cpu.threads=1 data.sequence_length=32 data.end=1 train.global_batch=64 schedule.warmup_steps=1 evaluation.max_samples=4 \
checkpoint.every_epochs=1 checkpoint.keep=100 log.progress=false log.tensorboard=false model.license=mit \
run.directory=$runs run.name=\"\$job_name\""
begin() { begin_job train.sh "$1" PUSH_TO=me/model HF_TOKEN=s3cr3t "${@:2}"; } # NAME VARIABLE=VALUE...
commits() { cut -d' ' -f1,2 "$work/commits" 2>/dev/null | xargs; }
names() { ls "$runs/$1/checkpoints" | sed -n 's/^\(step-.*\)\.h5$/\1/p' | sort; } # RUN
published() { test -s "$work/commits" -a "$(cut -d' ' -f2 "$work/commits")" == "$(names "$1")"; } # each epoch once, in order

begin ends OVERRIDES=train.epochs=2
ends "a training that is published at its end" 0 'published step-[0-9]+ at https://huggingface.co/me/model'
check "  with one commit, which has the name of the last checkpoint" test "$(commits)" == "me/model $(names ends | tail -1)"
check "  and the weights of RUN/model" grep -q "$(cksum <"$runs/ends/model/model.safetensors")" "$work/commits"
begin ends OVERRIDES=train.epochs=2
ends "  the same job again does not repeat it" 0 'status: done'
check "  nothing was uploaded" test "$(wc -l <"$work/commits")" == 1
check "  the token is not in the log" not in_log s3cr3t
rm "$work/commits"

# Rank 0 waits while two epochs are published, so that their number does not depend on the speed of this machine.
uploads() { pgrep -f "$work/slurm/hf upload" >/dev/null; }
n_epochs() { grep -c '^{"event":"epoch"' "$runs/epochs/metrics.jsonl" 2>/dev/null; }
has_epochs() { [[ $(n_epochs) -ge $1 && $(grep -c '^{"event":"checkpoint"' "$runs/epochs/metrics.jsonl") -ge $1 ]]; }
touch "$work/slow"
begin epochs PUSH_EVERY=epoch LOCKSTEP_REQUEUE=1 OVERRIDES='train.epochs=100 comm.watchdog_seconds=600'
check "a training of several epochs" wait_for has_epochs 2
rank0=$(sed -n 's/^pid //p' "$runs/epochs/lock")
kill -STOP "$rank0"
check "  it uploads the first while it goes on" wait_for uploads
rm "$work/slow"
check "  and publishes it" wait_for in_log 'published step-'
touch "$work/slow"
check "  then it uploads the second" wait_for uploads
kill -USR2 $job
kill -CONT "$rank0"
ends "  the upload of one is interrupted, and the job is requeued" 0 'requeueing the job'
check "  the program that uploads has ended" not uploads
rm "$work/slow"
begin epochs PUSH_EVERY=epoch SLURM_RESTART_COUNT=1 OVERRIDES="train.epochs=$(($(n_epochs) + 1))"
ends "  it resumes, and publishes the rest" 0 'published step-'
check "  each epoch once, in order" test "$(n_epochs)" -ge 3 -a "$(cut -d' ' -f2 "$work/commits")" == \
  "$(printf 'step-%08d\n' $(sed -n 's/^{"event":"epoch",.*"step":\([0-9]*\),.*/\1/p' "$runs/epochs/metrics.jsonl"))"
check "  with weights of its own" test "$(cut -d' ' -f3 "$work/commits" | sort -u | wc -l)" == "$(wc -l <"$work/commits")"
check "  nothing is left in the run directory" test ! -e "$runs/epochs/publishing"
rm "$work/commits"

touch "$work/refused"
begin failing PUSH_EVERY=epoch OVERRIDES=train.epochs=2
ends "uploads that fail do not fail the job" 0 'run this on a node with a network.*: .*/jobs/push_to_hub.sh .*/runs/failing me/model --upload$'
check "  they are reported" in_log 'step-[0-9]+ was not published; the run is not affected: .*401'
check "  without the token" not in_log s3cr3t
check "  nor is it in the run directory" not grep -raq s3cr3t "$runs/failing"
check "  the run is done" grep -qx done "$runs/failing/status"
rm "$work/refused"
touch "$work/no-network"
begin failing PUSH_EVERY=epoch OVERRIDES=train.epochs=2
ends "without a network, the job prints the command" 0 'run this on a node with a network.*push_to_hub.sh'
check "  nothing was uploaded" test ! -e "$work/commits"
rm "$work/no-network"
begin failing PUSH_EVERY=epoch OVERRIDES=train.epochs=2
ends "with one, it publishes what is missing" 0 'published step-'
check "  each epoch once" published failing

touch "$work/slow"
begin hangs OVERRIDES=train.epochs=1
check "an upload that hangs" wait_for uploads
kill -USR2 $job
ends "  ends with the time of the job" 0 'run this on a node with a network'
rm "$work/slow"
begin_job train.sh wrong PUSH_TO=model
ends "a name without an organisation is refused before the training" 2 'nothing was started'
begin_job train.sh wrong PUSH_EVERY=step PUSH_TO=me/model
ends "another interval too" 2 'nothing was started'
finish
