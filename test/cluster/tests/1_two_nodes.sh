# Compares a training on 2 nodes x 2 ranks with the same training of 4 ranks on one node. mpirun takes the hosts and slots
# from Slurm's allocation.
two_nodes() {
  local overrides=(run.directory="$work/jobs/runs" data.train=synthetic data.validation=synthetic data.synthetic_samples=256
    train.global_batch=32 train.max_steps=8 batch_norm.synchronize=true schedule.steps=100 optimizer.learning_rate=0.005
    evaluation.max_samples=64 checkpoint.every_steps=4 log.every_steps=1 cpu.threads=1)
  cat >"$work/two_nodes.sh" <<JOB
#!/bin/bash
#SBATCH --ntasks-per-node=2 --time=10 --output=%x-%j.log
# 4 ranks with one batch, so the result does not depend on the placement of the ranks.
mpirun --bind-to none "$LOCKSTEP" train "$repository/jobs/configs/quickstart.yaml" ${overrides[*]} run.name=\$SLURM_JOB_NAME
JOB
  cluster_up --nodes 2 --gpus 0 --cpus 4
  check "2 nodes x 2 ranks: the job completed" run_to_end --job-name=two-nodes --nodes=2 "$work/two_nodes.sh"
  check "2 nodes x 2 ranks: RUN/status is done" test "$(status_of two-nodes)" = done
  check "the log names 4 ranks on node1 and node2" log_shows_the_nodes
  check "there is a checkpoint of step 8" test -s "$work/jobs/runs/two-nodes/checkpoints/latest"
  check "the checkpoint is sound" "$LOCKSTEP" checkpoint verify "$work/jobs/runs/two-nodes/checkpoints/latest"
  check "1 node x 4 ranks: the job completed" run_to_end --job-name=one-node --nodes=1 --ntasks-per-node=4 "$work/two_nodes.sh"
  check "losses of two nodes agree with those of one" losses_agree
}
log_shows_the_nodes() { in_log "$job" node1 && in_log "$job" node2 && in_log "$job" '\b4 ranks\b'; }
# The sums are made in another order. Before the first update only their rounding differs. Each training step magnifies
# the difference about tenfold; a small learning rate and only 8 steps keep it below one per cent.
losses_agree() {
  paste <(values two-nodes step loss) <(values one-node step loss) | awk '
    NF != 2 {bad = 1; next}
    {
      n++
      difference = $1 > $2 ? $1 - $2 : $2 - $1
      if (difference > (n == 1 ? 1e-6 : n == 2 ? 1e-5 : 0.01) * $2) bad = 1
      printf "        step %d: loss %s on two nodes, %s on one\n", n, $1, $2
    }
    END {exit bad || n != 8}'
}
two_nodes
