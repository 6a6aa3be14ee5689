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
check "  with --allocate too" refused 0 'its nodes see the run directory' check_of --allocate cpu.sh
check "a job without it" refused 1 'starts 2 ranks per node, but has only 0 GPUs' check_of plain.sh
OVERRIDES=device=cpu check "  with OVERRIDES=device=cpu" refused 0 'no problems found' check_of plain.sh
printf '%s\n' 'device: cpu' 'run: {directory: file-runs}' >"$work/jobs/cpu.yaml"
script file "launch train \$configs/quickstart.yaml $work/jobs/cpu.yaml data.train=synthetic data.validation=synthetic"
check "  with device: cpu in its configuration" refused 0 'run directory file-runs/quickstart' check_of file.sh
begin_job "$work/jobs/plain.sh" plain
ends "the job itself follows the same rule: it is refused without device=cpu" 2 'nothing was started'
check "  with the same words" in_log 'starts 2 ranks per node, but has only 0 GPUs'

# OVERRIDES with options.
OVERRIDES='device=cpu --fresh --allow-change optimizer.learning_rate' check "--fresh and --allow-change in OVERRIDES" \
  refused 0 'no problems found' check_of plain.sh
OVERRIDES='device=cpu optimizer.learning_rate' check "  but no other word" refused 1 "has the word 'optimizer.learning_rate'" check_of plain.sh
script evaluate "launch evaluate $configuration device=cpu --checkpoint x.h5"
OVERRIDES='--fresh' check "  and --fresh is for trainings" refused 1 'lockstep evaluate. has no such option' check_of evaluate.sh

# Time limits.
warns() { refused 0 "^warning: .*time limit" check_of "$@"; }
not() { ! "$@"; }
for limit in 2 00:02:30 4:59; do SBATCH_TIMELIMIT=$limit check "--time=$limit with USR2@120 leaves no time" warns cpu.sh; done
for limit in 10 1:0:0 1-0 0-0:5:0 UNLIMITED; do SBATCH_TIMELIMIT=$limit check "--time=$limit does" not warns cpu.sh; done
SBATCH_TIMELIMIT=10 SBATCH_SIGNAL=B:USR2@500 check "--time=10 with USR2@500 does not" warns cpu.sh
SBATCH_TIMELIMIT=2 check "it is a warning: the exit status is 0" refused 0 'no problems found' check_of cpu.sh
finish
