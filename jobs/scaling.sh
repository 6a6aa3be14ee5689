#!/bin/bash
#SBATCH --job-name=scaling
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120
# One case of a scaling study. `lockstep scaling run` submits it, with the nodes and ranks of the case, and exports LOCKSTEP_CASE
# (the directory of the case) and OVERRIDES. SBATCH_TIMELIMIT sets another time limit.

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
configuration=${LOCKSTEP_CASE:+$LOCKSTEP_CASE/config.yaml}
launch train "${configuration:-$configs/quickstart.yaml}" run.name="$job_name"
