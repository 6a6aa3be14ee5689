#!/bin/bash
#SBATCH --job-name=scaling
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120
# One case of a scaling study. `lockstep scaling run` submits it, with the nodes and ranks of the case, and exports LOCKSTEP_CASE
# (the directory of the case) and OVERRIDES. SBATCH_TIMELIMIT sets another time limit.

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
source "$home/jobs/lib/job.sh" || { echo "no jobs/lib in $home: export LOCKSTEP_HOME as the folder that contains jobs/, and use bash, not sh" >&2; exit 2; }
configuration=${LOCKSTEP_CASE:+$LOCKSTEP_CASE/config.yaml}
launch train "${configuration:-$configs/quickstart.yaml}"
