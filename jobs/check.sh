#!/usr/bin/env bash
# Checks a site file and jobs before anything is submitted, and prints each problem with its remedy.
#
#   jobs/check.sh [--allocate] [SITE.sh] [JOB.sh]...     key=value overrides are read from OVERRIDES, as by sbatch
#
# SITE.sh is a file of modules/site (default: $LOCKSTEP_SITE), and JOB.sh is a script with #SBATCH lines (default:
# resnet18_2gpu.sh). --allocate also allocates the nodes of the job for some seconds, to check that they see the run
# directory and have the same build. Exit status: 0 if there is no problem, 1 if there is one, 2 for wrong usage.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # if it was called as `sh check.sh`
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=jobs/lib/checks.sh
source "$here/lib/checks.sh"

allocate='' site=${LOCKSTEP_SITE:-} scripts=()
for argument in "$@"; do
  case $argument in
    --allocate) allocate=yes ;;
    -h | --help) sed -n '2,/^set -/p' "$0" | sed -n 's/^# \{0,1\}//p'; exit 0 ;;
    -*) echo "jobs/check.sh: there is no option $argument; see --help" >&2; exit 2 ;;
    *)
      if grep -qs '^#SBATCH' "$argument"; then
        scripts+=("$argument")
      elif [[ $(realpath -m "$argument") == "$here"/* ]]; then # do not run a job script as a site file
        echo "jobs/check.sh: $argument is not a job script: it does not exist or has no #SBATCH line" >&2
        exit 2
      elif [[ $argument == *.sh && ! -e $argument && ! -e ${here%/*}/modules/site/$argument ]]; then
        echo "jobs/check.sh: there is no file $argument" >&2
        exit 2
      else
        site=$argument
      fi
      ;;
  esac
done
((${#scripts[@]})) || scripts=("$here/resnet18_2gpu.sh")

# part NAME COMMAND...: prints one line unless the command finds a problem
part() {
  local n=$n_problems
  "${@:2}"
  ((n_problems > n)) || echo "ok       $(printable "$1")"
}
note() { echo "note     $*"; }
warn() { printf 'warning: %s\n  remedy: %s\n' "$1" "$2"; } # SENTENCE REMEDY: for what may be intended

check_site() {
  local before after
  if [[ -z $site ]]; then
    problem "no site file is given (LOCKSTEP_SITE is not set)" \
      "source one of ${here%/*}/modules/site/*.sh, or your copy of example.sh, in this shell"
    return
  fi
  before=$(export -p | grep -E ' (SBATCH|LOCKSTEP)_')
  use_site "$site"
  after=$(export -p | grep -E ' (SBATCH|LOCKSTEP)_')
  [[ $before == "$after" ]] || to_source=${LOCKSTEP_SITE:-$site}
}
to_source=

# Slurm runs a copy of the job script in its spool folder. The copy finds the other files through LOCKSTEP_HOME, or in the
# folder in which sbatch was called.
check_home() {
  [[ -e ${LOCKSTEP_HOME:-.}/jobs/lib/job.sh ]] || problem "${LOCKSTEP_HOME:-LOCKSTEP_HOME is not set, and $PWD} has no jobs/lib/job.sh" \
    "export LOCKSTEP_HOME=${here%/*} in the site file or in this shell"
  export LOCKSTEP_HOME=${LOCKSTEP_HOME:-${here%/*}}
}

check_slurm() { # is there a Slurm that answers?
  command -v sbatch >/dev/null ||
    problem "there is no sbatch on PATH on $(hostname)" "log in to a node of a Slurm cluster; without Slurm, use make train, or mpirun by hand"
  timeout 30 sinfo -h >/dev/null 2>&1 || problem "Slurm does not answer: $(timeout 30 sinfo -h 2>&1 | head -1)" "try scontrol ping, and ask the staff of the cluster"
}

check_partition() { # SCRIPT
  partition=${SBATCH_PARTITION:-$(directive partition "$1")}
  local all
  all=$(sinfo -h -o %R | sort -u | xargs)
  if [[ -n $partition ]]; then
    [[ " $all " == *" $partition "* ]] || problem "there is no partition $partition here" \
      "set SBATCH_PARTITION in the site file, or use sbatch --partition; the partitions are: $all"
  elif ! sinfo -h -o %P | grep -q '\*$'; then
    problem "no partition is given, and this Slurm has no default partition" "set SBATCH_PARTITION in the site file; the partitions are: $all"
  fi
}

# Compares the GPUs that the script requests with those of the partition's nodes, and then asks Slurm itself.
check_resources() { # SCRIPT
  local gpus per_node answer largest
  gpus=$(gpus_on_node "$1")
  largest=$(sinfo -h ${partition:+-p "$partition"} -o %G | grep -oE 'gpu:([A-Za-z][^:,(]*:)?[0-9]+' | sed 's/.*://' | sort -n | tail -1)
  ((${gpus:-0} <= ${largest:-0})) ||
    problem "$1 requests $gpus GPUs per node, but the nodes of ${partition:-the default partition} have ${largest:-0}" \
    "use another script of jobs/, another partition, or sbatch --gpus-per-node=${largest:-0} --ntasks-per-node=${largest:-1} --nodes=N"
  per_node=$(ranks_on_node "$1")
  check_gpus "$device" "${gpus:-0}" "${per_node:-1}"
  if ((n_problems > problems_before)); then return; fi
  [[ -n ${SBATCH_MEM_PER_GPU:-}${SBATCH_MEM_PER_NODE:-}${SBATCH_MEM_PER_CPU:-}$(directive 'mem[a-z-]*' "$1") ]] ||
    note "$1 requests no memory, so that it gets what Slurm gives such jobs: SBATCH_MEM_PER_GPU in the site file requests some"
  answer=$(sbatch --test-only "$1" 2>&1) && return
  answer=$(grep -v 'to start at' <<<"$answer" | tail -1 | sed -E 's/^(sbatch: error|allocation failure): //')
  case $answer in
    *[Aa]ccount*) problem "Slurm refuses the account '${SBATCH_ACCOUNT:-$(directive account "$1")}': $answer" \
      "set SBATCH_ACCOUNT in the site file; \`sacctmgr show associations user=$(id -un)\` lists your accounts" ;;
    *'line breaks'*) problem "$1 has DOS line ends (CR LF), which sbatch refuses" "convert it with: dos2unix $1, or: sed -i 's/\\r\$//' $1" ;;
    *) problem "Slurm refuses $1: $answer" "\`sinfo -o '%P %D %c %m %G %l'\` lists the nodes, cores, memory, GPUs and hours of each partition" ;;
  esac
}

# Prints the seconds of a time limit as sbatch reads it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; nothing for UNLIMITED.
seconds_of() { # TIME
  local days=0 a b c
  [[ $1 =~ ^[0-9]+(-[0-9]+)?(:[0-9]+)*$ ]] || return
  if [[ $1 == *-* ]]; then
    days=${1%%-*}
    IFS=: read -r a b c <<<"${1#*-}"
  else
    IFS=: read -r a b c <<<"$1"
    if [[ -z $c ]]; then c=$b b=$a a=0; fi
  fi
  echo $(((10#$days * 24 + 10#${a:-0}) * 3600 + 10#${b:-0} * 60 + 10#${c:-0}))
}

# Slurm may send the signal of --signal a minute early, and a start takes some time before its first step.
check_time() { # SCRIPT
  local limit signal before=60 left
  limit=${SBATCH_TIMELIMIT:-$(directive time "$1")}
  signal=${SBATCH_SIGNAL:-$(directive signal "$1")}
  if [[ $signal == *@* ]]; then before=${signal##*@}; fi
  left=$(seconds_of "$limit")
  if [[ -z $left || -z $signal ]]; then return; fi
  left=$((left - before - 60))
  ((left >= 120)) || warn "$1 has the time limit $limit, but is asked to stop $before s before that, and Slurm may do so a minute earlier: \
$((left > 0 ? left : 0)) s may be left" \
    "allow more time with sbatch --time or SBATCH_TIMELIMIT, or lower the number in --signal=$signal"
}

# Asks the script's own `launch` for the command that it would start: $command, $started (its words), $run and $device.
check_launch() { # SCRIPT
  run='' device='' started=()
  mapfile -d '' -t started < <(LOCKSTEP_CHECK=1 bash "$1")
  if ((${#started[@]} < 2)); then
    problem "$1 does not start anything" "end the job script with a line such as: launch train \"\$configs/NAME.yaml\""
    return
  fi
  command=${started[0]} started=("${started[@]:1}")
  if [[ -n $lockstep ]] && ! "$lockstep" "$command" --help >/dev/null 2>&1; then
    problem "$1 launches \`lockstep $command\`, which does not exist" "\`lockstep --help\` lists the commands"
    return
  fi
  check_overrides "$command"
  check_data_variable "${started[@]}"
  check_line_breaks "${started[@]}"
  check_checkpoint "${started[@]}"
  if ((n_problems == problems_before)) && [[ -n $lockstep ]]; then resolve "${started[@]}"; fi
}
check_checkpoint() { # WORD...
  local word before=''
  for word in "$@"; do
    [[ $before != --checkpoint || -e $word ]] || problem "the checkpoint $word does not exist" "set CHECKPOINT to one that does, such as RUN/checkpoints/best"
    before=$word
  done
}

# Lets the program's parser read the configuration, and opens the data.
check_configuration() { # SCRIPT
  local words nodes per_node ranks answer validation plan
  nodes=$(nodes_of "$1")
  per_node=$(ranks_on_node "$1")
  ranks=$((nodes * ${per_node:-1}))
  only_configuration "${started[@]}"
  plan=("${words[@]}")
  if [[ $device == cuda ]] && "$lockstep" plan "${plan[@]}" --ranks "$ranks" 2>&1 | grep -q 'this build has no CUDA'; then
    problem "$lockstep is built without CUDA, but the job uses GPUs (device=cuda)" \
      "build it where nvcc is on PATH, name another program in LOCKSTEP, or use OVERRIDES=device=cpu"
  fi
  # A login node without GPUs plans for the processor, which has neither fp16 nor tf32.
  case $(value_of precision "${plan[@]}") in fp16 | tf32) plan+=(precision=fp32) ;; esac
  # The memory of this machine says nothing about the memory of the job's GPUs. Other commands do not read the training set.
  [[ $command != train ]] || answer=$("$lockstep" plan "${plan[@]}" device=cpu --ranks "$ranks" --nodes "$nodes" 2>&1) ||
    { [[ $device != cpu ]] && grep -q '\[out_of_memory\]' <<<"$answer"; } || problem "$(refusal <<<"$answer")" "$(remedy <<<"$answer")"
  validation=$(value_of data.validation "${words[@]}")
  if [[ -z $validation || $validation == synthetic ]]; then return; fi
  if [[ ! -r $validation ]]; then
    problem "the validation set $validation cannot be read" \
      "docs/data.md explains how to make it; relative paths start at the folder in which sbatch is called"
  else
    answer=$("$lockstep" data info "$validation" 2>&1) || problem "data.validation: $(refusal <<<"$answer")" "$(remedy <<<"$answer")"
  fi
}
check_run_directory() {
  local kind
  check_nodes "$run"
  kind=$(stat -f -c %T "$(dirname "$run")" 2>/dev/null || stat -f -c %T .)
  case $kind in
    tmpfs | overlayfs | ext2/ext3 | btrfs) [[ -n $allocate ]] ||
      note "$run is on a local file system ($kind); use --allocate to check that the nodes see it" ;;
  esac
}

check_allocation() { # SCRIPT: allocates its nodes for some seconds
  local nodes gpus
  nodes=$(nodes_of "$1")
  gpus=$(gpus_on_node "$1")
  check_nodes "$run" --immediate=60 --time=5 --nodes="$nodes" --ntasks="$nodes" --job-name=lockstep-check \
    ${partition:+--partition="$partition"} ${SBATCH_ACCOUNT:+--account="$SBATCH_ACCOUNT"} ${SBATCH_QOS:+--qos="$SBATCH_QOS"} \
    ${gpus:+--gpus-per-node="$gpus"}
}

part "site file ${site:-}" check_site
part "LOCKSTEP_HOME" check_home
part "modules ${LOCKSTEP_MODULES:-(none)}" use_modules
export SLURM_ARRAY_TASK_ID=${SLURM_ARRAY_TASK_ID:-0} SLURM_ARRAY_JOB_ID=${SLURM_ARRAY_JOB_ID:-0} # the configuration may use them
lockstep='' version='' partition='' run='' device='' command='' started=()
part "program" find_program
[[ -z $version ]] || note "$lockstep: $version"
problems_before=$n_problems
part "Slurm" check_slurm
if ((n_problems == problems_before)); then
  part "launcher ${LOCKSTEP_LAUNCHER:-srun}" check_launcher
  for script in "${scripts[@]}"; do
    problems_before=$n_problems
    part "$script: launch line and overrides" check_launch "$script"
    problems_of_launch=$((n_problems - problems_before)) problems_before=$n_problems
    part "$script: partition" check_partition "$script"
    if ((n_problems == problems_before)); then part "$script: nodes, GPUs and time" check_resources "$script"; fi
    check_time "$script"
    if [[ -n $run ]] && ((problems_of_launch == 0)); then part "$script: configuration and data" check_configuration "$script"; fi
    problems_before=$n_problems
    if [[ $command != train ]]; then run=''; fi # it is that of the configuration, which only a training uses
    [[ -z $run ]] || part "$script: run directory $run" check_run_directory
    if [[ -n $allocate && -n $lockstep && -n $run ]] && ((n_problems == 0)); then
      part "$script: its nodes see the run directory and have the same build" check_allocation "$script"
    fi
  done
fi
if [[ -n $to_source ]]; then note "the settings of this shell differ from the site file: source ${to_source@Q} before sbatch"; fi
if ((n_problems > 0)); then echo "problems: $n_problems"; exit 1; fi
echo "no problems found; submit the job with: sbatch ${scripts[0]}"
