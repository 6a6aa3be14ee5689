#!/bin/bash
#SBATCH --job-name=qwen2-0.5b-2gpu
#SBATCH --nodes=1 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=4 --mem=32G --time=04:00:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# Qwen2-0.5B-Instruct, trained further on 5,000 abstracts of arXiv with 2 small GPUs (docs/recipes/qwen2-t4.md).

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch train "$configs/qwen2_0.5b_t4.yaml" run.name="$job_name"
