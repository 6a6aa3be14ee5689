# The settings of a site. Copy this file, adapt it, and source the copy in the login shell before sbatch (or let the
# modulefile do so): sbatch reads SBATCH_* from the shell that calls it. Jobs source $LOCKSTEP_SITE again.
#   source modules/site/NAME.sh && jobs/check.sh jobs/resnet50_4gpu.sh
# Leave out the lines that you do not need. jobs/check.sh reports a variable that nothing reads.

export LOCKSTEP_SITE=$(realpath "${BASH_SOURCE[0]:-$0}")                      # this file
export LOCKSTEP_HOME=${LOCKSTEP_HOME:-$(realpath "${LOCKSTEP_SITE%/*}/../..")} # the folder that contains jobs/ and scripts/

# Slurm. The environment overrides the #SBATCH lines of a script, and the options of sbatch override both.
export SBATCH_PARTITION=gpu   # `sinfo` lists them
export SBATCH_ACCOUNT=project # pays for the hours; `sacctmgr show associations user=$(id -un)` lists yours
#export SBATCH_QOS=normal
#export SBATCH_CONSTRAINT=a100
# Memory and processors. Many sites refuse or end jobs that request no memory, and most scripts request none.
# SBATCH_MEM_PER_NODE=0 requests all memory of each node, also for the scripts with a --mem of their own.
export SBATCH_MEM_PER_GPU=64G # there is one rank per GPU
#sbatch() { command sbatch --cpus-per-task=18 "$@"; } # instead of the 8 of the scripts: sbatch reads no variable for this

# Modules that a job loads, in this order: those that the program was built with, except those that its modulefile loads.
export LOCKSTEP_MODULES="openmpi/4.1 hdf5/1.14"
#export MODULESHOME=/usr/share/lmod/lmod # needed if a batch script does not find the command `module`

# Folders. All nodes must see them.
export LOCKSTEP_DATA=/scratch/shared/lockstep-data # the data sets of the configurations; docs/data.md
export LOCKSTEP_RUNS=/scratch/$(id -un)/runs      # runs; default: runs/ in the folder in which sbatch is called
#export LOCKSTEP=/opt/lockstep/bin/lockstep        # the program; default: LOCKSTEP_HOME/build/lockstep, else the one on PATH
#export LOCKSTEP_CACHE=$HOME/.cache/lockstep       # timings of algorithms, kept between runs

# The launcher: srun if Slurm and the MPI support PMIx (`srun --mpi=list`), otherwise mpirun inside the allocation.
export LOCKSTEP_LAUNCHER=srun
export SLURM_MPI_TYPE=pmix
#export LOCKSTEP_MPIRUN="mpirun --bind-to none"    # with LOCKSTEP_LAUNCHER=mpirun: the command and its options

# The network between nodes. `ip -brief address` on a node lists its interfaces, and `ibstat` its InfiniBand adapters.
export NCCL_SOCKET_IFNAME=ib0               # NCCL's start-up, and its data if there is no InfiniBand
export NCCL_IB_HCA=mlx5                     # the prefix of the names of the InfiniBand adapters
export NCCL_DEBUG=WARN                      # INFO also prints the transport that NCCL uses
export OMPI_MCA_btl_tcp_if_include=ib0      # Open MPI's data over TCP
export OMPI_MCA_oob_tcp_if_include=ib0      # mpirun's connection to the nodes
