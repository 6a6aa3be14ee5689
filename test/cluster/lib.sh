# Shared by the tests of the cluster. Sourced by run.sh, which sets repository, work, cluster and LOCKSTEP.

passed=0 failed=0 skipped=0
finish() {
  local line="$passed passed, $failed failed, $skipped skipped"
  if [[ -n $results ]]; then echo "$line" >"$results"; fi
  echo "$line"
  exit $((failed > 0))
}
skip() { echo "skipped: $1"; skipped=1; finish; }
check() { # SENTENCE COMMAND...
  if "${@:2}"; then
    echo "passed  $1"
    ((passed += 1))
  else
    echo "FAILED  $1"
    ((failed += 1))
    return 1
  fi
}

# The command ends with STATUS, and its output matches. For status 1, the output must contain a problem with its remedy.
reports() { # STATUS REGULAR-EXPRESSION COMMAND...
  local output status
  output=$("${@:3}" 2>&1)
  status=$?
  if [[ $status != "$1" ]] || ! grep -qE -- "$2" <<<"$output" || { [[ $1 == 1 ]] && ! grep -q 'remedy: .' <<<"$output"; }; then
    echo "exit status $status (expected $1); expected \"$2\", found:"
    sed 's/^/    | /' <<<"$output" | tail -30
    return 1
  fi
}

# Replaces the cluster with a new one, and exports the environment for its programs in this shell.
cluster_up() { # OPTION-OF-mini-slurm...
  "$cluster" down >/dev/null 2>&1
  if ! timeout 120 "$cluster" up --subnet "$subnet" "$@" 2>"$work/up.log"; then
    cat "$work/up.log"
    check "the cluster came up" false
    finish
  fi
  eval "$("$cluster" env)"
}

# Creates the cluster on which the job scripts are tested, once; it remains for the tests that follow.
has_eight=
eight_nodes() {
  if [[ -n $has_eight ]]; then return; fi
  has_eight=yes
  cluster_up --nodes 8 --gpus 8 --cpus 64 --conf-line PreemptType=preempt/partition_prio --conf-line PreemptMode=REQUEUE \
    --conf-line 'PartitionName=urgent Nodes=ALL PriorityTier=2 State=UP' \
    --conf-line 'PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=60 State=UP'
  export LOCKSTEP LOCKSTEP_CACHE=none LOCKSTEP_DATA=$work/data
  source "$repository/modules/site/mini-slurm.sh"
  short="device=cpu cpu.threads=1 data.train=synthetic data.validation=synthetic model.depth=18 model.width=16 data.image_size=32
    data.readers=1 comm.watchdog_seconds=600 log.every_steps=1 log.tensorboard=false"
  text_short="device=cpu cpu.threads=1 model.config=$repository/jobs/configs/models/gpt_small.json precision=fp32
    data.train=synthetic data.validation=synthetic data.synthetic_samples=64 data.sequence_length=32 data.readers=1
    train.global_batch=32 train.epochs=1 train.max_steps=2 schedule.warmup_steps=0 evaluation.max_samples=8
    comm.watchdog_seconds=600 log.every_steps=1 log.tensorboard=false"
  steps_4="data.synthetic_samples=64 train.global_batch=16 train.epochs=1 evaluation.max_samples=16"
}

# ---- Jobs -------------------------------------------------------------------------------------------------------------
field() { scontrol show job -o "$1" | tr ' ' '\n' | sed -n "s/^$2=//p" | head -1; } # JOB NAME
until_true() { # SECONDS COMMAND...: whether it becomes true in time
  local limit=$((SECONDS + $1))
  until "${@:2}"; do
    ((SECONDS < limit)) || return 1
    sleep 0.3
  done
}
is_over() { case $(field "$1" JobState) in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | PREEMPTED) ;; *) false ;; esac; }
has_state() { [[ $(field "$1" JobState) == "$2" ]]; } # JOB STATE
has_restarted() { [[ $(field "$1" Restarts) -ge $2 ]]; } # JOB TIMES

show_log() { # JOB: after a failure
  echo "job $1: $(field "$1" JobState), exit code $(field "$1" ExitCode), reason $(field "$1" Reason); the end of its log:"
  sed 's/^/    | /' "$(log_of "$1")" 2>/dev/null | tail -40
}
log_of() { field "$1" StdOut; }                        # JOB
in_log() { grep -qE -- "$2" "$(log_of "$1")"; }        # JOB EXTENDED-REGULAR-EXPRESSION

# Submits from $work/jobs, as a user does from a folder of their own. Sets $job to the job ID.
submit() { # SBATCH-OPTION... SCRIPT
  job=$(cd "$work/jobs" && sbatch --parsable "$@")
}
run_to_end() { # SBATCH-OPTION... SCRIPT
  submit "$@" && until_true 180 is_over "$job" && has_state "$job" COMPLETED && return
  show_log "$job"
  return 1
}
# Without this, a requeued job waits for two minutes. It must not start immediately either: a node that has just ended
# the job mistakes a start within the same second for the old one ("Job 1 already killed, do not launch batch job"), and
# Slurm fails the job.
start_again_now() { # JOB
  until_true 60 has_state "$1" PENDING && sleep 3 && scontrol update jobid="$1" StartTime=now
}

# ---- Runs -------------------------------------------------------------------------------------------------------------
status_of() { cat "$work/jobs/runs/$1/status" 2>/dev/null; }
# Prints KEY of each event of this kind.
values() { # RUN EVENT KEY
  sed -n "/\"event\": *\"$2\"/s/.*\"$3\": *\([0-9][-+.0-9eE]*\).*/\1/p" "$work/jobs/runs/$1/metrics.jsonl"
}
steps_trained() { values "$1" step step | tail -1; }
has_step() { [[ $(steps_trained "$1") -ge $2 ]]; } 2>/dev/null # RUN STEP
# Each of the steps 1 to N was done once and processed one global batch; each epoch had as many samples as drop_last
# leaves.
each_sample_once() { # RUN STEPS GLOBAL-BATCH SAMPLES-PER-EPOCH
  paste <(values "$1" step step) <(values "$1" step samples) | awk -v n="$2" -v batch="$3" '
    $1 != NR || $2 != NR * batch {bad = 1; print "        line " NR ": step " $1 ", " $2 " samples"}
    END {exit bad || NR != n}' &&
    [[ $(values "$1" epoch samples | sort -u) == "$4" ]]
}
