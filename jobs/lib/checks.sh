# Checks of the site file, the job and its nodes, made before GPU time is spent. job.sh sources this file inside a job;
# ../check.sh sources it before a job is submitted. Each problem is printed as one sentence with its remedy, and n_problems
# counts them.

home_of_checks=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
n_problems=0
problem() { # SENTENCE REMEDY
  n_problems=$((n_problems + 1))
  printf 'problem: %s\n  remedy: %s\n' "$(printable "$1")" "$2"
}
printable() { echo "${1//[[:cntrl:]]/?}"; } # a name with a line break must not look like two lines

# Prints the value of an option in the #SBATCH lines of a script. The option may have its long or its short name there; the
# last occurrence wins, as it does for sbatch.
directive() { # NAME SCRIPT
  local short=''
  case $1 in nodes) short=N ;; job-name) short=J ;; partition) short=p ;; account) short=A ;; time) short=t ;; esac
  tr -d '\r' <"$2" | sed -n 's/^#SBATCH//p' | grep -oE -- " (--$1[= ]|${short:+-$short ?|}NONE)[^ ]+" | tail -1 |
    sed -E "s/^ (--$1[= ]|-${short:-NONE} ?)//"
}

# Prints the number of nodes; for a range, its upper end (1-8 gives 8).
nodes_of() { # SCRIPT
  local nodes
  nodes=$(directive nodes "$1")
  nodes=${nodes##*-}
  if [[ $nodes =~ ^[0-9]+$ ]]; then echo "$nodes"; else echo 1; fi
}

gpus_on_node() { # SCRIPT: prints N of --gpus-per-node=[TYPE:]N or --gres=gpu:[TYPE:]N, or nothing
  local gpus
  gpus=$(directive gpus-per-node "$1")
  if [[ -z $gpus ]]; then gpus=$(directive gres "$1" | grep -oE 'gpu(:[^,]+)?' | head -1); fi
  gpus=${gpus##*:}
  echo "${gpus/gpu/1}"
}

# One rank per task if the script sets --ntasks-per-node, otherwise one rank per GPU.
ranks_on_node() { # SCRIPT
  local tasks
  tasks=$(directive ntasks-per-node "$1")
  echo "${tasks:-$(gpus_on_node "$1")}"
}

# Sets $words to the configuration files and key=value words of a launch line, without options and their values.
only_configuration() { # WORD...
  local word is_value=''
  words=()
  for word in "$@"; do
    case $word in
      --fresh | --*=*) ;;
      -*) is_value=yes; continue ;;
      *=* | *.yaml | *.yml) words+=("$word") ;;
      *) [[ -n $is_value ]] || words+=("$word") ;;
    esac
    is_value=''
  done
}

# Prints the value that a key has for the program.
value_of() { # KEY WORD-OF-THE-CONFIGURATION...
  "$lockstep" train --print-config="$1" "${@:2}" </dev/null
}
refusal() { sed -nE 's/^lockstep: (error: )?//p' | head -1; }
remedy() { sed -n 's/^ *remedy: //p' | head -1; }

# Sets $device and $run, the run directory, as the program will see them.
resolve() { # WORD...
  local words answer
  only_configuration "$@"
  if answer=$(value_of device "${words[@]}" 2>&1); then
    device=$answer
    run=$(value_of run.directory "${words[@]}")/$(value_of run.name "${words[@]}")
  else
    problem "$(refusal <<<"$answer")" "$(remedy <<<"$answer")"
  fi
}

# ---- The site file ----------------------------------------------------------------------------------------------------
known_to_lockstep=(LOCKSTEP LOCKSTEP_HOME LOCKSTEP_SITE LOCKSTEP_MODULES LOCKSTEP_LAUNCHER LOCKSTEP_MPIRUN LOCKSTEP_DATA
  LOCKSTEP_RUNS LOCKSTEP_CACHE LOCKSTEP_REQUEUE)
