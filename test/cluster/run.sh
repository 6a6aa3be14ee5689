#!/usr/bin/env bash
# A training on a small Slurm cluster: 2 nodes (namespaces with a host name, an address and a /dev/shm each, see
# README.md) x 2 ranks, submitted with sbatch, compared with the same training of 4 ranks on one node.
#
#   test/cluster/run.sh [--results FILE]        needs root; LOCKSTEP is the program
#
# Where the cluster cannot be made the test is skipped and counted. The last line is the sum.
set -uo pipefail
cd "$(dirname "$0")/../.."

results=
if [[ ${1:-} == --results ]]; then results=$2; fi
LOCKSTEP=${LOCKSTEP:-$PWD/build/lockstep}
cluster=test/cluster/mini-slurm
passed=0 failed=0 skipped=0

finish() {
  local line="$passed passed, $failed failed, $skipped skipped"
  if [[ -n $results ]]; then echo "$line" >"$results"; fi
  echo "$line"
  exit $((failed > 0))
}
skip() { echo "skipped: $1"; skipped=1; finish; }
check() { # SENTENCE COMMAND...
  if "${@:2}"; then
    echo "passed  $1"
    ((passed += 1))
  else
    echo "FAILED  $1"
    ((failed += 1))
  fi
}

[[ $(id -u) == 0 ]] || skip "the cluster needs root"
for command in slurmctld slurmd sbatch munged ip unshare; do
  command -v "$command" >/dev/null || [[ -x /usr/sbin/$command ]] || skip "$command is missing; make deps-test installs it"
done
unshare --net --uts --ipc --mount --pid --fork true 2>/dev/null || skip "this machine lets nobody make namespaces"
probe=lockstep$((RANDOM % 1000))
ip link add "$probe" type bridge 2>/dev/null || skip "this machine lets nobody make a network bridge"
ip link del "$probe"

# Nodes see the same files as we do, but for /dev/shm. A folder of our own, so that two runs do not meet.
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-cluster.XXXXXX")
chmod 755 "$work" # munge asks that all can reach its socket
export MINI_SLURM_DIR=$work/slurm
clean_up() {
  "$cluster" down >/dev/null 2>&1
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

if ! timeout 120 "$cluster" up --nodes 2 --gpus 0 --cpus 4 --subnet 10.78.0 --kill-wait 5 2>"$work/up.log"; then
  cat "$work/up.log"
  check "the cluster came up" false
  finish
fi
eval "$("$cluster" env)"

overrides=(run.directory="$work/runs" data.train=synthetic data.validation=synthetic data.synthetic_samples=256
  train.global_batch=32 train.max_steps=8 batch_norm.synchronize=true schedule.steps=100 optimizer.learning_rate=0.005 evaluation.max_samples=64
  checkpoint.every_steps=4 log.every_steps=1 cpu.threads=1)

# 4 ranks with a joint batch, so that what is learned does not depend on where they are.
cat >"$work/job.sh" <<JOB
#!/bin/bash
#SBATCH --job-name=lockstep --ntasks-per-node=2 --time=10 --output=$work/%x-%j.log
# mpirun inside the allocation takes hosts and slots from Slurm.
mpirun --bind-to none "$LOCKSTEP" train jobs/configs/quickstart.yaml ${overrides[*]} run.name=\$RUN_NAME
JOB

submit() { # RUN_NAME SBATCH-OPTION...: waits for the job's end; leaves its state in $state
  local name=$1 job limit=$((SECONDS + 600))
  shift
  job=$(RUN_NAME=$name sbatch --parsable --export=ALL --chdir="$PWD" "$@" "$work/job.sh") || return 1
  while ((SECONDS < limit)); do
    state=$(scontrol show job -o "$job" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p')
    case $state in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) break ;; esac
    sleep 0.5
  done
  log=$work/lockstep-$job.log
  if [[ $state != COMPLETED ]]; then
    echo "job $job: $state; its log:"
    sed 's/^/    | /' "$log" | tail -60
  fi
}

# One loss a step, of the lines whose event is `step`.
losses() { sed -n '/"event": *"step"/s/.*"loss": *\([0-9][-+.0-9eE]*\).*/\1/p' "$work/runs/$1/metrics.jsonl"; }
status_is_done() { grep -qx done "$work/runs/$1/status"; }
# Sums are taken in another order. Before the first update only their rounding differs; steps of training magnify it
# (about tenfold each), which a small learning rate and 8 steps keep below a per cent.
losses_agree() {
  paste <(losses two-nodes) <(losses one-node) | awk '
    NF != 2 {bad = 1; next}
    {
      n++
      difference = $1 > $2 ? $1 - $2 : $2 - $1
      if (difference > (n == 1 ? 1e-6 : n == 2 ? 1e-5 : 0.01) * $2) bad = 1
      printf "        step %d: loss %s on two nodes, %s on one\n", n, $1, $2
    }
    END {exit bad || n != 8}'
}
log_shows_the_nodes() {
  grep -q node1 "$log" && grep -q node2 "$log" && grep -qE '\b4 ranks\b' "$log"
}

state= log=
submit two-nodes --nodes=2
check "2 nodes x 2 ranks: the job completed" test "$state" = COMPLETED
check "2 nodes x 2 ranks: RUN/status says done" status_is_done two-nodes
check "the log names 4 ranks on node1 and node2" log_shows_the_nodes
check "a checkpoint of step 8 is there" test -s "$work/runs/two-nodes/checkpoints/latest"
check "the checkpoint is sound" "$LOCKSTEP" checkpoint verify "$work/runs/two-nodes/checkpoints/latest"
submit one-node --nodes=1 --ntasks-per-node=4
check "1 node x 4 ranks: the job completed" test "$state" = COMPLETED
check "losses of two nodes agree with those of one" losses_agree
finish
