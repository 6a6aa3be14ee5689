# A node loses its power: Slurm requeues the job, which resumes from its newest checkpoint on other nodes.
crash() {
  local name=resnet50-2nodes
  rm -rf "$work/jobs/runs/$name"
  # The full width makes a step slow enough that the run is not over before the crash.
  export OVERRIDES="$short model.width=64 data.synthetic_samples=1024 train.global_batch=16 train.epochs=1
    evaluation.max_samples=16 checkpoint.every_steps=4 checkpoint.keep=0"
  submit --ntasks-per-node=1 "$repository/jobs/resnet50_2nodes.sh"
  until_true 60 test -e "$work/jobs/runs/$name/checkpoints/step-00000004.h5"
  check "the job runs" has_state "$job" RUNNING
  "$cluster" crash node2
  check "a node crashed: the job is requeued" until_true 120 has_restarted "$job" 1
  start_again_now "$job"
  until_true 120 is_over "$job"
  check "a node crashed: the run is done" test "$(status_of $name)" = done || show_log "$job"
  check "a node crashed: it resumed from a checkpoint" in_log "$job" 'resumed from .*step-[0-9]+\.h5'
  check "a node crashed: each step was done once" each_sample_once $name 64 16 1024
}

eight_nodes
crash
"$cluster" restore node2
