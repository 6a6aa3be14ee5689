#!/usr/bin/env bash
# cores: 2
# precision: auto. What it stands for on processors and GPUs, that all ranks choose the same, and that a run keeps it.
source test/support/check.sh
unset LOCKSTEP_AUTO_PRECISION
export LOCKSTEP_DATA=$work # the data is never read

images=(data.train=synthetic data.validation= model.width=4 cpu.threads=1)
text=(model.family=llama data.train=synthetic data.validation= data.sequence_length=16 optimizer.kind=adamw cpu.threads=1
  'model.config={"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}')
plan() { "$lockstep" plan "$@" >"$work/plan"; }
says() { grep -qF ", $1; batch" "$work/plan"; }

# On a processor, the instructions decide. The plan names them after the number of threads.
check_output=$work/plan
for limit in "" avx512_bf16 avx512 avx2; do
  if [[ $limit ]]; then export LOCKSTEP_MAX_ISA=$limit; fi
  check "plans a ResNet${limit:+ with $limit}" plan "${images[@]}" device=cpu
  instructions=$(sed -nE 's/^How each layer runs on .*, 1 thread, //p' "$work/plan")
  of_images=fp32 of_text=fp32
  case $instructions in *AMX) of_images=bf16 of_text=bf16 ;; *bf16) of_text=bf16 ;; esac
  check "  in $of_images" says "$of_images (auto: convolutions, $instructions)"
  check "  and a language model" plan "${text[@]}" device=cpu
  check "  in $of_text" says "$of_text (auto: matrix products, $instructions)"
done
unset LOCKSTEP_MAX_ISA
check "a precision that is given is taken" plan "${text[@]}" device=cpu precision=bf16
check "  without a reason" says bf16

# On a GPU, the compute capability does.
if "$lockstep" plan "${images[@]}" --device h200 >/dev/null 2>&1; then
  while read -r device of_images of_text capability; do
    check "plans a ResNet for $device" plan "${images[@]}" --device "$device"
    check "  in $of_images" says "$of_images (auto: convolutions, compute capability $capability)"
    check "  and a language model" plan "${text[@]}" --device "$device"
    check "  in $of_text" says "$of_text (auto: matrix products, compute capability $capability)"
  done <<<"v100 fp16 fp16 7.0
t4 fp16 fp16 7.5
a100 fp16 bf16 8.0
h200 fp16 bf16 9.0"
  for config in $(grep -l 'family: llama' jobs/configs/*.yaml); do
    model=model.config=jobs/configs/models/gpt_small.json
    case $config in *smollm135m*) model=model.config=smollm-135m ;; *qwen2* | *qlora*) model=model.config=qwen2-0.5b ;; esac
    check "$config is planned for a T4" "$lockstep" plan "$config" data.train=synthetic data.validation=synthetic data.start=0 data.end=0 \
      data.synthetic_samples=200000 model.from=none $model --ranks 2 --device t4 --json="$work/t4.json"
    check "  in fp16, where it fits" python3 -c "import json, sys; p = json.load(open(sys.argv[1])); assert p['fits'] and p['precision'] == 'fp16', p" \
      "$work/t4.json"
  done
fi

# All ranks choose what all of their devices can do.
both=("${text[@]}" device=cpu train.global_batch=2 train.max_steps=1 run.directory="$work" log.progress=false log.tensorboard=false
  optimizer.learning_rate=1e-3 schedule.warmup_epochs=0 data.synthetic_samples=8)
different() {
  "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n 1 -x LOCKSTEP_AUTO_PRECISION=bf16 "$lockstep" train "${both[@]}" run.name=different : \
    -n 1 -x LOCKSTEP_AUTO_PRECISION=fp32 "$lockstep" train "${both[@]}" run.name=different >"$work/log" 2>&1
}
check_output=$work/log
check "ranks propose different precisions" different
check "  and train in the one that all have" grep -q 'precision: fp32 (auto: LOCKSTEP_AUTO_PRECISION of rank 1)' "$work/log"

# A run keeps its precision, whatever its device would choose.
train() { "$lockstep" train "${both[@]}" "$@" >"$work/log" 2>&1; }
check "a run begins in bf16" env LOCKSTEP_AUTO_PRECISION=bf16 "$lockstep" train "${both[@]}" run.name=kept
check "  which is recorded" grep -qx 'precision: bf16' "$work/kept/config.yaml"
export LOCKSTEP_AUTO_PRECISION=fp32
check "  it resumes elsewhere" train run.name=kept train.max_steps=2
check "  in bf16" grep -q 'precision: bf16 (auto: that of the run that is resumed)' "$work/log"
check "  the checkpoint says so" bash -c "'$lockstep' checkpoint info '$work/kept/checkpoints/latest' | grep -q bf16"
check "  another one is refused" refused 2 'precision: bf16 before, fp32 now' "$lockstep" train "${both[@]}" run.name=kept precision=fp32
check "so is another checkpoint" env "$lockstep" train "${both[@]}" run.name=other train.max_steps=3 \
  checkpoint.resume_from="$work/kept/checkpoints/latest"
check "  whose precision is kept, too" grep -qx 'precision: bf16' "$work/other/config.yaml"
sed -i 's/^precision: bf16/precision: fp16/' "$work/kept/config.yaml"
check "a precision that the device lacks is an error" refused 2 'the cpu backend computes in fp32 or bf16, not in fp16' \
  "$lockstep" train "${both[@]}" run.name=kept train.max_steps=3
check "a dry run names the precision" refused 0 ', fp32; batch' "$lockstep" train "${both[@]}" run.name=new --dry-run
check "LOCKSTEP_AUTO_PRECISION must be a precision" refused 2 'LOCKSTEP_AUTO_PRECISION: expected a precision, found "int8"' \
  env LOCKSTEP_AUTO_PRECISION=int8 "$lockstep" train "${both[@]}" run.name=bad
finish
