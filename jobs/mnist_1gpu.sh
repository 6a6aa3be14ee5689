#!/bin/bash
#SBATCH --job-name=mnist-1gpu
#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=4 --mem=16G --time=00:10:00
#SBATCH --output=%x-%j.log --open-mode=append --signal=B:USR2@120 --requeue
# A small ResNet on MNIST, 1 GPU: the baseline of a test of a cluster. data/get_mnist.sh makes the data.

home=${LOCKSTEP_HOME:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[ -r "$home/jobs/lib/job.sh" ] || { echo "there is no jobs/lib/job.sh in $home: run \`module load lockstep\` before sbatch, or export LOCKSTEP_HOME" >&2; exit 2; }
. "$home/jobs/lib/job.sh"
launch train "$configs/mnist.yaml" run.name="$job_name"
