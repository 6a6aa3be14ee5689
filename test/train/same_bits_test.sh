#!/usr/bin/env bash
# timeout: 600
# Runs that must produce the same bits. With train.micro_batches and reproducible: on any number of ranks, even if a run
# is stopped and resumed on another number. Without train.micro_batches: on the same number of ranks. Everything that
# could cause a difference is used: batch norm, augmentation, label smoothing, clipping, a short last batch, several
# buckets, evaluation.
source test/support/check.sh

# 3 steps per epoch, of which the last has 8 samples. Each run keeps only its last checkpoint.
small=(model.width=16 data.train=synthetic data.image_size=32 data.synthetic_samples=40 data.augment=[crop,flip] data.drop_last=false
  train.global_batch=16 train.epochs=2 train.label_smoothing=0.1 train.clip_norm=0.5 optimizer.learning_rate=0.02
  schedule.warmup_steps=2 comm.bucket_mb=0.25 checkpoint.keep=1 log.every_steps=1 log.tensorboard=false log.progress=false
  run.directory="$work")
ranks() { mpirun --oversubscribe --bind-to none -n "$1" "${@:2}"; }
train() { ranks "$1" "$lockstep" train "${small[@]}" "${@:2}"; }
last=checkpoints/step-00000006.h5
same() { cmp "$work/$1/$last" "$work/$2/$last"; }
differ() { ! "$lockstep" checkpoint diff "$work/$1/$last" "$work/$2/$last"; }
forget() { rm -rf "${work:?}/$1"; }

tree=(train.micro_batches=8 reproducible=true data.validation=synthetic)
check "1 rank" train 1 "${tree[@]}" run.name=one
check "  clips" grep -Eq '"gradient_norm": ?([1-9]|0\.[5-9])' "$work/one/metrics.jsonl"
for n in 2 3 4 8; do
  check "$n ranks" train "$n" "${tree[@]}" run.name=several
  check "  have the bits of one rank" same several one
  forget several
done
on_simulated_nodes() { LOCKSTEP_RANKS_PER_NODE=$1 train "$2" "${tree[@]}" run.name=nodes; }
check "4 ranks on 2 nodes" on_simulated_nodes 2 4
check "  sum within their node first" grep -q 'shared memory within 2 nodes.*fixed tree' "$work/nodes/log.txt"
check "  have the bits of one rank" same nodes one
forget nodes
check "6 ranks on nodes of 4, which are not subtrees" on_simulated_nodes 4 6
check "  sum by MPI alone" grep -q 'MPI, 6 ranks.*, fixed tree order' "$work/nodes/log.txt"
check "  have the bits of one rank" same nodes one
forget nodes
check "stops on 4 ranks, inside an epoch" train 4 "${tree[@]}" run.name=stopped train.max_steps=2
check "  resumes on 2" train 2 "${tree[@]}" run.name=stopped train.max_steps=4
check "  and on 8 to the end" train 8 "${tree[@]}" run.name=stopped
check "  has the bits of the uninterrupted run" same stopped one
check "another number of micro-batches is refused on resume" refused 2 'train.micro_batches: 8 before, 4 now' \
  train 1 "${tree[@]}" train.micro_batches=4 train.epochs=3 run.name=stopped
check "so is another number of threads" refused 2 'cpu.threads: 1 before, 2 now' \
  train 1 "${tree[@]}" cpu.threads=2 train.epochs=3 run.name=stopped
check "so is another width of the network" refused 2 'model.width: 16 before, 64 now' \
  train 1 "${tree[@]}" model.width=64 train.epochs=3 run.name=stopped
check "  which cannot be evaluated either" refused 1 'model.width is 16 in the file and its default in the configuration' \
  "$lockstep" evaluate "${small[@]}" "${tree[@]}" model.width=64 --checkpoint "$work/stopped/$last"
