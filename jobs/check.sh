#!/usr/bin/env bash
# Says what is wrong with a site and a job before anything is queued, each with its remedy.
#
#   jobs/check.sh [--allocate] [SITE.sh] [JOB.sh]...     [key=value overrides in OVERRIDES, as for sbatch]
#
# SITE.sh is a file of modules/site (default: $LOCKSTEP_SITE), JOB.sh a script with #SBATCH lines (default:
# resnet18_2gpu.sh). --allocate also asks Slurm for the job's nodes for a moment: whether they see the run directory, and
# have the same build. Exit status: 0 all is well, 1 something is wrong, 2 wrong usage.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # called as `sh check.sh`
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
      elif [[ $(realpath -m "$argument") == "$here"/* ]]; then # running it as a site file would be no good
        echo "jobs/check.sh: $argument is no job script: it is not there, or has no #SBATCH line" >&2
        exit 2
      else
        site=$argument
      fi
      ;;
  esac
done
((${#scripts[@]})) || scripts=("$here/resnet18_2gpu.sh")

# part NAME COMMAND...: one line, unless the command finds a problem
part() {
  local n=$n_problems
  "${@:2}"
  ((n_problems > n)) || echo "ok       $1"
}
note() { echo "note     $*"; }

check_site() {
  local before after
  if [[ -z $site ]]; then
    problem "no site file is given (LOCKSTEP_SITE is not set)" \
      "source one of ${here%/*}/modules/site/*.sh in this shell, or a copy of example.sh"
    return
  fi
  before=$(export -p | grep -E ' (SBATCH|LOCKSTEP)_')
  use_site "$site"
  after=$(export -p | grep -E ' (SBATCH|LOCKSTEP)_')
  [[ $before == "$after" ]] || to_source=${LOCKSTEP_SITE:-$site}
}
to_source=

# A job's script is a copy in Slurm's spool: it finds the rest by LOCKSTEP_HOME, or in the folder that sbatch is called in.
check_home() {
  [[ -e ${LOCKSTEP_HOME:-.}/jobs/lib/job.sh ]] || problem "${LOCKSTEP_HOME:-LOCKSTEP_HOME is not set, and $PWD} has no jobs/lib/job.sh" \
    "export LOCKSTEP_HOME=${here%/*}, in the site file or this shell"
  export LOCKSTEP_HOME=${LOCKSTEP_HOME:-${here%/*}}
}

check_slurm() { # whether there is one to ask
  command -v sbatch >/dev/null ||
    problem "there is no sbatch on PATH on $(hostname)" "log in to a node of a Slurm cluster; without Slurm: make train, or mpirun by hand"
  timeout 30 sinfo -h >/dev/null 2>&1 || problem "Slurm does not answer: $(timeout 30 sinfo -h 2>&1 | head -1)" "scontrol ping; ask the centre"
}

check_partition() { # SCRIPT
  partition=${SBATCH_PARTITION:-$(directive partition "$1")}
  local all
  all=$(sinfo -h -o %R | sort -u | xargs)
  if [[ -n $partition ]]; then
    [[ " $all " == *" $partition "* ]] || problem "there is no partition $partition here" \
      "SBATCH_PARTITION in the site file, or sbatch --partition: one of $all"
  elif ! sinfo -h -o %P | grep -q '\*$'; then
    problem "no partition is given, and this Slurm has none by default" "SBATCH_PARTITION in the site file: one of $all"
  fi
}

# What the script asks for a node and what the partition's nodes have; then Slurm itself is asked.
check_resources() { # SCRIPT
  local gpus said largest
  gpus=$(gpus_on_node "$1")
  largest=$(sinfo -h ${partition:+-p "$partition"} -o %G | grep -oE 'gpu:([A-Za-z][^:,(]*:)?[0-9]+' | sed 's/.*://' | sort -n | tail -1)
  ((${gpus:-0} <= ${largest:-0})) ||
    problem "$1 wants $gpus GPUs on a node, the nodes of ${partition:-the default partition} have ${largest:-0}" \
    "another script of jobs/, another partition, or sbatch --gpus-per-node=${largest:-0} --ntasks-per-node=${largest:-1} --nodes=N"
  check_gpus "${gpus:-0}" "$(ranks_on_node "$1")"
  if ((n_problems > problems_before)); then return; fi
  said=$(sbatch --test-only "$1" 2>&1) && return
  said=$(grep -v 'to start at' <<<"$said" | tail -1 | sed -E 's/^(sbatch: error|allocation failure): //')
  case $said in
    *[Aa]ccount*) problem "Slurm refuses the account '${SBATCH_ACCOUNT:-$(directive account "$1")}': $said" \
      "SBATCH_ACCOUNT in the site file; \`sacctmgr show associations user=$(id -un)\` lists yours" ;;
    *'line breaks'*) problem "$1 has DOS line ends (CR LF), which sbatch refuses" "dos2unix $1, or: sed -i 's/\\r\$//' $1" ;;
    *) problem "Slurm refuses $1: $said" "\`sinfo -o '%P %D %c %m %G %l'\` says how many nodes, cores, memory, GPUs and hours there are" ;;
  esac
}

# What the script would start, as its own `launch` tells it, read by the program's own parser on this machine.
check_configuration() { # SCRIPT
  local words=() word nodes per_node ranks said validation device
  check_overrides
  mapfile -d '' -t words < <(LOCKSTEP_CHECK=1 bash "$1")
  if ((${#words[@]} < 2)); then
    problem "$1 does not say what it would start" "a job script ends with a line such as: launch train \"\$configs/NAME.yaml\""
    return
  fi
  run=$(setting run.directory runs "${words[@]}")/$(setting run.name - "${words[@]}")
  check_data_variable "${words[1]}"
  if ((n_problems > problems_before)) || [[ -z $lockstep ]]; then return; fi
  nodes=$(nodes_of "$1")
  per_node=$(ranks_on_node "$1")
  ranks=$((nodes * ${per_node:-1}))
  device=$(setting device cuda "${words[@]}")
  # `plan` takes the configuration alone.
  local plan=("${words[1]}")
  for word in "${words[@]:2}"; do if [[ $word == *=* || $word == *.y?(a)ml ]] && [[ $word != -* ]]; then plan+=("$word"); fi; done
  if [[ $device == cuda ]] && "$lockstep" plan "${plan[@]}" --ranks "$ranks" 2>&1 | grep -q 'this build has no CUDA'; then
    problem "$lockstep is built without CUDA, and the job wants GPUs (device=cuda)" \
      "build it where nvcc is on PATH, name another in LOCKSTEP, or OVERRIDES=device=cpu"
  fi
  # On a login node without GPUs the processor plans; it has no fp16 and no tf32.
  case $(setting precision - "${plan[@]}") in fp16 | tf32) plan+=(precision=fp32) ;; esac
  # Whether a step fits this machine's memory says nothing of the job's GPUs.
  said=$("$lockstep" plan "${plan[@]}" device=cpu --ranks "$ranks" --nodes "$nodes" 2>&1) ||
    { [[ $device != cpu ]] && grep -q '\[out_of_memory\]' <<<"$said"; } || problem "$(refusal <<<"$said")" "$(remedy <<<"$said")"
  validation=$(setting data.validation "$(sed -nE 's/.*\bvalidation: *((\$\{\w+\})?[^,} ]*).*/\1/p' "${words[1]}" | tail -1)" "${words[@]}")
  validation=$(setting x "$validation")
  if [[ -z $validation || $validation == synthetic ]]; then return; fi
  if [[ ! -r $validation ]]; then
    problem "the validation set $validation cannot be read" \
      "data/README.md says how it is made; relative paths begin at the folder that sbatch is called in"
  else
    said=$("$lockstep" data info "$validation" 2>&1) || problem "data.validation: $(refusal <<<"$said")" "$(remedy <<<"$said")"
  fi
}
refusal() { sed -n 's/^lockstep: error: //p' | head -1; }
remedy() { sed -n 's/^ *remedy: //p' | head -1; }

check_run_directory() {
  local kind
  check_nodes "$run"
  kind=$(stat -f -c %T "$(dirname "$run")" 2>/dev/null || stat -f -c %T .)
  case $kind in
    tmpfs | overlayfs | ext2/ext3 | btrfs) [[ -n $allocate ]] ||
      note "$run lies on a local file system ($kind); whether nodes see it, --allocate tries" ;;
  esac
}

check_allocation() { # SCRIPT: its nodes, for some seconds
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
lockstep='' version='' partition='' run=''
part "program" find_program
[[ -z $version ]] || note "$lockstep: $version"
problems_before=$n_problems
part "Slurm" check_slurm
if ((n_problems == problems_before)); then
  part "launcher ${LOCKSTEP_LAUNCHER:-srun}" check_launcher
  for script in "${scripts[@]}"; do
    problems_before=$n_problems
    part "$script: partition" check_partition "$script"
    if ((n_problems == problems_before)); then part "$script: nodes, GPUs and time" check_resources "$script"; fi
    problems_before=$n_problems
    part "$script: configuration, overrides and data" check_configuration "$script"
    problems_before=$n_problems
    [[ -z $run ]] || part "$script: run directory $run" check_run_directory
    if [[ -n $allocate && -n $lockstep && -n $run ]] && ((n_problems == 0)); then
      part "$script: its nodes see the run directory and have the same build" check_allocation "$script"
    fi
  done
fi
if [[ -n $to_source ]]; then note "this shell has other settings than the site file: source $to_source before sbatch"; fi
if ((n_problems > 0)); then echo "problems: $n_problems"; exit 1; fi
echo "all is well: sbatch ${scripts[0]}"
