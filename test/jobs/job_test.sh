#!/usr/bin/env bash
# timeout: 400
# cores: 0
# A job from its start to its end, with Slurm's commands replaced (slurm.sh): how failures are told from stops, when it
# requeues itself, which settings have precedence, and what is asked of a forgotten module.
source test/support/check.sh
source test/jobs/slurm.sh
trap 'kill -KILL $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
runs=$work/jobs/runs
not() { ! "$@"; }
is_requeued() { test -e "$work/requeued"; }

# ---- Failures and stops -------------------------------------------------------------------------------------------------
# Data that rank 1 lacks, as if they were only on the first node.
cat >"$work/rank1" <<END_OF_SCRIPT
#!/bin/bash
if [[ \${OMPI_COMM_WORLD_RANK-} == 1 ]]; then set -- "\$@" data.train=$work/nowhere.h5; fi
exec "$lockstep" "\$@"
END_OF_SCRIPT
chmod +x "$work/rank1"
script train "launch train \$configs/quickstart.yaml ${small[*]} run.name=\"\$job_name\""
begin_job train.sh missing LOCKSTEP="$work/rank1" LOCKSTEP_REQUEUE=1 LOCKSTEP_RANKS_PER_NODE=1
ends "data that are missing on one node: the job fails, and ends with the error" 1 '^== rank 1 on .*nowhere\.h5.* \[cannot_open\]$'
check "  it is not requeued" not is_requeued
check "  there is no run directory" test ! -e "$runs/missing"

# A run directory that a job on another node uses. Meanwhile that job writes its status.
mkdir -p "$runs/locked"
lock() { printf 'host elsewhere\npid 7\nprocess_start 1\nslurm_job 42\nslurm_restarts 0\nsince_unix 1700000000\nheartbeat %012d\n' "$1" >"$runs/locked/lock"; }
lock 0
begin_job train.sh locked LOCKSTEP_REQUEUE=1
check "a run directory in use: the job waits for a sign of the other" wait_for in_log 'waiting up to 60 s'
echo running >"$runs/locked/status"
lock 1
ends "  it fails, and its last line names the other job" 1 '^== .*in use by .*Slurm job 42.* \[run_locked\]$'
check "  it is not requeued" not is_requeued
check "  and does not ask to be submitted again" not in_log 'submit the same script again'
check "  the status is that of the other job" grep -qx running "$runs/locked/status"

# Signals before the first step: while the lock of a job is watched, which takes a minute.
for signal in USR2 TERM; do
  mkdir -p "$runs/early"
  cp "$runs/locked/lock" "$runs/early/lock"
  begin_job train.sh early LOCKSTEP_REQUEUE=1
  check "SIG$signal before the first step: the job waits" wait_for in_log 'waiting up to 60 s'
  kill -$signal $job
  if [[ $signal == USR2 ]]; then
    ends "  near the time limit, it stops and is not requeued" 75 'submit the same script again to start'
    check "  not requeued" not is_requeued
  else
    ends "  preempted, it is requeued" 0 'requeueing the job'
    check "  requeued" is_requeued
  fi
done

# Signals after a step.
begin_job train.sh stopped LOCKSTEP_REQUEUE=1
check "near the time limit: the job trains" wait_for step_is "$runs/stopped" 2
kill -USR2 $job
ends "  it is requeued" 0 'requeueing the job, to resume from runs/stopped/checkpoints/step-'
check "  its status is stopped" grep -qx stopped "$runs/stopped/status"
# A signal before the first step after resuming would not requeue the job.
resume_job() { # [VARIABLE=VALUE]...
  steps=$(grep -c '"event":"step"' "$runs/stopped/metrics.jsonl")
  begin_job train.sh stopped "$@"
}
trains_on() { step_is "$runs/stopped" $((steps + 1)); }
resume_job
check "without LOCKSTEP_REQUEUE: the job trains" wait_for trains_on
kill -USR2 $job
ends "  it ends with 75" 75 'submit the same script again to resume from runs/stopped/checkpoints/step-'
resume_job REQUEUE_OF_JOB=1
check "preempted, while Slurm requeues such jobs: the job trains" wait_for trains_on
kill -TERM $job
ends "  the advice is not to submit it twice" 75 'Slurm may requeue it .*; otherwise submit the same script again'
resume_job LOCKSTEP_REQUEUE=yes
check "LOCKSTEP_REQUEUE=yes: the job trains" wait_for trains_on
kill -USR2 $job
ends "  it is requeued" 0 'requeueing the job, to resume from'

