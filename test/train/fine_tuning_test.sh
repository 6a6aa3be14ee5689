#!/usr/bin/env bash
# timeout: 300
# The whole recipe of fine-tuning: a trained network gets a new head with a learning rate of its own, on frozen layers,
# with class weights and balanced sampling. The bits are the same on any number of ranks, even after resuming; what is
# frozen keeps its values; patterns that select nothing are refused.
source test/support/check.sh

small=(model.width=16 data.train=synthetic data.validation=synthetic data.image_size=16 data.synthetic_samples=60
  data.augment=[crop,flip] train.global_batch=12 train.micro_batches=4 train.epochs=2 reproducible=true
  schedule.warmup_steps=2 checkpoint.keep=1 log.every_steps=1 log.tensorboard=false log.progress=false
  run.directory="$work")
ranks() { mpirun --oversubscribe --bind-to none -n "$1" "${@:2}"; }
train() { ranks "$1" "$lockstep" train "${small[@]}" "${@:2}"; }
last=checkpoints/step-00000010.h5
same() { cmp "$work/$1/$last" "$work/$2/$last"; }
log_has() { grep -q -- "$2" "$work/$1/log.txt"; }
# The names and checksums of the tensors whose names begin with $2.
tensors() { "$lockstep" checkpoint info "$work/$1/$last" | grep -E "$2"; }

check "trains a network from scratch" train 1 run.name=base
tuned=(model.initialize_from="$work/base/model.safetensors" model.classes=7 run.seed=2 data.balance=true
  "train.freeze=[conv1, bn1, \"layer1.*\", layer3.0.bn2]" "train.class_weights=[1, 2, 0.5, 1, 1, 0, 3]"
  train.label_smoothing=0.1 "optimizer.groups=[fc learning_rate=0.2 weight_decay=0, \"*.bn* weight_decay=0\"]"
  optimizer.learning_rate=0.02 optimizer.learning_rate_batch=6)
check "fine-tunes it with another head" train 1 "${tuned[@]}" run.name=tuned
check "  which is initialized at random" log_has tuned 'the head is initialized at random: fc.weight has the shape (10, 128)'
check "  and has its own learning rate, scaled with the batch" log_has tuned 'optimizer group fc: 2 tensors, learning rate 0.4, weight decay 0'
check "  the others have theirs" log_has tuned 'learning rate: 0.04 = 0.02 x 12 / 6 (optimizer.learning_rate_batch)'
check "  the log tells how much is trained" log_has tuned 'parameters, [0-9]* of them trained'
check "frozen weights and statistics keep their values" \
  diff <(tensors base '(conv1|/bn1|layer1|layer3\.0\.bn2)[./]' | grep -vE 'layer[234]\.[0-9]\.(conv1|bn1)|momentum') \
  <(tensors tuned '(conv1|/bn1|layer1|layer3\.0\.bn2)[./]' | grep -vE 'layer[234]\.[0-9]\.(conv1|bn1)|momentum')
check "  and have no momentum" test -z "$(tensors tuned 'momentum/(conv1|bn1|layer1|layer3\.0\.bn2)')"
check "  the others have" test -n "$(tensors tuned 'momentum/layer2\.0\.conv1')"
check "3 ranks" train 3 "${tuned[@]}" run.name=several
check "  have the bits of one rank" same several tuned
check "stops on 2 ranks" train 2 "${tuned[@]}" run.name=stopped train.max_steps=7
check "  resumes on 4" train 4 "${tuned[@]}" run.name=stopped
check "  has the bits of the uninterrupted run" same stopped tuned
check "bf16 on 2 ranks" train 2 "${tuned[@]}" precision=bf16 optimizer.kind=adamw optimizer.learning_rate=0.001 run.name=bf16 train.epochs=1
check "LARS" train 1 "${tuned[@]}" optimizer.kind=lars run.name=lars train.epochs=1
check "the result can be evaluated" "$lockstep" evaluate "${small[@]}" model.classes=7 --checkpoint "$work/tuned/$last"
check "the whole network can be trained on from it" train 1 run.name=again model.classes=7 train.epochs=1 \
  model.initialize_from="$work/tuned/$last"
check "other frozen layers are refused on resume" refused 2 'train.freeze' \
  train 1 "${tuned[@]}" run.name=stopped train.epochs=3 "train.freeze=[conv1]"
check "frozen layers without weights from a file are reported" train 1 run.name=random train.max_steps=1 train.freeze=layer1
check "  by the log" log_has random 'the frozen parameters keep random values'

# Steps whose samples all have weight 0 change nothing, and do not count as failed. Here, no sample is of the 11th
# class.
unweighted=(data.train=data/samples/cifar10_train.h5 data.validation= model.classes=11 "train.class_weights=[0,0,0,0,0,0,0,0,0,0,1]"
  train.max_skipped_in_a_row=0 checkpoint.every_steps=2 checkpoint.keep=0 run.name=unweighted)
check "steps without weight do not end a run" train 2 "${unweighted[@]}" train.max_steps=4
check "  nor are they counted as skipped" grep -q '"skipped_steps": 0' "$work/unweighted/metrics.json"
check "  the loss and the norm are 0" grep -q '"step":4,.*"loss":0.0,.*"gradient_norm":0.0,' "$work/unweighted/metrics.jsonl"
check "  the log has the reason" log_has unweighted '4 steps changed nothing, since none of their samples has a weight'
check "  and no warning" bash -c '! grep -q "was skipped" "$0"' "$work/unweighted/log.txt"
of_step() { "$lockstep" checkpoint info "$work/unweighted/checkpoints/step-0000000$1.h5" | sed -n '/^tensor/,$p'; }
check "  the weights and statistics stay as they are" diff <(of_step 2) <(of_step 4)
some=(data.train=synthetic data.validation= train.global_batch=2 train.micro_batches=2 train.max_skipped_in_a_row=0 train.epochs=1 run.name=some)
check "nor do some among others" train 1 "${some[@]}" "train.class_weights=[1,0,0,0,0,0,0,0,0,0]"
check "  which change something" bash -c 'grep -q "steps changed nothing" "$0" && grep -Eq "\"loss\":[1-9]" "$1"' "$work/some/log.txt" "$work/some/metrics.jsonl"

refuses() { refused 2 "$1" "$lockstep" plan "${small[@]}" "${@:2}"; }
check "a pattern without parameters" refuses 'no parameter matches layr1; the nearest names are layer1' train.freeze=layr1
check "everything frozen" refuses 'nothing would be trained' "train.freeze=[\"*\"]"
check "half of a layer frozen" refuses 'freeze both or neither' train.freeze=fc.weight
check "a group without parameters" refuses 'no parameter matches head; the nearest names are' "optimizer.groups=[head learning_rate=1]"
check "a group without a setting" refuses 'learning_rate and weight_decay, such as' optimizer.groups=fc
check "class weights for other classes" refuses 'one number for each of the model.classes, found 2 and 10' "train.class_weights=[1, 2]"
check "a class weight that is no normal number" refuses 'train.class_weights: expected 0, or from 1e-06 to 1000000, found 1e-40' \
  "train.class_weights=[1,1,1,1,1,1,1,1,1,1e-40]"
check "a class weight that overflows" refuses 'found 1e\+30; only their ratios matter' "train.class_weights=[1,1,1,1,1,1,1,1,1,1e30]"
check "no class weight but 0" refuses 'at least one weight greater than 0' "train.class_weights=[0,0,0,0,0,0,0,0,0,0]"
check "the configuration in jobs/configs" bash -c "'$lockstep' plan jobs/configs/finetune_resnet18.yaml | grep -q 'of them trained'"

finish
