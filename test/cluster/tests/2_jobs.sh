# Runs each script of jobs/ once, as a user submits it from a folder of their own, shortened by OVERRIDES. The 8 nodes have
# 8 GPUs each, but no driver, so device=cpu. There are few ranks, since they share the cores of this machine.
job_test() { # RUN RANKS NODES SBATCH-OPTION... SCRIPT
  local sentence="${*: -1}: $2 ranks on $3 nodes by ${LOCKSTEP_LAUNCHER}, completed, RUN/status done"
  check "$sentence" job_is_done "$1" "$2" "$3" "${@:4:$#-4}" "$repository/jobs/${*: -1}"
}
job_is_done() {
  run_to_end "${@:4}" && [[ $(status_of "$1") == done ]] && in_log "$job" "job $job, start 1: $2 ranks? on $3 nodes?," &&
    [[ $(values "$1" step ranks | sort -u) == "$2" ]]
}
evaluation_is_there() {
  CHECKPOINT=runs/resnet50-4gpu/checkpoints/best run_to_end "$repository/jobs/evaluate.sh" &&
    in_log "$job" 'checkpoints/best \(step 4\) on synthetic: loss [0-9.]+, accuracy [0-9.]+%, top-5 accuracy [0-9.]+% of'
}
jobs_once() {
  local name
  export OVERRIDES="$short $steps_4"
  job_test resnet18-2gpu 2 1 resnet18_2gpu.sh
  job_test resnet50-1gpu 1 1 resnet50_1gpu.sh
  # Overrides without commas, on the command line; the later of two values wins.
  unset OVERRIDES
  job_test resnet50-2gpu 2 1 --export=ALL,OVERRIDES="$short $steps_4 optimizer.learning_rate=0.0625" resnet50_2gpu.sh
  check "OVERRIDES of --export=ALL,OVERRIDES=... arrived" grep -q 'learning_rate: 0.0625' "$work/jobs/runs/resnet50-2gpu/config.yaml"
  # Overrides with commas, in an exported variable.
  export OVERRIDES="$short $steps_4 data.augment=[flip,crop]"
  LOCKSTEP_LAUNCHER=srun job_test resnet50-4gpu 4 1 resnet50_4gpu.sh
  check "OVERRIDES with a list arrived" grep -q 'augment: \[flip, crop\]' "$work/jobs/runs/resnet50-4gpu/config.yaml"
  check "evaluate.sh: loss and accuracy of the best checkpoint" evaluation_is_there
  # Language models: the small one, trained on generated tokens.
  export OVERRIDES="$text_short"
  job_test gpt-small-1gpu 1 1 gpt_small_1gpu.sh
  job_test smollm135m-4gpu 4 1 smollm135m_4gpu.sh
  OVERRIDES="$text_short model.from=none data.start=0 data.end=0" job_test qwen2-0.5b-4gpu 4 1 qwen2_0.5b_4gpu.sh
  OVERRIDES="$text_short model.from=none" job_test smollm135m-chat-4gpu 4 1 smollm135m_chat_4gpu.sh
  export OVERRIDES="$short $steps_4 data.augment=[flip,crop]"
  job_test resnet50-8gpu 8 1 resnet50_8gpu.sh
  job_test resnet50-2nodes 4 2 --ntasks-per-node=2 --gpus-per-node=2 resnet50_2nodes.sh
  job_test resnet50-4nodes 8 4 --ntasks-per-node=2 resnet50_4nodes.sh
  LOCKSTEP_LAUNCHER=srun job_test resnet50-8nodes 8 8 --ntasks-per-node=1 resnet50_8nodes.sh
}
eight_nodes
jobs_once