known_to_sbatch=(ACCOUNT ARRAY_INX BATCH CLUSTERS CLUSTER_CONSTRAINT COMMENT CONSTRAINT CONTAINER CORE_SPEC CPUS_PER_GPU
  DEBUG DELAY_BOOT DISTRIBUTION EXCLUSIVE EXPORT GET_USER_ENV GPUS GPUS_PER_NODE GPUS_PER_TASK GPU_BIND GPU_FREQ GRES
  GRES_FLAGS HINT IGNORE_PBS JOB_NAME MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE NETWORK NO_KILL NO_REQUEUE OPEN_MODE
  OVERCOMMIT PARTITION POWER PROFILE QOS REQ_SWITCH REQUEUE RESERVATION SIGNAL SPREAD_JOB THREAD_SPEC TIMELIMIT USE_MIN_NODES
  WAIT WAIT_ALL_NODES WAIT4SWITCH WCKEY)

# Sources the site file into this shell.
use_site() { # FILE or NAME
  local file=$1 name output
  if [[ $file != */* && ! -f $file ]]; then file=$home_of_checks/modules/site/${file%.sh}.sh; fi # a name, which the modulefile accepts too
  if [[ $file != */* ]]; then file=./$file; fi # `source` would search PATH otherwise
  if [[ ! -r $file ]]; then
    problem "the site file $file cannot be read" \
      "source one of $home_of_checks/modules/site/*.sh, or your copy of example.sh, in this shell; it sets LOCKSTEP_SITE"
    return
  fi
  if ! output=$(bash -uc 'source "$1"' bash "$file" 2>&1); then
    problem "the site file $file fails: ${output##*$'\n'}" "correct that line: set the variable that it uses, or give a default value"
    return
  fi
  for name in $(sed -nE 's/^ *(export +)?([A-Za-z_][A-Za-z0-9_]*)=.*/\2/p' "$file" | sort -u); do
    case $name in
      LOCKSTEP*) [[ " ${known_to_lockstep[*]} " == *" $name "* ]] || problem "$file sets $name, which nothing reads" \
        "correct the name; these names are known: ${known_to_lockstep[*]}" ;;
      SBATCH_*) [[ " ${known_to_sbatch[*]} " == *" ${name#SBATCH_} "* ]] || problem "$file sets $name, which sbatch does not read" \
        "correct the name; \`man sbatch\` lists the names under INPUT ENVIRONMENT VARIABLES" ;;
    esac
  done
  # shellcheck disable=SC1090
  source "$file"
}

# ---- Modules, program, launcher ---------------------------------------------------------------------------------------
define_module() { # defines the command `module`, which a script lacks if its shell has not read the start-up files
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
      "set MODULESHOME in the site file, source the start-up file of the module system there, or make LOCKSTEP_MODULES empty"
    return
  fi
  for name in $LOCKSTEP_MODULES; do
    if ! module is-avail "$name" >/dev/null 2>&1; then
      problem "the module $name is missing on $(hostname)" \
        "\`module avail ${name%%/*}\` lists the modules; correct LOCKSTEP_MODULES in the site file, or add the module's folder there with \`module use\`"
    elif ! module load "$name" >/dev/null 2>&1; then
      problem "the module $name cannot be loaded: $(module load "$name" 2>&1 | grep . | head -1)" \
        "try \`module load $name\` by hand, and correct LOCKSTEP_MODULES in the site file"
    fi
  done
}

