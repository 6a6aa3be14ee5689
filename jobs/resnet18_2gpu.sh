#!/bin/bash
#SBATCH --job-name=resnet18-2gpu
#SBATCH --nodes=1 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=4 --mem=32G --time=00:20:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# ResNet-18 on CIFAR-10, 3 epochs with 128 images per GPU on 2 GPUs: a test of a cluster that takes minutes.
# data/get_cifar10.sh makes the data.

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch train "$configs/resnet18_cifar10.yaml" run.name="$job_name" train.epochs=3 train.batch_per_rank=128
