#!/bin/bash
#SBATCH --job-name=qwen2-0.5b-4gpu
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --time=04:00:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# Continues the training of Qwen2-0.5B on abstracts of arXiv, 4 GPUs of one node. Each rank computes 8 micro-batches of
# 2 windows.
#   sbatch --export=ALL,OVERRIDES="train.epochs=1" jobs/qwen2_0.5b_4gpu.sh

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch train "$configs/qwen2_0.5b_abstracts.yaml" run.name="$job_name"
