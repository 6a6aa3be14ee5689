# Runs that are stopped and go on: time that is up, scancel, preemption, fewer nodes, a node that crashes.

# Time that is up, by srun: saved, queued again, gone on with. Then scancel: saved, and not queued again. Slurm looks at limits
# rarely: the signal comes up to a minute before its time, here at once.
time_and_cancel() {
  local name=resnet50-2gpu saved
  rm -rf "$work/jobs/runs/$name"
  export OVERRIDES="$short data.synthetic_samples=4096 train.global_batch=16 train.epochs=9 evaluation.max_samples=16"
  LOCKSTEP_LAUNCHER=srun LOCKSTEP_REQUEUE=1 submit --time=1 --signal=B:USR2@59 "$repository/jobs/resnet50_2gpu.sh"
  check "time nearly up: the job stopped and is queued again" until_true 120 has_restarted "$job" 1
  check "time nearly up: RUN/status says stopped" test "$(status_of $name)" = stopped
  saved=$(steps_trained $name)
  scontrol update jobid="$job" TimeLimit=30
  start_again_now "$job"
  check "it goes on where it was" until_true 60 has_step $name $((saved + 2))
  scancel "$job"
  until_true 60 is_over "$job"
  check "scancel: the job is cancelled, not queued again" has_state "$job" CANCELLED
  check "scancel: RUN/status says stopped" test "$(status_of $name)" = stopped
  check "scancel: the newest checkpoint is of the last step, so nothing is lost" newest_is_last_step $name
  check "all steps are there once" each_step_once $name
}
newest_is_last_step() { [[ $(readlink "$work/jobs/runs/$1/checkpoints/latest") == "step-$(printf %08d "$(steps_trained "$1")").h5" ]]; }
each_step_once() { [[ $(values "$1" step step) == "$(seq "$(steps_trained "$1")")" ]]; }

# scancel by mpirun on several nodes, whose daemons Slurm tells to end as well.
cancel_mpirun() {
  local name=resnet50-4nodes
  rm -rf "$work/jobs/runs/$name"
  submit --ntasks-per-node=1 "$repository/jobs/resnet50_4nodes.sh"
  until_true 60 has_step $name 2
  scancel "$job"
  until_true 60 is_over "$job"
  check "scancel of mpirun on 4 nodes: RUN/status says stopped" test "$(status_of $name)" = stopped
  check "scancel of mpirun on 4 nodes: nothing is lost" newest_is_last_step $name
}

# One preemptable run: 8 nodes, told to stop; 7, since one crashed, preempted; 3, to its end. Its weights equal, byte by byte,
# those of a run that nobody stopped, on 2 ranks of one node: so each step had the same samples.
fewer_nodes() {
  local name=preemptable reference=resnet50-2gpu urgent
  rm -rf "$work/jobs/runs/$reference"
  # 133 samples: drop_last leaves 128, 8 steps an epoch.
  export OVERRIDES="$short data.synthetic_samples=133 train.global_batch=16 train.epochs=5 evaluation.every_epochs=0
    evaluation.max_samples=16 reproducible=true train.micro_batches=8 optimizer.learning_rate=0.01 checkpoint.every_epochs=0"
  submit --partition=low --nodes=3-8 --gpus-per-node=1 "$repository/jobs/preemptable.sh"
  until_true 60 has_step $name 3
  scancel --batch --signal=USR2 "$job"
  check "preemptable.sh on 8 nodes, told to stop: queued again" until_true 60 has_restarted "$job" 1
  "$cluster" crash node8
  scontrol update nodename=node8 state=down reason=crashed
  start_again_now "$job"
  until_true 60 has_step $name $(($(steps_trained $name) + 4))
  # The job that is worth more has all nodes for a moment.
  urgent=$(sbatch --parsable --partition=urgent --nodes=7 --exclusive --output=/dev/null --wrap true)
  check "on 7 nodes, preempted: queued again" until_true 90 has_restarted "$job" 2
  until_true 60 is_over "$urgent"
  scontrol update nodename=node[4-7] state=drain reason=test
  start_again_now "$job"
  until_true 180 is_over "$job"
  check "on 3 nodes: completed" has_state "$job" COMPLETED || show_log "$job"
  check "it was on 8, then 7, then 3 nodes" test "$(values $name step ranks | uniq | xargs)" = "8 7 3"
  check "each sample that drop_last leaves is seen once an epoch" each_sample_once $name 40 16 128
  scontrol update nodename=node[4-7] state=resume
  check "the same training on 2 ranks, never stopped" run_to_end "$repository/jobs/resnet50_2gpu.sh"
  check "both have the same weights, byte by byte" "$LOCKSTEP" checkpoint diff "$work/jobs/runs/$name/checkpoints/latest" \
    "$work/jobs/runs/$reference/checkpoints/latest"
}

# The power of a node goes: Slurm queues the job again, which goes on from its newest checkpoint on other nodes.
crash() {
  local name=resnet50-2nodes first
  rm -rf "$work/jobs/runs/$name"
  export OVERRIDES="$short data.synthetic_samples=512 train.global_batch=16 train.epochs=1 evaluation.max_samples=16
    checkpoint.every_steps=4"
  submit --ntasks-per-node=1 --nodelist=node1,node2 "$repository/jobs/resnet50_2nodes.sh"
  until_true 60 test -e "$work/jobs/runs/$name/checkpoints/step-00000004.h5"
  "$cluster" crash node2
  check "a node crashed: the job is queued again" until_true 120 has_restarted "$job" 1
  scontrol update jobid="$job" ReqNodeList= # the user had asked for the node that is gone
  start_again_now "$job"
  until_true 120 is_over "$job"
  check "a node crashed: the run is done" test "$(status_of $name)" = done || show_log "$job"
  check "a node crashed: it went on from a checkpoint" in_log "$job" 'step-[0-9]*[48]\.h5'
  check "a node crashed: all steps are there once" each_sample_once $name 32 16 512
}

eight_nodes
time_and_cancel
cancel_mpirun
fewer_nodes
crash
