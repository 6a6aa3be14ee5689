#!/bin/bash
#SBATCH --job-name=resnet18-2gpu
#SBATCH --nodes=1 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=8 --time=00:30:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# ResNet-18 on CIFAR-10, 3 epochs on 2 GPUs: a test of a cluster that takes minutes. data/get_cifar10.sh makes the data.

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
source "$home/jobs/lib/job.sh" || { echo "no jobs/lib in $home: export LOCKSTEP_HOME as the folder that contains jobs/, and use bash, not sh" >&2; exit 2; }
launch train "$configs/resnet18_cifar10.yaml" train.epochs=3
