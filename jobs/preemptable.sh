#!/bin/bash
#SBATCH --job-name=resnet50-preemptable
#SBATCH --nodes=1-8 --gpus-per-node=4 --exclusive --time=04:00:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# ResNet-50 on ImageNet on 1 to 8 nodes of 4 GPUs, as many as there are. Told to stop by preemption or by the end of its
# time, it saves and queues itself again, and goes on where it was with the nodes it is given then.
# One rank a GPU. Not --ntasks-per-node: Slurm then gives a range only the nodes that the tasks of its lower end need.
export LOCKSTEP_REQUEUE=1

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
source "$home/jobs/lib/job.sh" || { echo "no jobs/lib in $home: export LOCKSTEP_HOME, the folder with jobs/; and use bash, not sh" >&2; exit 2; }
launch train "$configs/resnet50_imagenet.yaml" checkpoint.every_minutes=15 train.accumulate=auto
