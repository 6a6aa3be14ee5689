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
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch train "$configs/resnet50_imagenet.yaml" run.name="$job_name" checkpoint.every_minutes=15 train.accumulate=auto
