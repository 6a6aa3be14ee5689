#!/bin/bash
#SBATCH --job-name=resnet50-preemptable
#SBATCH --nodes=1-8 --gpus-per-node=4 --exclusive --time=04:00:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# ResNet-50 on ImageNet on 1 to 8 nodes of 4 GPUs, depending on how many nodes are free. When it is preempted or its
# time is up, it saves and requeues itself, and it resumes on the nodes that it gets then.
# There is one rank per GPU. --ntasks-per-node is not used: with it, Slurm would grant a range of nodes only as many
# nodes as the tasks of its lower end need.
export LOCKSTEP_REQUEUE=1

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
source "$home/jobs/lib/job.sh" || { echo "no jobs/lib in $home: export LOCKSTEP_HOME as the folder that contains jobs/, and use bash, not sh" >&2; exit 2; }
launch train "$configs/resnet50_imagenet.yaml" checkpoint.every_minutes=15 train.accumulate=auto
