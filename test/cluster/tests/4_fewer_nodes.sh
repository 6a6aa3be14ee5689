# One preemptable run: on 8 nodes until it is stopped, on 7 nodes (one has crashed) until it is preempted, and on 3
# nodes to the end. Its weights are equal, byte by byte, to those of an uninterrupted run on 2 ranks of one node, so
# each step had the same samples.
fewer_nodes() {
  local name=resnet50-preemptable reference=resnet50-2gpu urgent
  rm -rf "$work/jobs/runs/$reference"
  # drop_last leaves 128 of 133 samples, which makes 8 steps per epoch.
  # The full width makes a step slow enough that the run is not over before it is stopped and preempted.
  export OVERRIDES="$short model.width=64 data.synthetic_samples=133 train.global_batch=16 train.epochs=5 evaluation.every_epochs=0
    evaluation.max_samples=16 reproducible=true train.micro_batches=8 optimizer.learning_rate=0.01 checkpoint.every_epochs=0"
  submit --partition=low --nodes=3-8 --gpus-per-node=1 "$repository/jobs/preemptable.sh"
  until_true 60 has_step $name 3
  scancel --batch --signal=USR2 "$job"
  check "preemptable.sh on 8 nodes, stopped: requeued" until_true 60 has_restarted "$job" 1
  "$cluster" crash node8
  scontrol update nodename=node8 state=down reason=crashed
  start_again_now "$job"
  until_true 60 has_step $name $(($(steps_trained $name) + 4))
  # A job of higher priority takes all nodes for a moment.
  urgent=$(sbatch --parsable --partition=urgent --nodes=7 --exclusive --output=/dev/null --wrap true)
  check "on 7 nodes, preempted: requeued" until_true 90 has_restarted "$job" 2
  until_true 60 is_over "$urgent"
  scontrol update nodename=node[4-7] state=drain reason=test
  start_again_now "$job"
  until_true 180 is_over "$job"
  check "on 3 nodes: completed" has_state "$job" COMPLETED || show_log "$job"
  check "it was on 8, then 7, then 3 nodes" test "$(values $name step ranks | uniq | xargs)" = "8 7 3"
  check "each sample that drop_last leaves is seen once per epoch" each_sample_once $name 40 16 128
  scontrol update nodename=node[4-7] state=resume
  check "the same training on 2 ranks, never stopped" run_to_end "$repository/jobs/resnet50_2gpu.sh"
  check "both have the same weights, byte by byte" "$LOCKSTEP" checkpoint diff "$work/jobs/runs/$name/checkpoints/latest" \
    "$work/jobs/runs/$reference/checkpoints/latest"
}

eight_nodes
fewer_nodes
"$cluster" restore node8
