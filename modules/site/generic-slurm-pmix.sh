# A Slurm cluster whose srun starts MPI with PMIx, with a default partition and no modules to load. See example.sh.
export LOCKSTEP_SITE=$(realpath "${BASH_SOURCE[0]:-$0}")
export LOCKSTEP_HOME=${LOCKSTEP_HOME:-$(realpath "${LOCKSTEP_SITE%/*}/../..")}
export LOCKSTEP_LAUNCHER=srun
export SLURM_MPI_TYPE=pmix
export NCCL_DEBUG=WARN
