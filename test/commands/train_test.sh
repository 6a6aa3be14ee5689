#!/usr/bin/env bash
# timeout: 300
# A user's training: run, stop, resume with the same bits, evaluate on any number of ranks, and messages for bad input.
source test/support/check.sh

# A small, quick training that uses everything that matters.
small=(jobs/configs/quickstart.yaml data.train=synthetic data.validation=synthetic data.image_size=8
  data.synthetic_samples=96 train.global_batch=12 train.epochs=2 train.accumulate=2 train.label_smoothing=0.1
  train.clip_norm=1 train.check_replicas_every_steps=3 data.readers=2 checkpoint.every_steps=5 checkpoint.keep=0
  cpu.threads=1 log.every_steps=4 log.progress=false)
ranks() { mpirun --oversubscribe --bind-to none -n "$1" "$lockstep" "${@:2}"; }
train() { ranks "$1" train "${small[@]}" run.directory="$work" "${@:2}"; }
last=checkpoints/step-00000016.h5

check "trains to the end" train 1 run.name=whole
for file in config.yaml log.txt metrics.jsonl metrics.json model.safetensors checkpoints/latest checkpoints/best; do
  check "writes $file" test -s "$work/whole/$file"
done
check "writes done to RUN/status" grep -qx done "$work/whole/status"
check "logs the epoch line" grep -Eq 'Epoch \[2/2\] LR: .* \| Loss \(train, val\): .* \| Throughput: .* img/s' "$work/whole/log.txt"

check "the progress bar on a terminal" bash -c "TERM=xterm python3 -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))' \
  '$lockstep' train ${small[*]} run.directory='$work' run.name=bar log.progress=true train.max_steps=9 >'$work/terminal'"
check "  has the epoch" grep -Eq 'epoch 2/2 \[=+>? *\] 9/9 ' "$work/terminal"

# Stopped inside an epoch and resumed, twice: the same bits as without interruption.
for n in 1 2; do
  check "$n ranks: trains without interruption" train "$n" run.name=uninterrupted$n
  check "$n ranks: stops at step 3" train "$n" run.name=stop$n train.max_steps=3
  check "$n ranks: resumes to step 9" train "$n" run.name=stop$n train.max_steps=9
  check "$n ranks: resumes to the end" train "$n" run.name=stop$n
  check "$n ranks: the checkpoints are equal" cmp "$work/uninterrupted$n/$last" "$work/stop$n/$last"
  check "$n ranks: diff reports so" "$lockstep" checkpoint diff "$work/uninterrupted$n/$last" "$work/stop$n/$last"
done
check "another number of ranks resumes" train 3 run.name=stop1 train.epochs=3
check "a finished run has nothing to do" train 1 run.name=whole
check "--fresh keeps the old run" train 1 run.name=whole train.max_steps=1 --fresh
check "  under another name" test -s "$work/whole.1/$last"
check "another learning rate is refused" refused 2 'optimizer.learning_rate' "$lockstep" train "${small[@]}" \
  run.directory="$work" run.name=uninterrupted1 train.epochs=4 optimizer.learning_rate=0.3
check "  unless it is allowed" train 1 run.name=uninterrupted1 train.epochs=3 train.max_steps=17 optimizer.learning_rate=0.3 \
  --allow-change optimizer.learning_rate

# A configuration of DeepSpeed. The record of the run names it.
echo '{"zero_optimization": {"stage": 1, "overlap_comm": true}, "gradient_clipping": 9} // one line' >"$work/ds.json"
export NCCL_TIMEOUT=90
check "a file of DeepSpeed" train 2 run.name=deepspeed train.max_steps=1 --deepspeed "$work/ds.json"
unset NCCL_TIMEOUT
check "  is recorded" grep -qx "  shard: optimizer  # $work/ds.json:1" "$work/deepspeed/config.yaml"
check "  but the command line wins" grep -qx "  clip_norm: 1  # command line" "$work/deepspeed/config.yaml"
check "  what has no effect is named" grep -q 'no use for zero_optimization.overlap_comm' "$work/deepspeed/log.txt"
check "  and NCCL_TIMEOUT too" grep -q 'set comm.watchdog_seconds=90 instead' "$work/deepspeed/log.txt"
check "a file of DeepSpeed that is not there" refused 2 'no.json' "$lockstep" train "${small[@]}" --deepspeed "$work/no.json"