# Sets $lockstep to the program and $version to the first line of its --version.
find_program() {
  local output
  version=
  lockstep=${LOCKSTEP:-$LOCKSTEP_HOME/build/lockstep}
  if [[ -z ${LOCKSTEP:-} && ! -e $lockstep ]]; then lockstep=$(command -v lockstep) || lockstep=; fi
  if [[ -z $lockstep || ! -x $lockstep ]]; then
    problem "the program is missing: expected ${LOCKSTEP:-$LOCKSTEP_HOME/build/lockstep, or lockstep on PATH}" \
      "run \`make\` in the repository, or \`module load lockstep\`, or set LOCKSTEP=/path/of/lockstep"
  elif ! output=$("$lockstep" --version 2>&1); then
    problem "$lockstep does not start on $(hostname): ${output%%$'\n'*}" \
      "load the modules that it was built with (LOCKSTEP_MODULES in the site file); \`ldd $lockstep\` names missing libraries"
    lockstep=
  else
    version=${output%%$'\n'*}
  fi
}

check_launcher() {
  case ${LOCKSTEP_LAUNCHER:=srun} in
    srun)
      local types=${SLURM_MPI_TYPE:=pmix}
      export SLURM_MPI_TYPE
      srun --mpi=list 2>&1 | tr -s '[:space:],()' '\n' | grep -qx "$types" ||
        problem "this Slurm cannot start MPI by $types: \`srun --mpi=list\` prints $(srun --mpi=list 2>&1 | tail -n +2 | xargs)" \
          "set LOCKSTEP_LAUNCHER=mpirun in the site file, or set SLURM_MPI_TYPE to a type that your MPI supports"
      ;;
    mpirun)
      mpirun=${LOCKSTEP_MPIRUN:-mpirun --bind-to none}
      command -v "${mpirun%% *}" >/dev/null || problem "LOCKSTEP_LAUNCHER=mpirun, but ${mpirun%% *} is not on PATH on $(hostname)" \
        "add the module of the MPI to LOCKSTEP_MODULES, or give the full path in LOCKSTEP_MPIRUN"
      [[ -x $LOCKSTEP_HOME/scripts/launch ]] || problem "$LOCKSTEP_HOME/scripts/launch is missing; without it mpirun kills its ranks before they have saved" \
        "set LOCKSTEP_HOME to a complete copy of the repository, or to PREFIX/share/lockstep of an installation"
      ;;
    *) problem "LOCKSTEP_LAUNCHER=$LOCKSTEP_LAUNCHER is not a launcher" "set LOCKSTEP_LAUNCHER to srun or mpirun in the site file" ;;
  esac
}

