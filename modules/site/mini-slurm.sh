# The cluster of test/cluster/mini-slurm on one machine. Its nodes have no real GPUs. It uses mpirun, because its srun
# sometimes fails to launch several ranks on several nodes. See example.sh.
export LOCKSTEP_SITE=$(realpath "${BASH_SOURCE[0]:-$0}")
export LOCKSTEP_HOME=${LOCKSTEP_HOME:-$(realpath "${LOCKSTEP_SITE%/*}/../..")}
export SBATCH_PARTITION=${SBATCH_PARTITION:-main}
export LOCKSTEP_LAUNCHER=${LOCKSTEP_LAUNCHER:-mpirun}
export LOCKSTEP_DATA=${LOCKSTEP_DATA:-$LOCKSTEP_HOME/data}
export NCCL_SOCKET_IFNAME=eth0
export OMP_WAIT_POLICY=passive # there are more threads than cores, so waiting threads must not spin
