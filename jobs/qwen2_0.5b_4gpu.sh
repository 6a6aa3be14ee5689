#!/bin/bash
#SBATCH --job-name=qwen2-0.5b-4gpu
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --time=04:00:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# Continues the training of Qwen2-0.5B on abstracts of arXiv, 4 GPUs of one node. Each rank computes 8 micro-batches of
# 2 windows.
#   sbatch --export=ALL,OVERRIDES="train.epochs=1" jobs/qwen2_0.5b_4gpu.sh

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
source "$home/jobs/lib/job.sh" || { echo "no jobs/lib in $home: export LOCKSTEP_HOME as the folder that contains jobs/, and use bash, not sh" >&2; exit 2; }
launch train "$configs/qwen2_0.5b_abstracts.yaml"
