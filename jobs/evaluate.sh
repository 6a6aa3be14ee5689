#!/bin/bash
#SBATCH --job-name=evaluate
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --time=00:30:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# Evaluates CHECKPOINT: its loss and accuracy on the validation set of CONFIG, on 4 GPUs of one node.
#   CHECKPOINT=runs/resnet50-4gpu/checkpoints/best sbatch jobs/evaluate.sh

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch evaluate "${CONFIG:-$configs/resnet50_imagenet.yaml}" \
  --checkpoint "${CHECKPOINT:-${LOCKSTEP_RUNS:-runs}/resnet50-4gpu/checkpoints/best}"
