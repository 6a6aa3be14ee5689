#!/bin/bash
#SBATCH --job-name=gpt-small-1gpu
#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=8 --time=00:30:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# Trains a small language model on Shakespeare, on 1 GPU: a test of a cluster that takes minutes. Submit it in the
# repository, whose samples it uses.

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch train "$configs/gpt_small_shakespeare.yaml" run.name="$job_name"
