#!/usr/bin/env bash
# timeout: 300
# Which keys may change when a run is resumed: each key that `help config` marks is changed, and does what its mark says.
source test/support/check.sh

# The marks of `help config`: * with --allow-change, ! never.
marked() { "$lockstep" help config | sed -nE "s/^[$1] ([a-z0-9_.]+) .*/\1/p"; }
base=(data.train=synthetic data.validation= data.image_size=8 data.synthetic_samples=64 model.width=16
  train.global_batch=8 train.epochs=4 train.micro_batches=2 schedule.warmup_epochs=1 run.directory="$work" cpu.threads=1
  log.every_steps=1 log.progress=false log.tensorboard=false comm.watchdog_seconds=120)
train() { "$lockstep" train "${base[@]}" "$@"; }

# For every marked key, a value that differs from that of the base run. All these values are compatible with each other.
declare -A other=([run.seed]=2 [precision]=bf16 [model.depth]=34 [model.stem]=imagenet [model.classes]=11
  [model.zero_gamma]=true [model.initialize_from]="$work/absent.h5" [data.train]=data/samples/cifar10_test.h5
  [data.shuffle]=false [data.augment]='[flip]' [data.crop_padding]=2 [data.mean]='[0.4,0.4,0.4]' [data.std]='[0.2,0.2,0.2]'
  [data.drop_last]=false [data.start]=2 [data.end]=66 [data.image_size]=16 [data.synthetic_samples]=80 [data.balance]=true
  [data.mixup]=0.2 [data.cutmix]=1 [data.random_erase]=0.1 [data.color_jitter]='[0.1,0.1,0.1,0.1]' [ema.decay]=0.9 [ema.every_steps]=2
  [ema.intervals]=epoch
  [train.global_batch]=16 [train.micro_batches]=0 [train.label_smoothing]=0.1 [train.clip_norm]=1 [train.spike_z_score]=9
  [train.class_weights]='[1,1,1,1,1,1,1,1,1,2]' [train.freeze]='[conv1.*]' [loss_scale.kind]=dynamic
  [loss_scale.initial]=1024 [loss_scale.growth_steps]=3 [optimizer.kind]=lars [optimizer.learning_rate]=0.2
  [optimizer.momentum]=0.5 [optimizer.nesterov]=true [optimizer.weight_decay]=0 [optimizer.decay_norms_and_biases]=false [optimizer.decay_norms]=false
  [optimizer.beta1]=0.5 [optimizer.beta2]=0.5 [optimizer.epsilon]=1e-6 [optimizer.trust_coefficient]=0.01
  [optimizer.learning_rate_batch]=16 [optimizer.groups]='["fc.* learning_rate=0.01"]' [schedule.kind]=step
  [schedule.warmup_epochs]=0 [schedule.warmup_steps]=8 [schedule.steps]=40 [schedule.warmup_start]=0.1
  [schedule.update]=epoch [schedule.step_epochs]=2 [schedule.gamma]=0.5
  [schedule.power]=2 [schedule.final_learning_rate]=0.01 [batch_norm.synchronize]=true [batch_norm.momentum]=0.2
  [batch_norm.epsilon]=1e-4 [comm.gradients]=bf16 [reproducible]=true)
