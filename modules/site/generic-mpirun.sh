# A Slurm cluster whose MPI does not support Slurm's PMIx: Open MPI's mpirun inside the allocation. See example.sh.
export LOCKSTEP_SITE=$(realpath "${BASH_SOURCE[0]:-$0}")
export LOCKSTEP_HOME=${LOCKSTEP_HOME:-$(realpath "${LOCKSTEP_SITE%/*}/../..")}
export LOCKSTEP_LAUNCHER=mpirun
export LOCKSTEP_MPIRUN="mpirun --bind-to none"
export NCCL_DEBUG=WARN
