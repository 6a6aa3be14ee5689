#!/bin/bash
#SBATCH --job-name=smollm135m-chat-2gpu
#SBATCH --nodes=1 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=4 --mem=32G --time=00:40:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# SmolLM-135M, fine-tuned on the 5,000 conversations of docs/recipes/acceptance.md, 2 epochs on 2 GPUs. Each rank computes 2
# micro-batches of 8 windows.

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch train "$configs/smollm135m_chat.yaml" run.name="$job_name" model.from=HuggingFaceTB/SmolLM-135M train.epochs=2 \
  train.batch_per_rank=8 train.accumulate=2 'data.train=${LOCKSTEP_DATA}/no_robots/train.h5' 'data.validation=${LOCKSTEP_DATA}/no_robots/val.h5'