# Keys of language models are changed in a run of a language model.
of_text=' model.from model.config data.sequence_length data.pack data.cross_documents train.gradient_type optimizer.moments optimizer.masters '
of_adapters=' model.lora.rank model.lora.alpha model.lora.dropout model.lora.targets model.lora.rslora model.base_precision '
changes() { # MARK: KEY=VALUE of all keys with it
  local key
  for key in $(marked "$1"); do
    [[ $key != model.family && "$of_text $of_adapters" != *" $key "* ]] || continue # another task
    printf '%s\n' "$key=${other[$key]-no value in this test}"
  done
}
mapfile -t learning < <(changes '*')
mapfile -t fixed < <(changes '!')
allow() { local one; for one in "$@"; do printf '%s\n' --allow-change "${one%%=*}"; done; }
mapfile -t allow_learning < <(allow "${learning[@]}")
mapfile -t allow_fixed < <(allow "${fixed[@]}")
check "help config marks keys" test ${#learning[@]} -gt 30 -a ${#fixed[@]} -ge 4

check "the base run: two steps" train run.name=base train.max_steps=2
copy() { rm -rf "${work:?}/$1" && cp -a "$work/base" "$work/$1"; }

copy a
train run.name=a train.max_steps=3 "${learning[@]}" >"$work/refused" 2>&1
check "changes without --allow-change are refused" grep -qF '[resume_changed]' "$work/refused"
for change in "${learning[@]}"; do
  check "  * ${change%%=*}" grep -qE "^  ${change%%=*}: .* before, .* now" "$work/refused"
done
check "with --allow-change, the run continues" train run.name=a train.max_steps=3 "${learning[@]}" "${allow_learning[@]}"
for change in "${learning[@]}"; do
  check "  * ${change%%=*}" grep -qE "${change%%=*} changes from .* to " "$work/a/log.txt"
done
check "  and then without it" train run.name=a train.max_steps=4 "${learning[@]}"
check "the average is kept" test -e "$work/a/model_ema.safetensors"
check "  until ema.decay is 0" train run.name=a train.max_steps=5 "${learning[@]/#ema.decay=*/ema.decay=0}" --allow-change ema.decay
check "  and then removed" test ! -e "$work/a/model_ema.safetensors"
evaluated=(run.name=evaluated data.validation=synthetic data.validation_size=8)
check "the average is evaluated" train "${evaluated[@]}" train.max_steps=2 ema.decay=0.9
check "  which the summary reports" grep -q '"final_ema_loss"' "$work/evaluated/metrics.json"
check "  without ema.decay, the run continues" train "${evaluated[@]}" train.max_steps=3 --allow-change ema.decay
check "  and the summary reports no average" bash -c "! grep -q ema_ '$work/evaluated/metrics.json'"

copy b
train run.name=b train.max_steps=3 "${fixed[@]}" "${allow_fixed[@]}" >"$work/refused" 2>&1
check "what is fixed cannot change" grep -qF '[config_conflict]' "$work/refused"
for change in "${fixed[@]}"; do
  check "  ! ${change%%=*}" grep -qE "^  ${change%%=*}: .* before, .* now" "$work/refused"
done
check "  status 2" refused 2 'start a new run with another run.name' train run.name=b train.global_batch=16 \
  --allow-change train.global_batch

# Another data set with the same path.
PYTHONPATH=test/support python3 - "$work/pictures" <<'PYTHON'
import os, sys
from png import png
for name, first in ("one/cat", 0), ("one/dog", 1), ("newer/cat", 1), ("newer/dog", 0), ("other/cat", 0), ("other/fox", 1):
    os.makedirs(f"{sys.argv[1]}/{name}")
    for i in range(8): open(f"{sys.argv[1]}/{name}/{i}.png", "wb").write(png([bytes(range(first, first + 24))] * 8))
PYTHON
import() { rm -f "$work/set.h5" && "$lockstep" data import imagefolder "$work/pictures/$1" "$work/set.h5"; }
check "  a set of pictures" import one
pictures=(run.name=pictures data.train="$work/set.h5" data.validation= model.classes=2 train.global_batch=8 run.directory="$work"
  model.width=8 cpu.threads=1 device=cpu checkpoint.keep=0 log.progress=false)
check "a run" "$lockstep" train "${pictures[@]}" train.max_steps=1
check "  continues" "$lockstep" train "${pictures[@]}" train.max_steps=2
check "  the same pictures are imported again" import one
check "  it continues" "$lockstep" train "${pictures[@]}" train.max_steps=3
check "  other pictures of the same classes" import newer
check "  it does not continue" refused 2 'set.h5 is not the data set .* differs in samples .key data.train' \
  "$lockstep" train "${pictures[@]}" train.max_steps=4
check "  other classes" import other
check "  it does not continue" refused 2 'set.h5 is not the data set .* differs in names of classes .key data.train' \
  "$lockstep" train "${pictures[@]}" train.max_steps=4
check "  unless that is allowed" "$lockstep" train "${pictures[@]}" train.max_steps=4 --allow-change data.train
check "  and then without it" "$lockstep" train "${pictures[@]}" train.max_steps=5
# The checkpoint before a damaged one may belong to the previous data set.
for step in 4 5; do
  python3 - "$work/pictures/checkpoints/step-0000000$step.h5" <<'PYTHON'
import os, sys
with open(sys.argv[1], "r+b") as file:
    file.seek(os.path.getsize(sys.argv[1]) // 2)
    byte = file.read(1)[0]
    file.seek(-1, os.SEEK_CUR)
    file.write(bytes([byte ^ 1]))
PYTHON
done
check "  nor from a checkpoint before damaged ones" refused 2 'step-00000003.h5 cannot be resumed, .* differs in names of classes' \
  "$lockstep" train "${pictures[@]}" train.max_steps=6

# Language models.
cat >"$work/tiny.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32,
 "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
JSON
text=(model.family=llama model.config="$work/tiny.json" data.train=synthetic data.validation= data.synthetic_samples=64
  data.sequence_length=16 train.global_batch=8 train.epochs=4 run.directory="$work" cpu.threads=1 log.every_steps=1
  log.progress=false log.tensorboard=false optimizer.kind=adamw precision=bf16)
check "a run of a language model" "$lockstep" train "${text[@]}" run.name=text train.max_steps=2
for change in data.sequence_length=32 data.pack=false data.cross_documents=true train.gradient_type=bf16 optimizer.moments=bf16 optimizer.masters=none "model.from=$work/absent model.config=$work/tiny.json"; do
  key=${change%%=*}
  # shellcheck disable=SC2086 # a change of model.from is followed by model.config, which it would replace otherwise
  check "  * $key" refused 2 "^  $key: .* before, .* now" "$lockstep" train "${text[@]}" run.name=text train.max_steps=3 $change
done
check "with --allow-change, it continues" "$lockstep" train "${text[@]}" run.name=text train.max_steps=3 data.sequence_length=32 \
  data.cross_documents=true --allow-change data.sequence_length --allow-change data.cross_documents
check "  with a note" grep -q 'data.cross_documents changes from false to true' "$work/text/log.txt"
check "  ! model.config" refused 2 "^  model.config: .*tiny.json before, smollm-135m now" "$lockstep" train "${text[@]}" run.name=text \
  data.sequence_length=32 data.cross_documents=true train.max_steps=4 model.config=smollm-135m --allow-change model.config
adapters=("${text[@]}" run.name=adapters model.lora.rank=2 model.lora.dropout=0.1)
check "a run with adapters" "$lockstep" train "${adapters[@]}" train.max_steps=2
for change in model.lora.rank=3 model.lora.alpha=8 model.lora.dropout=0.2 'model.lora.targets=[q]' model.lora.rslora=true \
  model.base_precision=nf4; do
  check "  ${change%%=*}" refused 2 "^  ${change%%=*}: .* before, .* now" "$lockstep" train "${adapters[@]}" train.max_steps=3 "$change"
done
for key in $of_text $of_adapters; do check "  $key is marked" grep -qx "$key" <(marked '*!'); done

# Changes that need a state other than the one in the checkpoint.
copy c
check "sgd becomes adamw" train run.name=c train.max_steps=3 optimizer.kind=adamw --allow-change optimizer.kind
check "  with a fresh state" grep -q 'the optimizer begins with a fresh state, since that of sgd does not fit adamw' "$work/c/log.txt"
check "  and continues" train run.name=c train.max_steps=5 optimizer.kind=adamw
copy d
check "  with the same bits as without a stop" train run.name=d train.max_steps=5 optimizer.kind=adamw --allow-change optimizer.kind
check "  in the checkpoint" cmp "$work/c/checkpoints/step-00000005.h5" "$work/d/checkpoints/step-00000005.h5"
copy e
check "momentum 0" train run.name=e train.max_steps=3 optimizer.momentum=0 --allow-change optimizer.momentum
check "  becomes 0.9" train run.name=e train.max_steps=4 --allow-change optimizer.momentum
copy f
check "fp32 becomes bf16" train run.name=f train.max_steps=3 precision=bf16 --allow-change precision
check "  and fp32 again" train run.name=f train.max_steps=4 precision=fp32 --allow-change precision
check "  reported" grep -q 'precision changes from bf16 to fp32' "$work/f/log.txt"
# A run that was stopped before its first checkpoint: config.yaml has the new kind, and the checkpoint the old one.
copy g
sed -i 's/^  kind: sgd/  kind: adamw/' "$work/g/config.yaml"
check "the state of the checkpoint decides" train run.name=g train.max_steps=3 optimizer.kind=adamw
finish
