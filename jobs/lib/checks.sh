# What a site, a job and its nodes must have, asked before GPU-minutes are spent. Sourced by job.sh, inside a job, and by
# ../check.sh, before anything is queued. Each finding is a sentence with its remedy; n_problems counts them.

home_of_checks=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
n_problems=0
problem() { # SENTENCE REMEDY
  n_problems=$((n_problems + 1))
  printf 'problem: %s\n  remedy: %s\n' "$1" "$2"
}

# Value of an option in a script's #SBATCH lines, by its long or its short name; the last, as for sbatch.
directive() { # NAME SCRIPT
  local short=''
  case $1 in nodes) short=N ;; job-name) short=J ;; partition) short=p ;; account) short=A ;; esac
  tr -d '\r' <"$2" | sed -n 's/^#SBATCH//p' | grep -oE -- " (--$1[= ]|${short:+-$short ?|}NONE)[^ ]+" | tail -1 |
    sed -E "s/^ (--$1[= ]|-${short:-NONE} ?)//"
}

# The upper end of a range: 8 of 1-8.
nodes_of() { # SCRIPT
  local nodes
  nodes=$(directive nodes "$1")
  nodes=${nodes##*-}
  if [[ $nodes =~ ^[0-9]+$ ]]; then echo "$nodes"; else echo 1; fi
}

gpus_on_node() { # SCRIPT: N of --gpus-per-node=[TYPE:]N or --gres=gpu:[TYPE:]N, or nothing
  local gpus
  gpus=$(directive gpus-per-node "$1")
  if [[ -z $gpus ]]; then gpus=$(directive gres "$1" | grep -oE 'gpu(:[^,]+)?' | head -1); fi
  gpus=${gpus##*:}
  echo "${gpus/gpu/1}"
}

# One a task where the script says how many, else one a GPU.
ranks_on_node() { # SCRIPT
  local tasks
  tasks=$(directive ntasks-per-node "$1")
  echo "${tasks:-$(gpus_on_node "$1")}"
}

# The last KEY=VALUE of the arguments, with ${NAME} filled in as the program does.
setting() { # KEY DEFAULT ARGUMENT...
  local key=$1 value=$2 word
  for word in "${@:3}"; do [[ $word != "$key="* ]] || value=${word#*=}; done
  while [[ $value =~ \$\{([A-Za-z_][A-Za-z0-9_]*)\} ]]; do
    value=${value/"${BASH_REMATCH[0]}"/${!BASH_REMATCH[1]-}}
  done
  echo "$value"
}

# ---- The site file ----------------------------------------------------------------------------------------------------
known_to_lockstep=(LOCKSTEP LOCKSTEP_HOME LOCKSTEP_SITE LOCKSTEP_MODULES LOCKSTEP_LAUNCHER LOCKSTEP_MPIRUN LOCKSTEP_DATA
  LOCKSTEP_RUNS LOCKSTEP_CACHE LOCKSTEP_REQUEUE)
known_to_sbatch=(ACCOUNT ARRAY_INX BATCH CLUSTERS CLUSTER_CONSTRAINT COMMENT CONSTRAINT CONTAINER CORE_SPEC CPUS_PER_GPU
  DEBUG DELAY_BOOT DISTRIBUTION EXCLUSIVE EXPORT GET_USER_ENV GPUS GPUS_PER_NODE GPUS_PER_TASK GPU_BIND GPU_FREQ GRES
  GRES_FLAGS HINT IGNORE_PBS JOB_NAME MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE NETWORK NO_KILL NO_REQUEUE OPEN_MODE
  OVERCOMMIT PARTITION POWER PROFILE QOS REQ_SWITCH REQUEUE RESERVATION SIGNAL SPREAD_JOB THREAD_SPEC TIMELIMIT USE_MIN_NODES
  WAIT WAIT_ALL_NODES WAIT4SWITCH WCKEY)

# Sources the site file, so that what it exports holds from here on.
use_site() { # FILE or NAME
  local file=$1 name said
  if [[ $file != */* && ! -f $file ]]; then file=$home_of_checks/modules/site/${file%.sh}.sh; fi # a name, as the modulefile takes it
  if [[ $file != */* ]]; then file=./$file; fi # `source` would look on PATH
  if [[ ! -r $file ]]; then
    problem "the site file $file cannot be read" \
      "source one of $home_of_checks/modules/site/*.sh in this shell, or a copy of example.sh; it sets LOCKSTEP_SITE"
    return
  fi
  if ! said=$(bash -uc 'source "$1"' bash "$file" 2>&1); then
    problem "the site file $file fails: ${said##*$'\n'}" "correct that line: set the variable that it uses, or give a default"
    return
  fi
  for name in $(sed -nE 's/^ *(export +)?([A-Za-z_][A-Za-z0-9_]*)=.*/\2/p' "$file" | sort -u); do
    case $name in
      LOCKSTEP*) [[ " ${known_to_lockstep[*]} " == *" $name "* ]] || problem "$file sets $name, which nothing reads" \
        "correct the name; known are ${known_to_lockstep[*]}" ;;
      SBATCH_*) [[ " ${known_to_sbatch[*]} " == *" ${name#SBATCH_} "* ]] || problem "$file sets $name, which sbatch does not read" \
        "correct the name; \`man sbatch\` lists them under INPUT ENVIRONMENT VARIABLES" ;;
    esac
  done
  # shellcheck disable=SC1090
  source "$file"
}

# ---- Modules, program, launcher ---------------------------------------------------------------------------------------
define_module() { # the command `module`, which a script does not have unless its shell's start-up files were read
  local init
  if declare -F module >/dev/null; then return 0; fi
  for init in "${MODULESHOME:-/nowhere}/init/bash" /etc/profile.d/{lmod,modules,z00_lmod,00-modulepath}.sh; do
    # shellcheck disable=SC1090
    if [[ -r $init ]]; then source "$init" >/dev/null 2>&1; fi
    if declare -F module >/dev/null; then return 0; fi
  done
  return 1
}

use_modules() {
  local name
  if [[ -z ${LOCKSTEP_MODULES:-} ]]; then return; fi
  if ! define_module; then
    problem "LOCKSTEP_MODULES names modules ($LOCKSTEP_MODULES), but there is no command \`module\` on $(hostname)" \
      "set MODULESHOME in the site file, source the module system's start-up file there, or empty LOCKSTEP_MODULES"
    return
  fi
  for name in $LOCKSTEP_MODULES; do
    if ! module is-avail "$name" >/dev/null 2>&1; then
      problem "the module $name is missing on $(hostname)" \
        "\`module avail ${name%%/*}\` lists what there is; correct LOCKSTEP_MODULES in the site file, or \`module use\` its folder there"
    elif ! module load "$name" >/dev/null 2>&1; then
      problem "the module $name cannot be loaded: $(module load "$name" 2>&1 | grep . | head -1)" \
        "\`module load $name\` by hand; correct LOCKSTEP_MODULES in the site file"
    fi
  done
}

# Leaves the program in $lockstep and its first line of --version in $version.
find_program() {
  local said
  version=
  lockstep=${LOCKSTEP:-$LOCKSTEP_HOME/build/lockstep}
  if [[ -z ${LOCKSTEP:-} && ! -e $lockstep ]]; then lockstep=$(command -v lockstep) || lockstep=; fi
  if [[ -z $lockstep || ! -x $lockstep ]]; then
    problem "the program is missing: wanted ${LOCKSTEP:-$LOCKSTEP_HOME/build/lockstep, or lockstep on PATH}" \
      "\`make\` in the repository, \`module load lockstep\`, or LOCKSTEP=/path/of/lockstep"
  elif ! said=$("$lockstep" --version 2>&1); then
    problem "$lockstep does not start on $(hostname): ${said%%$'\n'*}" \
      "load what it was built with (LOCKSTEP_MODULES in the site file); \`ldd $lockstep\` names a library that is missing"
    lockstep=
  else
    version=${said%%$'\n'*}
  fi
}

check_launcher() {
  case ${LOCKSTEP_LAUNCHER:=srun} in
    srun)
      local types=${SLURM_MPI_TYPE:=pmix}
      export SLURM_MPI_TYPE
      srun --mpi=list 2>&1 | tr -s '[:space:],()' '\n' | grep -qx "$types" ||
        problem "this Slurm cannot start MPI by $types: \`srun --mpi=list\` says $(srun --mpi=list 2>&1 | tail -n +2 | xargs)" \
          "LOCKSTEP_LAUNCHER=mpirun in the site file, or SLURM_MPI_TYPE= one of those that your MPI was built for"
      ;;
    mpirun)
      mpirun=${LOCKSTEP_MPIRUN:-mpirun --bind-to none}
      command -v "${mpirun%% *}" >/dev/null || problem "LOCKSTEP_LAUNCHER=mpirun, but ${mpirun%% *} is not on PATH on $(hostname)" \
        "name the MPI's module in LOCKSTEP_MODULES, or the whole path in LOCKSTEP_MPIRUN"
      [[ -x $LOCKSTEP_HOME/scripts/launch ]] || problem "$LOCKSTEP_HOME/scripts/launch is missing, which stops mpirun in good order" \
        "set LOCKSTEP_HOME to a whole copy of the repository, or to PREFIX/share/lockstep of an installation"
      ;;
    *) problem "LOCKSTEP_LAUNCHER=$LOCKSTEP_LAUNCHER is no launcher" "LOCKSTEP_LAUNCHER=srun or LOCKSTEP_LAUNCHER=mpirun in the site file" ;;
  esac
}

