# Under srun: when the time is up, the job saves, is requeued and resumes. After scancel it saves and is not requeued.
# Slurm checks time limits rarely, so the signal may come up to a minute early; here it comes immediately. No machine
# finishes 1000 epochs before that.
time_and_cancel() {
  local name=resnet50-2gpu saved
  rm -rf "$work/jobs/runs/$name"
  export OVERRIDES="$short data.synthetic_samples=4096 train.global_batch=16 train.epochs=1000 evaluation.max_samples=16"
  LOCKSTEP_LAUNCHER=srun LOCKSTEP_REQUEUE=1 submit --time=1 --signal=B:USR2@59 "$repository/jobs/resnet50_2gpu.sh"
  check "time nearly up: the job stopped and is requeued" until_true 120 has_restarted "$job" 1
  check "time nearly up: RUN/status is stopped" test "$(status_of $name)" = stopped
  saved=$(steps_trained $name)
  scontrol update jobid="$job" TimeLimit=30
  start_again_now "$job"
  check "it resumes where it was" until_true 60 has_step $name $((saved + 2))
  scancel "$job"
  until_true 60 is_over "$job"
  check "scancel: the job is cancelled, not requeued" has_state "$job" CANCELLED
  check "scancel: RUN/status is stopped" test "$(status_of $name)" = stopped
  check "scancel: the newest checkpoint is of the last step, so nothing is lost" newest_is_last_step $name
  check "each step was done once" each_step_once $name
}
newest_is_last_step() { [[ $(readlink "$work/jobs/runs/$1/checkpoints/latest") == "step-$(printf %08d "$(steps_trained "$1")").h5" ]]; }
each_step_once() { [[ $(values "$1" step step) == "$(seq "$(steps_trained "$1")")" ]]; }

# scancel under mpirun on several nodes; Slurm also signals the daemons of mpirun.
cancel_mpirun() {
  local name=resnet50-4nodes
  rm -rf "$work/jobs/runs/$name"
  submit --ntasks-per-node=1 "$repository/jobs/resnet50_4nodes.sh"
  until_true 60 has_step $name 2
  scancel "$job"
  until_true 60 is_over "$job"
  check "scancel of mpirun on 4 nodes: RUN/status is stopped" test "$(status_of $name)" = stopped
  check "scancel of mpirun on 4 nodes: nothing is lost" newest_is_last_step $name
}

eight_nodes
time_and_cancel
cancel_mpirun