# ---- Evaluation ----------------------------------------------------------------------------------------------------------
cp "$(realpath "$runs/stopped/checkpoints/latest")" "$work/model.h5"
script evaluate "launch evaluate \$configs/quickstart.yaml ${small[*]} log.progress=true data.validation=synthetic \
data.synthetic_samples=150000000 evaluation.batch_per_rank=1 --checkpoint $work/model.h5"
begin_job evaluate.sh evaluate
check "an evaluation shows its progress" wait_for in_log 'evaluation [0-9]+/[0-9]+ '
kill -USR2 $job
ends "near the time limit, it stops and says so" 75 'evaluate was stopped before it was complete'
check "  the program does too" in_log 'stopped by a signal'

# ---- Settings ------------------------------------------------------------------------------------------------------------
# Precedence, lowest first: the defaults of job.sh, the configuration file, the launch line, OVERRIDES.
{ grep -vE '^(run|device):' jobs/configs/quickstart.yaml; echo 'device: cpu'; } >"$work/jobs/plain.yaml"
{ cat "$work/jobs/plain.yaml"; echo 'run: {name: of-file, directory: file-runs}'; } >"$work/jobs/named.yaml"
value() { # KEY: of the command that a job of the script $launched would start
  local words
  mapfile -d '' -t words < <(cd "$work/jobs" && LOCKSTEP_CHECK=1 SLURM_JOB_NAME=of-job bash "$launched")
  "$lockstep" train --print-config="$1" "${words[@]:1}"
}
is() { [[ $(value "$1") == "$2" ]]; }
script plain "launch train $work/jobs/plain.yaml"
script named "launch train $work/jobs/named.yaml"
script line "launch train $work/jobs/named.yaml run.name=of-line run.directory=line-runs device=cuda"
launched=plain.sh
check "the run has the name of the job" is run.name of-job
LOCKSTEP_RUNS=/r check "  and is in LOCKSTEP_RUNS" is run.directory /r
check "the configuration file has precedence over device=cuda" is device cpu
launched=named.sh
check "  and over the name of the job" is run.name of-file
LOCKSTEP_RUNS=/r check "  and over LOCKSTEP_RUNS" is run.directory file-runs
launched=line.sh
check "the launch line has precedence over the file: run.name" is run.name of-line
check "  run.directory" is run.directory line-runs
check "  device" is device cuda
OVERRIDES='run.name=of-overrides device=cpu' check "OVERRIDES have precedence over the launch line" is run.name of-overrides
OVERRIDES='run.name=of-overrides device=cpu' check "  device too" is device cpu
for each in jobs/*.sh; do
  [[ $each != jobs/check.sh && $each != jobs/push_to_hub.sh && $each != jobs/evaluate.sh ]] || continue
  launched=$PWD/$each
  LOCKSTEP_DATA=/d LOCKSTEP_RUNS=/r check "$each: the run has the name of the job" is run.name of-job
  LOCKSTEP_DATA=/d LOCKSTEP_RUNS=/r check "  and is in LOCKSTEP_RUNS" is run.directory /r
done
# The job writes where the file says.
script file "launch train $work/jobs/file.yaml ${small[*]} train.max_steps=1"
{ cat "$work/jobs/plain.yaml"; printf 'run: {name: of-file, directory: "%s/its runs"}\n' "$work"; } >"$work/jobs/file.yaml"
begin_job file.sh of-job
ends "a run directory of the configuration file is used" 0 "the launcher exited with 0; $work/its runs/of-file/status: done"

# --fresh and --allow-change.
begin_job train.sh kept OVERRIDES='train.max_steps=2'
ends "a run" 0 'status: done'
check "  with the link between its ranks" in_log ' communication: shared memory, 2 ranks on 1 node; '
check "  and, at the end, the memory of each" in_log '^\[process_log - rank 1\] Peak = [0-9]+ MiB, Avg = [0-9.]+ MiB, Mode = [0-9]+ MiB$'
begin_job train.sh kept OVERRIDES='train.max_steps=3 optimizer.learning_rate=0.01'
ends "another learning rate is refused" 2 '\[resume_changed\]$'
begin_job train.sh kept OVERRIDES='train.max_steps=3 optimizer.learning_rate=0.01 --allow-change optimizer.learning_rate'
ends "OVERRIDES with --allow-change allow it" 0 'status: done'
begin_job train.sh kept OVERRIDES='--fresh train.max_steps=1'
ends "OVERRIDES with --fresh" 0 'status: done'
check "  start over" test -s "$runs/kept.1/checkpoints/step-00000003.h5"
begin_job train.sh kept OVERRIDES='--fresh train.max_steps=2' SLURM_RESTART_COUNT=1
ends "OVERRIDES with --fresh after a requeue" 0 'status: done'
check "  resume" test ! -e "$runs/kept.2"
begin_job train.sh kept OVERRIDES='--fresh=1 train.max_steps=3' SLURM_RESTART_COUNT=1
ends "  also as --fresh=1" 0 'status: done'
check "  resume" test ! -e "$runs/kept.2"
sed '/^\. /i set -euo pipefail' "$work/jobs/train.sh" >"$work/jobs/strict.sh"
begin_job strict.sh kept OVERRIDES='train.max_steps=4'
ends "a script with set -euo pipefail" 0 'status: done'

# ---- Names and secrets -----------------------------------------------------------------------------------------------------
# Names are data: nothing in them is executed or split.
for name in "it's \"quoted\" \$(touch pwned)" '-x' 'exp #1' '#2'; do
  begin_job train.sh named SLURM_JOB_NAME="$name" OVERRIDES=train.max_steps=1 LOCKSTEP_RUNS="$work/ru'n \"s"
  ends "a job with the name $name" 0 'status: done'
  check "  writes to the directory of that name" grep -qx done "$work/ru'n \"s/$name/status"
done
check "  nothing of it was executed" test ! -e "$work/jobs/pwned"
for variable in SLURM_JOB_NAME LOCKSTEP_RUNS; do
  begin_job train.sh broken "$variable=$work/two"$'\n== lines' OVERRIDES=train.max_steps=1
  ends "$variable with a line break is refused" 2 'nothing was started'
  check "  in one line" not in_log '^== lines'
  check "  and no directory is made" bash -c "! compgen -G '$work/two*'"
done
# Variables that hold secrets appear nowhere, and a password in an address is refused.
secrets=(HF_TOKEN AWS_SECRET_ACCESS_KEY WANDB_API_KEY MLFLOW_TRACKING_TOKEN MLFLOW_TRACKING_USERNAME MLFLOW_TRACKING_PASSWORD)
begin_job train.sh secret OVERRIDES='train.max_steps=1 run.check=quick log.mlflow=http://127.0.0.1:9' "${secrets[@]/%/=s3cr3t}"
ends "a job with secrets in its environment" 0 'status: done'
check "  none is in its log" not in_log s3cr3t
check "  nor in its run directory" not grep -raq s3cr3t "$runs/secret"
begin_job train.sh password OVERRIDES='train.max_steps=1 log.mlflow=http://user:${HF_TOKEN}@127.0.0.1:9' HF_TOKEN=s3cr3t
ends "a password in log.mlflow is refused" 2 'nothing was started'
check "  and is not repeated" not in_log s3cr3t

# ---- A forgotten module --------------------------------------------------------------------------------------------------
for each in "$PWD"/jobs/*.sh; do
  [[ $each != */check.sh && $each != */push_to_hub.sh ]] || continue
  (cd "$work" && SLURM_SUBMIT_DIR=$work bash "$each" >"$work/forgotten" 2>&1)
  status=$?
  check "${each##*/} without LOCKSTEP_HOME: one sentence, status 2" bash -c "[[ $status == 2 && \$(wc -l <'$work/forgotten') == 1 ]] &&
    grep -q 'module load lockstep' '$work/forgotten'"
done
check "a script that is started with sh" refused 2 'need bash' sh jobs/resnet50_1gpu.sh
finish
