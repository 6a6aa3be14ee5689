#!/bin/bash
#SBATCH --job-name=resnet50-tinyimagenet
#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=4 --mem=64G --time=00:30:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# ResNet-50 on Tiny ImageNet, 512 images per GPU and 3 epochs with a constant learning rate: a study of how throughput and
# memory scale. The options of sbatch choose the numbers of nodes and GPUs, and SBATCH_CONSTRAINT=v100 the kind of GPU:
#   sbatch --nodes=2 --gpus-per-node=2 --ntasks-per-node=2 --job-name=resnet50-2x2 jobs/resnet50_tinyimagenet.sh

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch train "$configs/resnet50_tinyimagenet.yaml" run.name="$job_name" train.batch_per_rank=512 \
  optimizer.learning_rate=0.001 schedule.step_epochs=30 schedule.warmup_epochs=0