check "more ranks than micro-batches" refused 2 'at most 2 ranks' train 3 train.micro_batches=2 run.name=refused
forget stopped
forget one
mixed=("${tree[@]}" data.mixup=0.4 data.cutmix=1 data.random_erase=0.5 data.color_jitter=[0.4,0.4,0.4,0.1]
  data.augment=[crop,flip,trivial_augment] data.validation_size=24 ema.decay=0.5 ema.every_steps=2)
check "every augmentation, and averages of the weights: 1 rank" train 1 "${mixed[@]}" run.name=one
check "  3 ranks stop" train 3 "${mixed[@]}" run.name=mixed train.max_steps=2
check "  2 resume to the end" train 2 "${mixed[@]}" run.name=mixed
check "  have the bits of one rank" same mixed one
check "  and evaluate the same averages" cmp "$work/one/model_ema.safetensors" "$work/mixed/model_ema.safetensors"
for change in data.mixup=0 data.cutmix=0 data.random_erase=0 data.color_jitter=[] data.augment=[crop,flip]; do
  check "with $change instead: 1 rank" train 1 "${mixed[@]}" "$change" run.name=without
  check "  the bits are others" differ without one
  forget without
done
other_averages() { ! cmp "$work/without/model_ema.safetensors" "$work/one/model_ema.safetensors"; }
for change in ema.decay=0.9 ema.intervals=epoch; do
  check "with $change instead: 1 rank" train 1 "${mixed[@]}" "$change" run.name=without
  check "  the weights are the same" cmp "$work/without/model.safetensors" "$work/one/model.safetensors"
  check "  their averages are others" other_averages
  forget without
done
forget mixed
forget one
lars=("${tree[@]}" optimizer.kind=lars optimizer.learning_rate=5 optimizer.nesterov=true)
check "LARS, which uses norms of whole tensors: 1 rank" train 1 "${lars[@]}" run.name=one
check "  3 ranks stop" train 3 "${lars[@]}" run.name=lars train.max_steps=2
check "  2 resume to the end" train 2 "${lars[@]}" run.name=lars
check "  have the bits of one rank" same lars one
forget lars
forget one
check "bf16: 1 rank" train 1 "${tree[@]}" precision=bf16 run.name=one
check "  3 ranks" train 3 "${tree[@]}" precision=bf16 run.name=bf16
check "  have the bits of one rank" same bf16 one
check "  a run with fp32 cannot resume it" refused 2 'precision: bf16 before, fp32 now' \
  train 1 "${tree[@]}" precision=fp32 train.epochs=3 run.name=bf16
forget bf16
forget one

# Gradients are rounded between nodes, which is incompatible with a fixed tree.
rounded=(comm.gradients=bf16 log.every_steps=1 train.check_replicas_every_steps=2)
on_nodes() { LOCKSTEP_RANKS_PER_NODE=2 train 4 "${rounded[@]}" "$@"; }
check "gradients in bf16 between 2 nodes" on_nodes run.name=one
check "  are sent as bf16" grep -q 'gradients sent as bf16' "$work/one/log.txt"
check "  a second time" on_nodes run.name=again
check "  has the same bits" same again one
check "  cannot be combined with micro-batches" refused 2 'bits depend on the nodes' train 1 "${rounded[@]}" train.micro_batches=8 run.name=no
forget again
forget one

# Without evaluation, the training loss decides which checkpoint is best; it too is the same after stops.
fast=(train.accumulate=2 cpu.threads=1)
check "2 ranks, accumulating" train 2 "${fast[@]}" run.name=first
check "  a second time" train 2 "${fast[@]}" run.name=again
check "  has the same bits" same again first
forget again
for stop in 1 2 4 5; do check "  stops at step $stop" train 2 "${fast[@]}" run.name=stops train.max_steps=$stop; done
check "  resumes to the end" train 2 "${fast[@]}" run.name=stops
check "  has the same bits" same stops first

finish