# ---- The arguments of the job --------------------------------------------------------------------------------------------
# `sbatch --export=ALL,OVERRIDES="data.augment=[crop,flip]"` is split at the comma.
# A word that is not key=value is the name of a YAML file, so a value that contains a blank is misread as two words.
check_overrides() { # COMMAND
  local open close word words before=''
  open=$(tr -dc '[' <<<"${OVERRIDES:-}")
  close=$(tr -dc ']' <<<"${OVERRIDES:-}")
  [[ ${#open} == "${#close}" ]] || problem "OVERRIDES ends inside a list: $OVERRIDES" \
    "sbatch --export splits at commas: run export OVERRIDES='...' in the shell, then sbatch --export=ALL"
  read -rd '' -a words <<<"${OVERRIDES:-}"
  for word in "${words[@]}"; do
    if [[ $before == --allow-change || $word == --fresh || $word == --allow-change ]]; then
      [[ $1 == train ]] || problem "OVERRIDES has $word, but \`lockstep $1\` has no such option" "leave it out"
    elif [[ $word == *.y*ml && $word != *=* ]]; then
      [[ -f $word ]] || problem "OVERRIDES names $word, which does not exist" "correct the path; relative paths start at $PWD"
    else
      [[ $word == *=* || -f $word ]] || problem "OVERRIDES has the word '$word', which is neither key=value nor a YAML file" \
        "write key=value without blanks; put a value with blanks into a YAML file and name the file in OVERRIDES, or write \${NAME} of an exported variable"
    fi
    before=$word
  done
  [[ $before != --allow-change ]] || problem "OVERRIDES ends with --allow-change" "name the key behind it, as in --allow-change optimizer.learning_rate"
}

# YAML turns a line break in a value into a blank, so the run would be written elsewhere.
check_line_breaks() { # WORD...
  local word
  for word in "$@"; do
    [[ $word != *=*$'\n'* ]] || problem "a setting contains a line break: $word" \
      "leave it out of the name of the job, of LOCKSTEP_RUNS and of the launch line"
  done
}

check_data_variable() { # WORD...
  local file
  if [[ -n ${LOCKSTEP_DATA:-} ]]; then return; fi
  for file in "$@"; do
    [[ $file == *=* || ! -f $file ]] || ! grep -q '\${LOCKSTEP_DATA}' "$file" || problem "$file names data below \${LOCKSTEP_DATA}, which is not set" \
      "export LOCKSTEP_DATA=FOLDER in the site file or the shell; docs/data.md describes its content"
  done
}

# The rule for jobs and for check.sh: with device=cuda, each rank has a GPU of its own. Other jobs need none.
check_gpus() { # DEVICE GPUS-PER-NODE RANKS-PER-NODE
  [[ $1 != cuda ]] || (($2 >= $3)) || problem "the job needs a GPU for each of its ranks: it has $2 per node, for $3" \
    "use --gpus-per-node=$3, or fewer ranks per node (--ntasks-per-node) and more nodes, or OVERRIDES=device=cpu to train without GPUs"
}

# ---- The nodes of the job ----------------------------------------------------------------------------------------------
# Prints one line per node: its name, whether it sees the token in the run directory, and the version of its program.
look_on_node='if [[ -e $1 ]]; then seen=yes; else seen=no; fi
printf "node %s %s %s\n" "$(hostname)" "$seen" "$("$2" --version 2>&1 | head -1)"'

# Removes the folders from RUN up to FIRST that are still empty.
leave_no_folder() { # RUN FIRST
  local folder=$1
  while rmdir "$folder" 2>/dev/null && [[ $folder != "$2" ]]; do folder=${folder%/*}; done
}

# Checks that RUN can be written here. With SRUN-OPTIONs, also checks that the other nodes see it and have the same build.
check_nodes() { # RUN [SRUN-OPTION...]
  local run=$1 first=$1 token output node seen text other
  while [[ $first == */* && ! -e ${first%/*} && -n ${first%/*} ]]; do first=${first%/*}; done # the topmost folder that is made here
  if ! mkdir -p "$run" 2>/dev/null || ! token=$(mktemp "$run/.seen.XXXXXX" 2>/dev/null); then
    problem "the run directory $run cannot be created or written on $(hostname)" \
      "set LOCKSTEP_RUNS=FOLDER in the site file, or OVERRIDES=run.directory=FOLDER; the folder must be on a file system that all nodes share"
    return
  fi
  token=$(realpath "$token")
  if (($# == 1)); then # only this node
    rm -f "$token"
    leave_no_folder "$run" "$first"
    return
  fi
  output=$(timeout 120 srun "${@:2}" --ntasks-per-node=1 --mpi=none bash -c "$look_on_node" bash "$token" "$lockstep" 2>&1)
  rm -f "$token"
  leave_no_folder "$run" "$first"
  if ! grep -q '^node ' <<<"$output"; then
    problem "no command could be started on the nodes: $(head -1 <<<"$output")" "try \`srun ${*:2} hostname\` by hand; sinfo lists nodes that are down"
    return
  fi
  while read -r _ node seen text; do
    [[ $seen == yes ]] || problem "$node does not see the run directory $(realpath -m "$run")" \
      "set LOCKSTEP_RUNS=FOLDER in the site file, or OVERRIDES=run.directory=FOLDER; the folder must be on a file system that all nodes share"
    if [[ -n $version && $text != "$version" ]]; then
      other=${text:-nothing}
      problem "$lockstep differs: $version on $(hostname), $other on $node" \
        "install the same build on all nodes, or in a folder that they share"
    fi
  done < <(grep '^node ' <<<"$output" | sort -V)
}
