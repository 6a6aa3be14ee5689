#!/bin/bash
#SBATCH --job-name=tutorial-4gpu
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --mem=0 --time=00:30:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# ResNet-18 on the first 10,000 images of CIFAR-10, 50 epochs with 32 images per GPU (docs/recipes/four-a100.md).

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch train "$configs/resnet18_cifar10.yaml" run.name="$job_name" data.end=10000 train.epochs=50 train.batch_per_rank=32