# ---- What the job is given --------------------------------------------------------------------------------------------
# `sbatch --export=ALL,OVERRIDES="data.augment=[crop,flip]"` splits at the comma.
# Other words than key=value are files: what is behind a blank in a value would be taken for one.
check_overrides() {
  local open close word words
  open=$(tr -dc '[' <<<"${OVERRIDES:-}")
  close=$(tr -dc ']' <<<"${OVERRIDES:-}")
  [[ ${#open} == "${#close}" ]] || problem "OVERRIDES ends inside a list: $OVERRIDES" \
    "sbatch --export splits at commas: export OVERRIDES='...' in the shell, then sbatch --export=ALL"
  read -rd '' -a words <<<"${OVERRIDES:-}"
  for word in "${words[@]}"; do
    [[ $word == *=* || -f $word ]] || problem "OVERRIDES has the word '$word', which is neither key=value nor a YAML file" \
      "write key=value without blanks; a value with blanks goes into a YAML file that OVERRIDES names, or is \${NAME} of an exported variable"
  done
}

check_data_variable() { # CONFIGURATION
  if [[ -n ${LOCKSTEP_DATA:-} ]] || ! grep -q '\${LOCKSTEP_DATA}' "$1"; then return; fi
  problem "$1 names its data below \${LOCKSTEP_DATA}, which is not set" \
    "export LOCKSTEP_DATA=FOLDER, in the site file or the shell; data/README.md says what it holds"
}

check_gpus() { # GPUS-A-NODE RANKS-A-NODE
  (($1 >= $2)) || problem "$2 ranks a node are wanted, but there are $1 GPUs on one" \
    "--gpus-per-node=$2, or --ntasks-per-node=$1 with as many nodes more, or OVERRIDES=device=cpu to train without"
}

# ---- What each node sees ----------------------------------------------------------------------------------------------
# One line a node: its name, whether it sees the token in the run directory, and its program's version.
look_on_node='if [[ -e $1 ]]; then seen=yes; else seen=no; fi
printf "node %s %s %s\n" "$(hostname)" "$seen" "$("$2" --version 2>&1 | head -1)"'

check_nodes() { # RUN [SRUN-OPTION...]: RUN can be written; other nodes, with options, see it and have the same build
  local run=$1 token said node seen text other
  if ! mkdir -p "$run" 2>/dev/null || ! token=$(mktemp "$run/.seen.XXXXXX" 2>/dev/null); then
    problem "the run directory $run cannot be made or written on $(hostname)" \
      "LOCKSTEP_RUNS=FOLDER in the site file, or OVERRIDES=run.directory=FOLDER: one on the file system that all nodes share"
    return
  fi
  token=$(realpath "$token")
  if (($# == 1)); then # this node alone
    rm -f "$token"
    rmdir "$run" 2>/dev/null # where it is still empty
    return
  fi
  said=$(timeout 120 srun "${@:2}" --ntasks-per-node=1 --mpi=none bash -c "$look_on_node" bash "$token" "$lockstep" 2>&1)
  rm -f "$token"
  rmdir "$run" 2>/dev/null # where it is still empty
  if ! grep -q '^node ' <<<"$said"; then
    problem "no command could be started on the nodes: $(head -1 <<<"$said")" "\`srun ${*:2} hostname\` by hand; sinfo names nodes that are down"
    return
  fi
  while read -r _ node seen text; do
    [[ $seen == yes ]] || problem "$node does not see the run directory $(realpath -m "$run")" \
      "LOCKSTEP_RUNS=FOLDER in the site file, or OVERRIDES=run.directory=FOLDER: one on the file system that all nodes share"
    if [[ -n $version && $text != "$version" ]]; then
      other=${text:-nothing}
      problem "$lockstep differs: $version on $(hostname), $other on $node" \
        "install the same build on all nodes, or in a folder that they share"
    fi
  done < <(grep '^node ' <<<"$said" | sort -V)
}
