#!/usr/bin/env bash
# timeout: 400
# cores: 0
# jobs/check.sh on a cluster without GPUs, with Slurm's commands replaced (slurm.sh): it applies the same rules as the job, and
# warns of a time limit that leaves no time. test/cluster/tests/6_wrong_inputs.sh tests it with Slurm.
source test/support/check.sh
source test/jobs/slurm.sh
site=$PWD/modules/site/generic-mpirun.sh
check_of() { (cd "$work/jobs" && LOCKSTEP_HOME=$repository "$repository/jobs/check.sh" "$site" "$@"); }
repository=$PWD
configuration="\$configs/quickstart.yaml data.train=synthetic data.validation=synthetic"

# A job with device=cpu needs no GPUs, wherever that is set.
script cpu "launch train $configuration device=cpu"
script plain "launch train $configuration"
check "a job with device=cpu on nodes without GPUs" refused 0 'no problems found' check_of cpu.sh
asks_for_memory() { [[ $(check_of cpu.sh) == *'note     cpu.sh requests no memory'* ]]; }
needs_none() { ! asks_for_memory; }
check "  is told that it requests no memory" asks_for_memory
SBATCH_MEM_PER_GPU=8G check "  unless a variable of the site does" needs_none
check "  with --allocate too" refused 0 'its nodes see the run directory' check_of --allocate cpu.sh
check "a job without it" refused 1 'needs a GPU for each of its ranks: it has 0 per node, for 2' check_of plain.sh
OVERRIDES=device=cpu check "  with OVERRIDES=device=cpu" refused 0 'no problems found' check_of plain.sh
printf '%s\n' 'device: cpu' 'run: {directory: file-runs}' >"$work/jobs/cpu.yaml"
script file "launch train \$configs/quickstart.yaml $work/jobs/cpu.yaml data.train=synthetic data.validation=synthetic"
check "  with device: cpu in its configuration" refused 0 'run directory file-runs/quickstart' check_of file.sh
begin_job "$work/jobs/plain.sh" plain
ends "the job itself follows the same rule: it is refused without device=cpu" 2 'nothing was started'
check "  with the same words" in_log 'needs a GPU for each of its ranks: it has 0 per node, for 2'

# OVERRIDES with options.
OVERRIDES='device=cpu --fresh --allow-change optimizer.learning_rate' check "--fresh and --allow-change in OVERRIDES" \
  refused 0 'no problems found' check_of plain.sh
OVERRIDES='device=cpu optimizer.learning_rate' check "  but no other word" refused 1 "has the word 'optimizer.learning_rate'" check_of plain.sh
OVERRIDES='device=cpu --allow-change' check "  --allow-change without a key" refused 1 'OVERRIDES ends with --allow-change' check_of plain.sh
OVERRIDES='device=cpu none.yaml' check "  a missing file" refused 1 'none.yaml, which does not exist' check_of plain.sh
: >"$work/x.h5"
script evaluate "launch evaluate $configuration device=cpu --checkpoint $work/x.h5"
OVERRIDES='--fresh' check "  and --fresh is for trainings" refused 1 'lockstep evaluate. has no such option' check_of evaluate.sh

# Other commands than train.
script other "launch evaluate $configuration data.train=$work/none.h5 device=cpu --checkpoint $work/x.h5"
check "an evaluation needs no training set" refused 0 'no problems found' check_of other.sh
script other "launch evaluate $configuration device=cpu --checkpoint $work/none.h5"
check "  but a checkpoint" refused 1 'checkpoint .*none.h5 does not exist' check_of other.sh
script other "launch trian $configuration device=cpu"
check "a command that does not exist" refused 1 'lockstep trian., which does not exist' check_of other.sh
check "a script that does not exist" refused 2 'there is no file none.sh' check_of none.sh
script other "launch train $configuration device=cpu 'run.name=case-\${SLURM_ARRAY_TASK_ID}'"
check "the number of an array's task" refused 0 'run directory runs/case-0' check_of other.sh
check "a case of a scaling study has no ranks of its own" refused 1 'it has 0 per node, for 1' check_of "$repository/jobs/scaling.sh"
LOCKSTEP_RUNS=$work/new/runs check "no folder is left" refused 0 'no problems found' check_of cpu.sh
check "  behind" test ! -e "$work/new"

# Time limits.
warns() { refused 0 "^warning: .*time limit" check_of "$@"; }
not() { ! "$@"; }
for limit in 2 00:02:30 4:59; do SBATCH_TIMELIMIT=$limit check "--time=$limit with USR2@120 leaves no time" warns cpu.sh; done
for limit in 10 1:0:0 1-0 0-0:5:0 UNLIMITED; do SBATCH_TIMELIMIT=$limit check "--time=$limit does" not warns cpu.sh; done
SBATCH_TIMELIMIT=10 SBATCH_SIGNAL=B:USR2@500 check "--time=10 with USR2@500 does not" warns cpu.sh
SBATCH_TIMELIMIT=2 check "it is a warning: the exit status is 0" refused 0 'no problems found' check_of cpu.sh
finish
