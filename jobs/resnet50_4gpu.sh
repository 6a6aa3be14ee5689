#!/bin/bash
#SBATCH --job-name=resnet50-4gpu
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --time=24:00:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# ResNet-50 on ImageNet, 4 GPUs of one node.   sbatch --export=ALL,OVERRIDES="train.epochs=3" jobs/resnet50_4gpu.sh

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch train "$configs/resnet50_imagenet.yaml" run.name="$job_name"