# Each of the 500 samples is counted exactly once on any number of ranks.
for n in 1 2 3; do
  check "evaluates on $n ranks" ranks "$n" evaluate jobs/configs/quickstart.yaml cpu.threads=1 train.global_batch=63 \
    --checkpoint "$work/whole.1/$last" --json="$work/evaluation$n"
  check "  500 samples" grep -q '"samples": 500' "$work/evaluation$n"
done
accuracy() { sed -n 's/.*"accuracy": \([^,]*\).*/\1/p' "$work/evaluation$1"; }
check "the same accuracy on 1, 2 and 3 ranks" test "$(accuracy 1)" = "$(accuracy 2)" -a "$(accuracy 1)" = "$(accuracy 3)"

# Initial weights from files: a model file with another head, and a checkpoint without optimizer state, which is
# evaluated.
check "starts from a model file" train 1 run.name=from_model model.initialize_from="$work/uninterrupted2/model.safetensors" \
  train.epochs=1 model.classes=12
check "  and reports that the head is new" grep -q 'the head is initialized at random: fc.weight has the shape (10, 512) in the file' "$work/from_model/log.txt"
check "imports a model file" "$lockstep" checkpoint import "$work/uninterrupted2/model.safetensors" "$work/imported.h5"
check "  and evaluates it" "$lockstep" evaluate "${small[@]}" --checkpoint "$work/imported.h5"
check "starts from a checkpoint" train 1 run.name=from_checkpoint model.initialize_from="$work/uninterrupted2/$last" train.epochs=1

# Bad input: a message, the exit status, and all ranks end.
check "unknown key" refused 2 'train.epochs' "$lockstep" train "${small[@]}" train.epoch=3
check "ill-typed key" refused 2 'train.epochs' "$lockstep" train "${small[@]}" train.epochs=many
check "missing data file" refused 1 'nowhere.h5' ranks 2 train "${small[@]}" run.directory="$work" run.name=b1 data.train=nowhere.h5
head -c 100000 data/samples/cifar10_train.h5 >"$work/cut.h5"
check "truncated data file" refused 1 'cut.h5' ranks 2 train "${small[@]}" run.directory="$work" run.name=b2 data.train="$work/cut.h5"
check "more classes than the model" refused 2 'model.classes=10' "$lockstep" train "${small[@]}" run.directory="$work" \
  run.name=b3 data.train=data/samples/cifar10_train.h5 model.classes=7
check "more ranks than samples" refused 2 'ranks' ranks 3 train "${small[@]}" run.directory="$work" run.name=b4 \
  train.global_batch=2 train.accumulate=1
check "a batch larger than the data" refused 2 'global batch' "$lockstep" train "${small[@]}" run.directory="$work" \
  run.name=b5 train.global_batch=1000
check "a Slurm step without a common world" refused 2 'srun --mpi=pmix' env SLURM_STEP_ID=0 SLURM_JOB_ID=1 \
  SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 "$lockstep" train "${small[@]}"
check "a directory that cannot be created" refused 1 'cut.h5/x' "$lockstep" train "${small[@]}" \
  run.directory="$work/cut.h5/x" run.name=b6
check "a missing checkpoint" refused 1 'nothing.h5' "$lockstep" evaluate jobs/configs/quickstart.yaml --checkpoint "$work/nothing.h5"
check "plan needs no training" "$lockstep" plan jobs/configs/quickstart.yaml --ranks 8
check "a dry run writes nothing" "$lockstep" train "${small[@]}" run.directory="$work" run.name=dry --dry-run
check "  and creates no run directory" test ! -e "$work/dry"

finish
