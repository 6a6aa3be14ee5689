#!/usr/bin/env bash
# Runs tests/*.sh in order: trainings and job scripts on a small Slurm cluster on this machine (README.md).
#
#   test/cluster/run.sh [--results FILE] [--only NAME]...        needs root; LOCKSTEP is the program
#
# If the cluster cannot be created, the test is skipped and counted. The last line is the total. CLUSTER_SUBNET is the
# network (default 10.78.0); two runs at the same time need different networks.
set -uo pipefail
cd "$(dirname "$0")/../.."
repository=$PWD

results='' only=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --results) results=$2 ;;
    --only) only+=("$2") ;;
    *) echo "run.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
LOCKSTEP=${LOCKSTEP:-$PWD/build/lockstep}
cluster=$PWD/test/cluster/mini-slurm
subnet=${CLUSTER_SUBNET:-10.78.0}
source test/cluster/lib.sh

[[ $(id -u) == 0 ]] || skip "the cluster needs root"
for command in slurmctld slurmd sbatch munged ip unshare; do
  command -v "$command" >/dev/null || [[ -x /usr/sbin/$command ]] || skip "$command is missing; make deps-test installs it"
done
unshare --net --uts --ipc --mount --pid --fork true 2>/dev/null || skip "namespaces cannot be created on this machine"
probe=lockstep$((RANDOM % 1000))
ip link add "$probe" type bridge 2>/dev/null || skip "a network bridge cannot be created on this machine"
ip link del "$probe"

# The nodes see the files of this machine except /dev/shm. Each run has a folder of its own, so two runs do not collide.
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-cluster.XXXXXX")
chmod 755 "$work" # munge requires that everybody can reach its socket
mkdir -p "$work/jobs" "$work/data"
export MINI_SLURM_DIR=$work/slurm
clean_up() {
  "$cluster" down >/dev/null 2>&1
  for folder in "$work/full" "$work/read-only"; do if mountpoint -q "$folder"; then umount "$folder"; fi; done
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
# The environment of the calling shell must not influence the tests.
for name in $(compgen -e | grep -E '^(LOCKSTEP_|OVERRIDES$|SBATCH_|SLURM_)'); do unset "$name"; done

job=
for test in test/cluster/tests/*.sh; do
  name=${test##*/[0-9]_}
  name=${name%.sh}
  if ((${#only[@]})) && [[ " ${only[*]} " != *" $name "* ]]; then continue; fi
  started=$SECONDS
  source "$test"
  echo "        $name: $((SECONDS - started)) s"
done
finish
