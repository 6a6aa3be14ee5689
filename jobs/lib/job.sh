# Shared by all job scripts: the environment, the checks, the launch, the signals, and what to do when the run ends.
#
#   . "$home/jobs/lib/job.sh"; launch train "$configs/NAME.yaml" [KEY=VALUE]...
#
# `launch` starts one rank per task on the nodes that Slurm granted, however many there are, and then ends the script. Without
# other settings, the run has the name of the job ($job_name), is written to ${LOCKSTEP_RUNS:-runs}, uses GPUs, and logs the
# memory of GPUs and processes, which is reported at the end. The configuration file has precedence over this, the launch line
# over the file, and OVERRIDES over all.
# Signals to the batch shell: after USR2 (sent by --signal when the time is nearly up) and TERM (scancel, preemption) the
# ranks save and stop, and with LOCKSTEP_REQUEUE=1 the job requeues itself. After INT they save and stop, and the job is not
# requeued. A job that lost a node is always requeued. PUSH_TO publishes the model (publish.sh). docs/clusters.md describes
# the variables.

[ -n "${BASH_VERSION:-}" ] || { echo "job scripts need bash: use sbatch or bash, not sh" >&2; exit 2; }
set +e # the commands below report their failures themselves, and some are expected
if [[ ${LOCKSTEP_REQUEUE:-} =~ ^(yes|true|on)$ ]]; then LOCKSTEP_REQUEUE=1; fi
jobs=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export LOCKSTEP_HOME=${jobs%/*}
configs=$jobs/configs
# shellcheck source=jobs/lib/checks.sh
source "$jobs/lib/checks.sh"
# shellcheck source=jobs/lib/publish.sh
source "$jobs/lib/publish.sh"
job_name=${SLURM_JOB_NAME:-$(directive job-name "$0")}

report() { echo "== $(printable "$*")"; }

job_state() { scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p'; }
# Changes whenever the program writes RUN/status, so that a start that wrote no status is not judged by that of an
# earlier one.
status_file() { stat -c '%i %.9Y' "$run/status" 2>/dev/null; }
newest_checkpoint() { readlink "$run/checkpoints/latest" 2>/dev/null; }
checkpoint_file() { stat -c '%i %.9Y' "$run/checkpoints/latest" 2>/dev/null; }
has_saved() { [[ -n $(newest_checkpoint) && $(checkpoint_file) != "$before_checkpoint" ]]; } # during this start

launch() { # COMMAND CONFIGURATION [ARGUMENT]...
  local command=$1 words overrides ranks per_node block_term received='' pid='' publisher='' before before_checkpoint status log_begin
  trap 'received=USR2; forward' USR2
  trap 'received=TERM; forward' TERM
  trap 'received=INT; forward' INT
  if [[ -z ${LOCKSTEP_CHECK:-} && -n ${SLURM_JOB_ID:-} ]]; then # first, because the lines below use their variables
    if [[ -n ${LOCKSTEP_SITE:-} ]]; then use_site "$LOCKSTEP_SITE"; fi
    use_modules
  fi
  read -rd '' -a overrides <<<"${OVERRIDES:-}"
  words=(run.name="${job_name:-run}" run.directory="${LOCKSTEP_RUNS:-runs}" device=cuda log.usage_seconds=5 "${@:2}"
    "${overrides[@]}")
  if ((${SLURM_RESTART_COUNT:-0} > 0)); then leave_out_fresh; fi
  if [[ -n ${LOCKSTEP_CHECK:-} ]]; then # jobs/check.sh asks which command would be started
    printf '%s\0' "$command" "${words[@]}"
    exit 0
  fi
  require_slurm "$command" "${words[@]}"

  per_node=${SLURM_GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}} # may have the form TYPE:N
  per_node=${SLURM_NTASKS_PER_NODE:-${per_node##*:}}
  ranks=$((SLURM_JOB_NUM_NODES * per_node))
  prepare "$command" "${words[@]}"
  report "$(date '+%F %T') job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)):" \
    "$(n_of "$ranks" rank) on $(n_of "$SLURM_JOB_NUM_NODES" node), $SLURM_JOB_NODELIST${run:+; $run}"
  record_nodes
  set_for_launcher

  local line=(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$ranks" --ntasks-per-node="$per_node")
  if [[ $LOCKSTEP_LAUNCHER == mpirun ]]; then
    # shellcheck disable=SC2206
    line=("$LOCKSTEP_HOME/scripts/launch" "${block_term[@]}" $mpirun -n "$ranks" --map-by "ppr:$per_node:node")
  fi
  line+=("$lockstep" "$command" "${words[@]}")
  report "$(shell_words "${line[@]}")"
  before=$(status_file)
  before_checkpoint=$(checkpoint_file)
  log_begin=$(stat -Lc %s /dev/stderr)
  if [[ -z $received ]]; then
    "${line[@]}" &
    pid=$!
    if [[ $command == train ]]; then publish_epochs; fi
    if [[ -n $received ]]; then forward; fi # the signal arrived before the launcher had started
    while kill -0 $pid 2>/dev/null; do wait $pid; done # `wait` returns at each trapped signal
    wait $pid
    status=$?
    pid=''
    end_publisher
  else
    status=75
  fi
  finish "$command" "$status"
}

# --fresh starts over once. A job that is requeued resumes what it has trained since.
leave_out_fresh() {
  local word kept=()
  for word in "${words[@]}"; do [[ $word == --fresh || $word == --fresh=* ]] || kept+=("$word"); done
  words=("${kept[@]}")
}
# Prints words so that a shell reads them as they are.
shell_words() { # WORD...
  local word text=()
  for word in "$@"; do
    if [[ $word =~ ^[][A-Za-z0-9_./:,=+@%-]+$ ]]; then text+=("$word"); else text+=("${word@Q}"); fi
  done
  echo "${text[*]}"
}
n_of() { if [[ $1 == 1 ]]; then echo "1 $2"; else echo "$1 $2s"; fi; } # NUMBER NOUN

# Prints this node's line for record_nodes. A container with a CPU limit (cgroup) does not share its cores with others.
describe_node() {
  local busy='/^cpu /{print $2 + $3 + $4 + $7 + $8}' cores machine path quota period before after
  cores=$(nproc)
  machine=$(</proc/sys/kernel/random/boot_id)
  path=$(awk -F: '$2 ~ /(^|,)cpu(,|$)/ {print "/cpu" $3}' /proc/self/cgroup) # version 1
  if [[ $path ]]; then
    quota=$(cat "/sys/fs/cgroup$path/cpu.cfs_quota_us") period=$(cat "/sys/fs/cgroup$path/cpu.cfs_period_us")
  else
    read -r quota period <"/sys/fs/cgroup$(awk -F: '$1 == 0 {print $3}' /proc/self/cgroup)/cpu.max"
  fi 2>/dev/null
  if [[ $quota =~ ^[1-9][0-9]*$ ]] && ((quota < cores * period)); then
    cores=$(awk -v quota="$quota" -v period="$period" 'BEGIN {print quota / period}') machine+=-$(hostname)
  fi
  before=$(awk "$busy" /proc/stat)
  sleep 1
  after=$(awk "$busy" /proc/stat)
  echo "host $(hostname) $machine $cores $(awk -v ticks=$((after - before)) -v hz="$(getconf CLK_TCK)" 'BEGIN {print ticks / hz}')"
}

# For `lockstep scaling run`, which exports LOCKSTEP_CASE: records what is running on the nodes before the ranks start.
# There is a line "host NAME MACHINE CORES BUSY" per node and a line "job ID" for each other job on these nodes. MACHINE
# identifies containers that share the cores of one machine, and BUSY is the number of cores that were busy for a
# second.
record_nodes() {
  if [[ -z ${LOCKSTEP_CASE:-} ]]; then return; fi
  {
    timeout 60 srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task=1 \
      --mpi=none bash -c "$(declare -f describe_node); describe_node"
    squeue --noheader --states=RUNNING --nodelist="$SLURM_JOB_NODELIST" --format=%A | grep -vx "$SLURM_JOB_ID" | sed 's/^/job /'
  } >"$LOCKSTEP_CASE/hosts.txt.partial" 2>/dev/null
  mv "$LOCKSTEP_CASE/hosts.txt.partial" "$LOCKSTEP_CASE/hosts.txt"
}

# srun does not inherit sbatch's --cpus-per-task, and with --export=NONE the ranks would not get the environment.
# scancel sends TERM to every process of the job. mpirun and its daemons would react by killing their ranks one second
# later, so TERM is blocked for them. The ranks start with a clean signal mask, receive TERM themselves, and have the
# time of Slurm's KillWait to save.
set_for_launcher() {
  export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-$((SLURM_CPUS_ON_NODE > per_node ? SLURM_CPUS_ON_NODE / per_node : 1))}
  export SLURM_EXPORT_ENV=ALL
  block_term=()
  if [[ $LOCKSTEP_LAUNCHER == mpirun ]] && env --block-signal=TERM true 2>/dev/null; then # coreutils 8.31
    block_term=(env --block-signal=TERM)
    export OMPI_MCA_orte_launch_agent=${OMPI_MCA_orte_launch_agent:-env --block-signal=TERM orted}
  fi
}

# Both srun and scripts/launch pass USR2 on to all ranks and wait for them.
forward() {
  if [[ -n $publisher && -z $pid ]]; then return; fi # publish() ends
  report "$(date '+%F %T') received SIG$received: the ranks save and stop"
  if [[ -n $pid ]]; then kill -USR2 "$pid" 2>/dev/null; fi
}

require_slurm() { # COMMAND WORD...
  if [[ -n ${SLURM_JOB_ID:-} ]]; then return; fi
  local nodes per_node
  nodes=$(nodes_of "$0")
  per_node=$(ranks_on_node "$0")
  find_program
  problem "$0 is a batch script and was started outside a Slurm job (SLURM_JOB_ID is not set)" \
    "submit it with: sbatch $0; or, on a machine without Slurm, run:
    $LOCKSTEP_HOME/scripts/launch mpirun --bind-to none -n $((nodes * ${per_node:-1})) $(shell_words "${lockstep:-lockstep}" "$@")"
  exit 2
}

# Reports problems before anything is started, so that they do not waste the allocation.
prepare() { # COMMAND WORD...
  local device='' nodes=()
  find_program
  check_launcher
  check_overrides "$1"
  check_data_variable "${@:2}"
  check_line_breaks "${@:2}"
  if ((n_problems == 0)); then resolve "${@:2}"; fi
  if [[ $1 == train ]]; then check_publishing; fi
  check_gpus "$device" "${SLURM_GPUS_ON_NODE:-0}" "$per_node"
  if ((SLURM_JOB_NUM_NODES > 1)); then nodes=(--nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --cpus-per-task=1); fi
  if [[ $1 != train ]]; then
    run='' # it is that of the configuration, which only a training uses
  elif ((n_problems == 0)); then
    check_nodes "$run" "${nodes[@]}"
  fi
  if ((n_problems > 0)); then
    report "nothing was started (problems: $n_problems); jobs/check.sh finds them before a job is submitted"
    exit 2
  fi
}

# Prints the first error of this start, with its code. Later ones are consequences. Prints nothing if the output of the job
# is not a file.
first_error() {
  if [[ ! -f /dev/stderr ]]; then return; fi
  tail -c "+$((log_begin + 1))" /dev/stderr | LC_ALL=C awk '
    !error && /^lockstep: (error:|rank [0-9])/ {error = substr($0, 11)}
    error && /^  \[[a-z0-9_]+\]$/ {print error " " $1; exit}'
}

# RUN/status records how the run ended; the exit status of mpirun is not reliable.
finish() { # COMMAND STATUS-OF-THE-LAUNCHER
  local status=$2 outcome='' error
  error=$(first_error)
  if [[ $1 != train ]]; then end_other "$1"; fi
  # While this start was refused, the job that uses the run directory may have changed the status.
  if [[ $(status_file) != "$before" && $error != *'[run_locked]' ]]; then outcome=$(<"$run/status"); fi
  report_memory
  report "$(date '+%F %T') the launcher exited with $status; $run/status: ${outcome:-not written}"
  if [[ -n $received ]]; then
    if [[ -z $outcome && -z $error ]]; then outcome=stopped; fi # the program had not started yet
  elif [[ $outcome == stopped && -n $error ]]; then
    outcome=failed # the ranks were stopped by their launcher, because one of them had failed
  fi
  # All ranks were killed, or a rank was lost because of its node or the network. The training itself is not at fault.
  if [[ $outcome == running || ($outcome == failed && $error =~ \[(comm_rank_lost|comm_rank_died|comm_mpi)\]$) ]]; then outcome=lost; fi
  case $outcome in
    done) publish; exit 0 ;;
    stopped) after_stop; status=75 ;;
    lost)
      if [[ -n $received ]]; then requeue_if "${LOCKSTEP_REQUEUE:-0}"; else after_loss; fi ;;
    *) end_failed ;;
  esac
  if [[ $received == TERM ]] && scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | grep -q ' Requeue=1'; then
    report "if the job was preempted, Slurm may requeue it (squeue shows it); otherwise submit the same script again to $(what_follows)"
  else
    report "submit the same script again to $(what_follows)"
  fi
  exit "$((status > 0 ? status : 1))"
}
# Prints a line like "[gpu_memory_log - GPU 0] Peak = 26532 MiB, Avg = 22458.63 MiB, Mode = 26532 MiB" for each GPU and rank.
report_memory() {
  local logs=("$run"/usage/*.csv)
  if [[ -n $outcome && -e ${logs[0]} ]]; then "$lockstep" report memory "${logs[@]}"; fi
}
end_failed() { # the error is repeated, since the launcher writes more after it
  if [[ -n $error ]]; then report "$error"; fi
  exit "$((status == 0 || (status == 75 && ${#received} == 0) ? 1 : status))"
}
end_other() { # COMMAND: one that is not a training
  report "$(date '+%F %T') the launcher exited with $status"
  if ((status == 0)); then exit 0; fi
  if [[ -n $error || ($status != 75 && -z $received) ]]; then end_failed; fi
  report "$1 was stopped before it was complete: submit the same script again, with more time (sbatch --time) if that was the reason"
  exit 75
}
what_follows() {
  local newest
  newest=$(newest_checkpoint)
  echo "${newest:+resume from $run/checkpoints/}${newest:-start}"
}

# If the time of the job is too short for its first step, it would be for the next start too. A preemption says nothing about
# that.
after_stop() {
  if has_saved || [[ $received == TERM ]]; then
    requeue_if "${LOCKSTEP_REQUEUE:-0}"
  elif [[ ${LOCKSTEP_REQUEUE:-0} == 1 && $received != INT ]]; then
    report "no step was trained before the signal, so the job is not requeued: allow more time with sbatch --time"
  fi
}
# Called when the ranks were lost without a signal to the job. If all nodes answer, the job is requeued only if this start
# has written a checkpoint: otherwise the next start would probably fail in the same way, for example for lack of memory. If
# a node does not answer, Slurm requeues the job itself once it has noticed (SlurmdTimeout). The job waits for that, because
# Slurm 22.05 loses the job's GPUs if the job requeues itself first.
after_loss() {
  local limit
  if timeout 30 srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task=1 \
    --mpi=none true >/dev/null 2>&1; then
    if has_saved; then requeue_if 1; fi
    return
  fi
  limit=$(scontrol show config | sed -n 's/^SlurmdTimeout *= *\([0-9]*\).*/\1/p')
  report "$(date '+%F %T') a node does not answer: waiting for Slurm to requeue the job${limit:+ (SlurmdTimeout is $limit s)}"
  limit=$((SECONDS + ${limit:-300} + 60))
  while ((SECONDS < limit)) && [[ $(job_state) == RUNNING ]]; do sleep 2; done
  requeue_if 1
}

requeue_if() { # 1: yes
  if [[ $1 != 1 || $received == INT ]]; then return; fi
  if [[ $(job_state) != RUNNING ]]; then # COMPLETING: scancel, preemption without a grace time, or a node that is down
    report "Slurm itself ends or requeues this job"
    exit 75
  fi
  report "requeueing the job, to $(what_follows)"
  if scontrol requeue "$SLURM_JOB_ID"; then exit 0; fi
  report "the job could not be requeued (see above)"
}
