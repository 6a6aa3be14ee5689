# What a site must say: copy this file, change what is different at yours, and source the copy in the login shell (or let the
# modulefile do so), before sbatch: it reads SBATCH_* from the shell that calls it. Jobs source $LOCKSTEP_SITE again.
#   source modules/site/NAME.sh && jobs/check.sh jobs/resnet50_4gpu.sh
# A line that is not needed is left out. jobs/check.sh knows the names, and says which one nothing reads.

export LOCKSTEP_SITE=$(realpath "${BASH_SOURCE[0]:-$0}")                      # this file
export LOCKSTEP_HOME=${LOCKSTEP_HOME:-$(realpath "${LOCKSTEP_SITE%/*}/../..")} # the folder that holds jobs/ and scripts/

# Slurm. The environment wins over a script's #SBATCH lines, and sbatch's own options over both.
export SBATCH_PARTITION=gpu   # `sinfo` lists them
export SBATCH_ACCOUNT=project # what the hours are taken from; `sacctmgr show associations user=$(id -un)`
#export SBATCH_QOS=normal
#export SBATCH_CONSTRAINT=a100

# Modules that a job loads, in this order: what the program was built with, less what its own modulefile loads.
export LOCKSTEP_MODULES="openmpi/4.1 hdf5/1.14"
#export MODULESHOME=/usr/share/lmod/lmod # where a batch script does not find the command `module` by itself

# Where files are. All nodes must see these folders.
export LOCKSTEP_DATA=/scratch/shared/lockstep-data # configurations name their data below it; data/README.md
export LOCKSTEP_RUNS=/scratch/$(id -un)/runs      # runs; otherwise runs/ in the folder that sbatch is called in
#export LOCKSTEP=/opt/lockstep/bin/lockstep        # the program; otherwise LOCKSTEP_HOME/build/lockstep, then the one on PATH
#export LOCKSTEP_CACHE=$HOME/.cache/lockstep       # timings of convolutions, kept between runs

# How ranks are started: srun, where Slurm and the MPI have PMIx (`srun --mpi=list`); otherwise mpirun inside the allocation.
export LOCKSTEP_LAUNCHER=srun
export SLURM_MPI_TYPE=pmix
#export LOCKSTEP_MPIRUN="mpirun --bind-to none"    # with LOCKSTEP_LAUNCHER=mpirun: the command and its options

# The network between nodes: `ip -brief address` on a node names interfaces, `ibstat` InfiniBand's.
export NCCL_SOCKET_IFNAME=ib0               # NCCL's first contact, and its data where there is no InfiniBand
export NCCL_IB_HCA=mlx5                     # InfiniBand adapters, by the beginning of their names
export NCCL_DEBUG=WARN                      # INFO says which transport NCCL uses
export OMPI_MCA_btl_tcp_if_include=ib0      # Open MPI's data over TCP
export OMPI_MCA_oob_tcp_if_include=ib0      # mpirun's contact with the nodes
