# A node loses its power: Slurm requeues the job, which resumes from its newest checkpoint on other nodes.
crash() {
  local name=resnet50-2nodes first
  rm -rf "$work/jobs/runs/$name"
  export OVERRIDES="$short data.synthetic_samples=512 train.global_batch=16 train.epochs=1 evaluation.max_samples=16
    checkpoint.every_steps=4"
  submit --ntasks-per-node=1 "$repository/jobs/resnet50_2nodes.sh"
  until_true 60 test -e "$work/jobs/runs/$name/checkpoints/step-00000004.h5"
  "$cluster" crash node2
  check "a node crashed: the job is requeued" until_true 120 has_restarted "$job" 1
  start_again_now "$job"
  until_true 120 is_over "$job"
  check "a node crashed: the run is done" test "$(status_of $name)" = done || show_log "$job"
  check "a node crashed: it resumed from a checkpoint" in_log "$job" 'step-[0-9]*[48]\.h5'
  check "a node crashed: each step was done once" each_sample_once $name 32 16 512
}

eight_nodes
crash
"$cluster" restore node2
