#!/bin/bash
#SBATCH --job-name=gpt-small-1gpu
#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=8 --time=00:30:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# Trains a small language model on Shakespeare, on 1 GPU: a test of a cluster that takes minutes. Submit it in the
# repository, whose samples it uses.

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
source "$home/jobs/lib/job.sh" || { echo "no jobs/lib in $home: export LOCKSTEP_HOME as the folder that contains jobs/, and use bash, not sh" >&2; exit 2; }
launch train "$configs/gpt_small_shakespeare.yaml"
