# What all job scripts share: environment, checks, launch, signals, and what follows from how the run ended.
#
#   source "$home/jobs/lib/job.sh"; launch train "$configs/NAME.yaml" [KEY=VALUE]...
#
# `launch` starts one rank a task on what Slurm gave, on 3 nodes as on 8, and ends the script. The run is named like the
# job and lies in ${LOCKSTEP_RUNS:-runs}; OVERRIDES come last, so they win. Signals to the batch shell: USR2 (--signal, time
# is nearly up) and TERM (scancel, preemption) save and stop; with LOCKSTEP_REQUEUE=1 the job then queues itself again. INT
# saves and stops for good. A job that lost a node is queued again in any case. ../README.md has the variables.

jobs=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export LOCKSTEP_HOME=${jobs%/*}
configs=$jobs/configs
# shellcheck source=jobs/lib/checks.sh
source "$jobs/lib/checks.sh"

say() { echo "== $*"; }

job_state() { scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p'; }
# Changes whenever the program writes RUN/status, so that a start that wrote none is not judged by the one before.
status_file() { stat -c '%i %.9Y' "$run/status" 2>/dev/null; }
newest_checkpoint() { readlink "$run/checkpoints/latest" 2>/dev/null; }

launch() { # COMMAND CONFIGURATION [ARGUMENT]...
  local command=$1 words=("${@:2}") overrides ranks per_node block_term asked='' pid='' before before_checkpoint status
  trap 'asked=USR2; forward' USR2
  trap 'asked=TERM; forward' TERM
  trap 'asked=INT; forward' INT
  if [[ -z ${LOCKSTEP_CHECK:-} && -n ${SLURM_JOB_ID:-} ]]; then # first, since what follows names their variables
    if [[ -n ${LOCKSTEP_SITE:-} ]]; then use_site "$LOCKSTEP_SITE"; fi
    use_modules
  fi
  read -rd '' -a overrides <<<"${OVERRIDES:-}"
  words+=(run.name="${SLURM_JOB_NAME:-$(directive job-name "$0")}" run.directory="${LOCKSTEP_RUNS:-runs}" device=cuda
    "${overrides[@]}")
  run=$(setting run.directory runs "${words[@]}")/$(setting run.name - "${words[@]}")
  if [[ -n ${LOCKSTEP_CHECK:-} ]]; then # jobs/check.sh asks what would be started
    printf '%s\0' "$command" "${words[@]}"
    exit 0
  fi
  require_slurm "$command" "${words[@]}"

  per_node=${SLURM_GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}} # may be TYPE:N
  per_node=${SLURM_NTASKS_PER_NODE:-${per_node##*:}}
  ranks=$((SLURM_JOB_NUM_NODES * per_node))
  say "$(date '+%F %T') job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)):" \
    "$ranks ranks on $SLURM_JOB_NUM_NODES nodes, $SLURM_JOB_NODELIST; $run"
  prepare "$command" "${words[@]}"
  set_for_launcher

  local line=(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$ranks" --ntasks-per-node="$per_node")
  if [[ $LOCKSTEP_LAUNCHER == mpirun ]]; then
    # shellcheck disable=SC2206
    line=("$LOCKSTEP_HOME/scripts/launch" "${block_term[@]}" $mpirun -n "$ranks" --map-by "ppr:$per_node:node")
  fi
  line+=("$lockstep" "$command" "${words[@]}")
  say "${line[@]}"
  before=$(status_file)
  before_checkpoint=$(newest_checkpoint)
  if [[ -z $asked ]]; then
    "${line[@]}" &
    pid=$!
    if [[ -n $asked ]]; then forward; fi # it came between the two
    while kill -0 $pid 2>/dev/null; do wait $pid; done # `wait` returns at each signal that is trapped
    wait $pid
    status=$?
  else
    status=75
  fi
  finish "$command" "$status"
}

# sbatch's --cpus-per-task is not a step's by itself, and --export=NONE would keep the environment from the ranks.
# scancel sends TERM to every process of the job, so to mpirun and its daemons too, which kill their ranks a second later.
# They get it blocked: ranks are started with a clean mask, get it themselves, and have Slurm's KillWait to save.
set_for_launcher() {
  export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-$((SLURM_CPUS_ON_NODE > per_node ? SLURM_CPUS_ON_NODE / per_node : 1))}
  export SLURM_EXPORT_ENV=ALL
  block_term=()
  if [[ $LOCKSTEP_LAUNCHER == mpirun ]] && env --block-signal=TERM true 2>/dev/null; then # coreutils 8.31
    block_term=(env --block-signal=TERM)
    export OMPI_MCA_orte_launch_agent=${OMPI_MCA_orte_launch_agent:-env --block-signal=TERM orted}
  fi
}

# Both srun and scripts/launch pass USR2 on to all ranks, and wait for them.
forward() {
  say "$(date '+%F %T') signal $asked: the ranks are told to save and stop"
  if [[ -n $pid ]]; then kill -USR2 "$pid" 2>/dev/null; fi
}

require_slurm() { # COMMAND WORD...
  if [[ -n ${SLURM_JOB_ID:-} ]]; then return; fi
  local nodes per_node
  nodes=$(nodes_of "$0")
  per_node=$(ranks_on_node "$0")
  find_program
  problem "$0 is a batch script, and this is no job of Slurm (SLURM_JOB_ID is not set)" \
    "sbatch $0; or, on a machine without Slurm:
    $LOCKSTEP_HOME/scripts/launch mpirun --bind-to none -n $((nodes * ${per_node:-1})) ${lockstep:-lockstep} $*"
  exit 2
}

# What would waste the allocation is said before anything is started on it.
prepare() { # COMMAND WORD...
  find_program
  check_launcher
  check_overrides
  check_data_variable "$2"
  if [[ $(setting device cuda "$@") != cpu ]]; then check_gpus "${SLURM_GPUS_ON_NODE:-0}" "$per_node"; fi
  local nodes=()
  if ((SLURM_JOB_NUM_NODES > 1)); then nodes=(--nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --cpus-per-task=1); fi
  if ((n_problems == 0)); then check_nodes "$run" "${nodes[@]}"; fi
  if ((n_problems > 0)); then
    say "nothing was started (problems: $n_problems); jobs/check.sh tells them before a job is queued"
    exit 2
  fi
}

# RUN/status says how the run ended: mpirun's exit status does not always.
finish() { # COMMAND STATUS-OF-THE-LAUNCHER
  local status=$2 outcome=''
  if [[ $1 != train ]]; then exit "$status"; fi
  if [[ $(status_file) != "$before" ]]; then outcome=$(<"$run/status"); fi
  say "$(date '+%F %T') the launcher ended with $status; $run/status: ${outcome:-not written}"
  if [[ -z $outcome && -n $asked ]]; then outcome=stopped; fi # before the program had begun
  # All ranks were killed, or a rank was lost with its node or the network: nothing is wrong with the training.
  if [[ $outcome == running ]] || { [[ $outcome == failed ]] &&
    tail -1 "$run/log.txt" 2>/dev/null | grep -qE '\[(comm_rank_lost|comm_rank_died|comm_mpi)\]'; }; then outcome=lost; fi
  case $outcome in
    done) exit 0 ;;
    stopped) queue_again_if "${LOCKSTEP_REQUEUE:-0}"; status=75 ;;
    lost)
      if [[ -n $asked ]]; then queue_again_if "${LOCKSTEP_REQUEUE:-0}"; else after_loss; fi ;;
    *) exit "$((status > 0 ? status : 1))" ;;
  esac
  say "the same script goes on from $(continues_from): sbatch it again"
  exit "$((status > 0 ? status : 1))"
}
continues_from() {
  local newest
  newest=$(newest_checkpoint)
  echo "${newest:+$run/checkpoints/}${newest:-the beginning}"
}

# A start that was lost though nobody asked is queued again where it had got on: what is lost again and again for want of
# memory is not mended by that. With a node that no longer answers Slurm does so, when it has seen it (SlurmdTimeout): Slurm
# 22.05 loses the job's GPUs where the job itself is faster.
after_loss() {
  local limit
  if timeout 30 srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task=1 \
    --mpi=none true >/dev/null 2>&1; then
    if [[ $(newest_checkpoint) != "$before_checkpoint" ]]; then queue_again_if 1; fi
    return
  fi
  limit=$(scontrol show config | sed -n 's/^SlurmdTimeout *= *\([0-9]*\).*/\1/p')
  say "$(date '+%F %T') a node does not answer: waiting until Slurm queues the job again (SlurmdTimeout is ${limit:=300} s)"
  limit=$((SECONDS + limit + 60))
  while ((SECONDS < limit)) && [[ $(job_state) == RUNNING ]]; do sleep 2; done
  queue_again_if 1
}

queue_again_if() { # 1: yes
  if [[ $1 != 1 || $asked == INT ]]; then return; fi
  if [[ $(job_state) != RUNNING ]]; then # COMPLETING: scancel; or preemption without a grace time, a node that is down
    say "Slurm itself ends this job or queues it again"
    exit 75
  fi
  say "to be queued again; goes on from $(continues_from)"
  if scontrol requeue "$SLURM_JOB_ID"; then exit 0; fi
  say "the job cannot be queued again (see above)"
}
