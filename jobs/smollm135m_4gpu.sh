#!/bin/bash
#SBATCH --job-name=smollm135m-4gpu
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --time=24:00:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# A model of the shape of SmolLM-135M on your own text, 4 GPUs of one node.
#   sbatch --export=ALL,OVERRIDES="train.epochs=2" jobs/smollm135m_4gpu.sh

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
source "$home/jobs/lib/job.sh" || { echo "no jobs/lib in $home: export LOCKSTEP_HOME as the folder that contains jobs/, and use bash, not sh" >&2; exit 2; }
launch train "$configs/smollm135m_text.yaml"
