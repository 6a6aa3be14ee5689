# The cluster on one machine of test/cluster/mini-slurm: nodes without real GPUs, mpirun, since its srun fails now and then as
# the launcher of several ranks on several nodes, and short waits. example.sh explains.
export LOCKSTEP_SITE=$(realpath "${BASH_SOURCE[0]:-$0}")
export LOCKSTEP_HOME=${LOCKSTEP_HOME:-$(realpath "${LOCKSTEP_SITE%/*}/../..")}
export SBATCH_PARTITION=${SBATCH_PARTITION:-main}
export LOCKSTEP_LAUNCHER=${LOCKSTEP_LAUNCHER:-mpirun}
export LOCKSTEP_DATA=${LOCKSTEP_DATA:-$LOCKSTEP_HOME/data}
export NCCL_SOCKET_IFNAME=eth0
export OMP_WAIT_POLICY=passive # more threads than cores: those that wait must not spin
