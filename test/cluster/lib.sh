# What the tests of the cluster share. Sourced by run.sh, which sets repository, work, cluster and LOCKSTEP.

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

# The command ends so and says that; a problem (1) comes with its remedy.
says() { # STATUS REGULAR-EXPRESSION COMMAND...
  local said status
  said=$("${@:3}" 2>&1)
  status=$?
  if [[ $status != "$1" ]] || ! grep -qE -- "$2" <<<"$said" || { [[ $1 == 1 ]] && ! grep -q 'remedy: .' <<<"$said"; }; then
    echo "exit status $status (wanted $1); wanted \"$2\", found:"
    sed 's/^/    | /' <<<"$said" | tail -30
    return 1
  fi
}

# A cluster in place of the one before. Leaves its programs' environment in this shell.
cluster_up() { # OPTION-OF-mini-slurm...
  "$cluster" down >/dev/null 2>&1
  if ! timeout 120 "$cluster" up --subnet "$subnet" "$@" 2>"$work/up.log"; then
    cat "$work/up.log"
    check "the cluster came up" false
    finish
  fi
  eval "$("$cluster" env)"
}

# The cluster that job scripts are tried on; stays for the tests that follow.
has_eight=
eight_nodes() {
  if [[ -n $has_eight ]]; then return; fi
  has_eight=yes
  cluster_up --nodes 8 --gpus 8 --cpus 64 --conf-line PreemptType=preempt/partition_prio --conf-line PreemptMode=REQUEUE \
    --conf-line 'PartitionName=urgent Nodes=ALL PriorityTier=2 State=UP' \
    --conf-line 'PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=60 State=UP'
  export LOCKSTEP LOCKSTEP_CACHE=none LOCKSTEP_DATA=$work/data
  source "$repository/modules/site/mini-slurm.sh"
  short="device=cpu cpu.threads=1 data.train=synthetic data.validation=synthetic model.depth=18 data.image_size=32
    data.readers=1 comm.watchdog_seconds=600 log.every_steps=1 log.tensorboard=false"
  steps_4="data.synthetic_samples=64 train.global_batch=16 train.epochs=1 evaluation.max_samples=16"
}

# ---- Jobs -------------------------------------------------------------------------------------------------------------
field() { scontrol show job -o "$1" | tr ' ' '\n' | sed -n "s/^$2=//p" | head -1; } # JOB NAME
until_true() { # SECONDS COMMAND...: whether it came true in time
  local limit=$((SECONDS + $1))
  until "${@:2}"; do
    ((SECONDS < limit)) || return 1
    sleep 0.3
  done
}
is_over() { case $(field "$1" JobState) in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | PREEMPTED) ;; *) false ;; esac; }
has_state() { [[ $(field "$1" JobState) == "$2" ]]; } # JOB STATE
has_restarted() { [[ $(field "$1" Restarts) -ge $2 ]]; } # JOB TIMES

show_log() { # JOB: where something went wrong
  echo "job $1: $(field "$1" JobState), exit code $(field "$1" ExitCode), reason $(field "$1" Reason); the end of its log:"
  sed 's/^/    | /' "$(log_of "$1")" 2>/dev/null | tail -40
}
log_of() { field "$1" StdOut; }                        # JOB
in_log() { grep -qE -- "$2" "$(log_of "$1")"; }        # JOB EXTENDED-REGULAR-EXPRESSION

# Submitted from $work/jobs, as a user would from a folder of his own. Leaves the number in $job.
submit() { # SBATCH-OPTION... SCRIPT
  job=$(cd "$work/jobs" && sbatch --parsable "$@")
}
run_to_end() { # SBATCH-OPTION... SCRIPT
  submit "$@" && until_true 180 is_over "$job" && has_state "$job" COMPLETED && return
  show_log "$job"
  return 1
}
# What was queued again waits for two minutes otherwise. Not at once: a node that has just ended a job takes what comes in
# the same second for that start of it ("Job 1 already killed, do not launch batch job"), and Slurm fails the job.
start_again_now() { # JOB
  until_true 60 has_state "$1" PENDING && sleep 3 && scontrol update jobid="$1" StartTime=now
}

# ---- Runs -------------------------------------------------------------------------------------------------------------
status_of() { cat "$work/jobs/runs/$1/status" 2>/dev/null; }
# event KEY of each line of that event
values() { # RUN EVENT KEY
  sed -n "/\"event\": *\"$2\"/s/.*\"$3\": *\([0-9][-+.0-9eE]*\).*/\1/p" "$work/jobs/runs/$1/metrics.jsonl"
}
steps_trained() { values "$1" step step | tail -1; }
has_step() { [[ $(steps_trained "$1") -ge $2 ]]; } 2>/dev/null # RUN STEP
# Steps 1 to N, each once, after each as many samples as the global batch makes; epochs of as many as drop_last leaves.
each_sample_once() { # RUN STEPS GLOBAL-BATCH SAMPLES-AN-EPOCH
  paste <(values "$1" step step) <(values "$1" step samples) | awk -v n="$2" -v batch="$3" '
    $1 != NR || $2 != NR * batch {bad = 1; print "        line " NR ": step " $1 ", " $2 " samples"}
    END {exit bad || NR != n}' &&
    [[ $(values "$1" epoch samples | sort -u) == "$4" ]]
}
