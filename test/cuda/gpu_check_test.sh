#!/usr/bin/env bash
# timeout: 300
# bench/gpu/check.py on a machine without a GPU. Arguments and the dry run are tested directly. The parts run with
# stand-ins for the program, its tests, PyTorch and compute-sanitizer, which print what the real ones print. This tests
# how the output is read, what the report contains, and how a part that was cut short is resumed. The overrides of
# trainings are checked by the real program.
source test/support/check.sh
source test/cuda/stand_ins.sh

python=$(command -v python3) || { echo "skipped: there is no python3"; exit 77; }
unset NCCL_HOME CUDA_VISIBLE_DEVICES PYTHON
export CUDA_HOME=$work/no-cuda REAL=$lockstep FAKES=$work/fakes PATH=$work/bin:$PATH
build=$work/build report=$work/results/h200-imagined.json
mkdir -p "$FAKES" "$work/bin" "$build/test"
gpu_check() { "$python" bench/gpu/check.py "$@" --build "$build" --results "$work/results" --python torch-python; }
has() { grep -Eq -- "$1" "$2" || { cat "$2"; return 1; }; }
# entry PART CHECK STATUS [PATTERN]: the report has this status and text for the check
entry() {
  "$python" - "$report" "$@" <<'PYTHON'
import json, re, sys
item = json.load(open(sys.argv[1]))["parts"][sys.argv[2]].get(sys.argv[3], {"status": "missing", "text": ""})
assert item["status"] == sys.argv[4] and re.search(sys.argv[5] if len(sys.argv) > 5 else "", item["text"]), item
PYTHON
}

# ---- Without a GPU, and with wrong arguments
"$lockstep" gpu-info >"$work/gpu" 2>&1 || true
check "an unknown part" refused 2 "invalid choice: 'opps'.*'ops', 'training'" gpu_check opps
check "no part" refused 2 'required: PART' gpu_check
check "no build" refused 1 'build/lockstep is missing; `make` builds it, or --build' gpu_check ops
ln -s "$lockstep" "$build/lockstep"
check "a build without tests" refused 1 'names no tests; `make tests` builds them' gpu_check ops --dry-run
list_tests kernels/{pool2d,optimizer,conv2d,simd,attention}_test
if grep -q '^No GPU' "$work/gpu"; then
  check "no GPU: one message" refused 1 '^check.py: this machine has no GPU that Lockstep can use: .+' gpu_check ops
  check "  and nothing else" test "$(gpu_check ops 2>&1 | wc -l)" = 1
  check "  and no report" test ! -e "$work/results"
fi
gpu_check ops training ranks speed lm-ops lm-training lm-speed lora generate sanitizer --dry-run >"$work/dry" 2>&1
check "the dry run succeeds" test $? = 0
check_output=$work/dry
check "  it reports that compute-sanitizer is missing" has 'compute-sanitizer: not installed' "$work/dry"
check "  and NCCL" has 'NCCL_HOME: not set, so `ranks` would not run' "$work/dry"
check "  and PyTorch" has 'PyTorch: torch-python is not a program; ' "$work/dry"
check "  it lists every check" test "$(grep -cE '^(ops|training|ranks|speed|sanitizer): ' "$work/dry")" = 44
check "  those of adapters too" test "$(grep -c '^lora: ' "$work/dry")" = 29
check "  of generating text too" test "$(grep -cE '^generate: .*(compared with transformers|other prompts|speed of one reply)$' "$work/dry")" = 10
check "  only tests that use a device" test "$(grep -c 'simd_test' "$work/dry")" = 0
check "  racecheck also for tests that run kernels of vendors" has 'racecheck: conv2d_test' "$work/dry"
check_output=$work/.check

# ---- Stand-ins
rm "$build/lockstep"
make_stand_ins

# ---- Reports, and parts that are resumed
touch "$FAKES/slow"
check "a part that is cut short reports it" refused 75 'pool2d_test' gpu_check ops --seconds 3
check "  the report has the finished checks" entry ops optimizer_test passed '^7 tests, 2 skipped on this device$'
check "  a test that only skips counts as not run" entry ops conv2d_test 'not run' 'it needs another machine'
check "  and the interrupted one" entry ops pool2d_test 'cut short' 'rerun the command to resume'
check "  a check that needs more than a whole part fails" refused 1 'takes longer than the 1 s of a part' bash -c "
  rm '$FAKES/log'; sed -i /conv2d/d '$build/test/list'
  '$python' bench/gpu/check.py ops --build '$build' --results '$work/results' --seconds 1"
check "  and checks that had passed are not repeated" bash -c "! grep optimizer '$FAKES/log'"
"$python" bench/gpu/check.py ops --build "$build" --results "$work/results" >"$work/ended" 2>&1 &
ended=$!
while ! grep -q 'pool2d' "$work/ended" && kill -0 $ended; do sleep 0.1; done
sleep 0.3
kill -TERM $ended
wait $ended
check "a signal ends it with a message" has 'ended by a signal; rerun the command to resume' "$work/ended"
check "  and ends the running command" bash -c "! pgrep -f '$build/test/[k]ernels_test'"
: >"$work/ended" # old output would end the loop before the program has started
"$python" bench/gpu/check.py ops --build "$build" --results "$work/results" --fresh >"$work/ended" 2>&1 &
ended=$!
while ! grep -q 'pool2d' "$work/ended" && kill -0 $ended; do sleep 0.1; done
kill -INT $ended
wait $ended
check "  so does Ctrl-C" has '^ended by a signal; rerun the command to resume$' "$work/ended"
check "  and nothing else" bash -c "! grep Traceback '$work/ended'"
rm "$FAKES/slow"
touch "$work/file"
check "a report that cannot be written is an immediate error" refused 1 'the report cannot be written: .*--results' \
  "$python" bench/gpu/check.py ops --build "$build" --results "$work/file"
check "the same command resumes and finishes" gpu_check ops
check "  on the device, without autotuning" has '^kernels_test cuda none --gtest_brief=1 --gtest_filter=pool2d_test' "$FAKES/log"
check "  and the page has all results" has '^## ops: 3 passed, 0 failed$' "$work/results/h200-imagined.md"
check "  with the GPU and its libraries" has '^NVIDIA H200 \(imagined\), 140 GiB; driver 580.1, ' "$work/results/h200-imagined.md"

check "training: two differ" refused 1 'fp16: captured and uncaptured steps' gpu_check training
check "  equal bits" entry training 'fp16: captured and uncaptured steps give the same bits' passed 'the same bits'
check "  other bits" entry training 'tf32: captured and uncaptured steps give the same bits' failed 'differ'
check "  equal bits on two streams" entry training 'fp16: weight gradients on a second stream give the same bits' passed 'the same bits'
check "  uncaptured too" entry training 'fp16, uncaptured: weight gradients on a second stream give the same bits' passed
check "  other bits" entry training 'bf16: weight gradients on a second stream give the same bits' failed 'differ'
check "  golden curves" entry training 'resnet50_64, fp16, compared with PyTorch in fp64' passed '1.50 times'
check "  each is selected by its name" has 'train_test cuda none .*--gtest_filter=\*resnet50_64_tf32' "$FAKES/log"

check "ranks without NCCL_HOME" gpu_check ranks
check "  do not run" entry ranks '2 ranks agree with one rank' 'not run' 'but NCCL_HOME is not set'
export NCCL_HOME=$work NCCL_TEXT='NCCL 2.28.9 (old)'
check "ranks with an old NCCL" gpu_check ranks
check "  do not run either" entry ranks '2 ranks agree with one rank' 'not run' 'but NCCL_HOME has NCCL 2.28.9'
unset NCCL_TEXT
make_mpirun
check "ranks with a new NCCL" env MPIRUN=mpirun "$python" bench/gpu/check.py ranks --build "$build" --results "$work/results"
check "  agree" entry ranks '2 ranks agree with one rank' passed
check "  give the same bits" entry ranks 'train.micro_batches: 2 ranks give the same bits as one' passed

check "  time NCCL's blocking calls" entry ranks "NCCL's threads for calls that do not block" passed \
  '^100.00 ms per uncaptured step with a thread per call of NCCL, 80.00 ms with comm.nccl_blocking: 1.25 times as fast$'

check "speed without PyTorch" gpu_check speed
check "  reports the time with a second stream" entry speed 'ResNet-50, 224x224, batch 256, fp16: weight gradients' passed \
  '^100.00 ms per step on one stream, 90.00 ms on two: 1.11 times as fast; memory 1.00 times$'
check "  reports that of Lockstep" entry speed 'ResNet-50, 224x224, batch 256, fp16' 'not run' 'Lockstep 2560 images/s; torch-python is not a program'
program "$work/bin/torch-python" <<'SH'
#!/usr/bin/env bash
[[ $1 == -c ]] && { echo 2.15.0; exit; }
[[ $* == *"--mode copy"* ]] && { echo '{"copy_bytes_per_second": 4e12}'; exit; }
case $* in
  *graph*) echo 'out of memory' >&2; exit 1 ;;
  *"--mode compile"*"batch 256"*) speed=2000 ;;
  *"--precision bf16 --batch 512"*) speed=1e6 ;;
  *) speed=1000 ;;
esac
echo "a warning"
echo "{\"samples_per_second\": $speed, \"memory_bytes\": 2000, \"torch\": \"2.15.0\"}"
SH
check "speed compared with PyTorch: a slow training is a failure" refused 1 'speed' gpu_check speed
check "  compared with the best of PyTorch" entry speed 'ResNet-50, 224x224, batch 256, bf16' passed \
  '^2560 images/s, PyTorch 2.15.0 2000 \(compile\): 1.28 times, 1.2 required; memory 0.50 times; 1.0 % of the time spent waiting for data; graph: out of memory$'
check "  1.28 times is less than 1.5" entry speed 'ResNet-50, 224x224, batch 256, fp16' failed '1.28 times, 1.5 required'
if "$lockstep" plan data.train=synthetic --device h200 >/dev/null 2>&1; then
  check "  where the time goes" entry speed 'ResNet-50, 224x224, batch 256, fp16: where the time goes' passed \
    '^0.40 ms per uncaptured step: convolutions with fused ops, backward 50.0 %, .* forward 25.0 %, update: optimizer 20.0 %, linear, forward 5.0 %; convolutions move 40[0-9]+ GB/s, 1[0-9]+ % of the 4000 GB/s of a copy, [1-9][0-9]+ MB per step; fusion saves [1-9][0-9]+ MB$'
fi
check "  slower" entry speed 'ResNet-18, 32x32, batch 512, bf16' failed '0.01 times'

# ---- Language models
check "lm-ops" gpu_check lm-ops
check "  has the ops of language models" entry lm-ops attention_test passed '^1 tests'
check "  and no others" entry lm-ops pool2d_test missing
check "lm-training: one differs" refused 1 'bf16: the losses are those of a CPU' gpu_check lm-training
check "  the distance is reported" entry lm-training 'bf16: the losses are those of a CPU' failed \
  '^the losses of 20 steps differ by at most 4.0e-02, 2e-02 allowed; the last is 2.6000$'
check "  and a small one is good" entry lm-training 'fp32: the losses are those of a CPU' passed 'at most 2.0e-04, 1e-03 allowed'
check "  golden curves" entry lm-training 'qwen3, bf16, compared with PyTorch in fp64' passed '1.50 times'
check "  of all kinds of recomputation" has '--gtest_filter=\*LanguageGolden\*/llama3_biased_fp32_\*' "$FAKES/log"
check "  captured steps" entry lm-training 'fp16: captured and uncaptured steps give the same bits' passed 'the same bits'
check "  recomputation" entry lm-training 'model.recompute=block gives the same bits' passed 'the same bits'
check "  ranks" entry lm-training 'train.micro_batches: 2 ranks give the same bits as one' passed 'the same bits'
cp "$build/test/list" "$work/list"
list_tests kernels/{lora,nf4_matmul,attention}_test
check "lora: one differs" refused 1 'adapters, bf16: the losses are those of a CPU' gpu_check lora
check "  the ops of adapters" entry lora lora_test passed '^1 tests'
check "  golden curves" entry lora 'nf4, bf16, compared with PEFT in fp64' passed '1.50 times'
check "  losses" entry lora 'adapters beside NF4, fp32: the losses are those of a CPU' passed 'at most 2.0e-04, 1e-03 allowed'
check "  recomputation" entry lora 'adapters: model.recompute=block gives the same bits' passed 'the same bits'
check "  speed and memory" entry lora 'SmolLM-135M, sequence 1,024, batch 32, bf16: speed and memory' passed \
  '^all weights: 327,680 tokens/s, 0 MiB; adapters: '
mv "$work/list" "$build/test/list"
program "$work/bin/torch-python" <<'SH'
#!/usr/bin/env bash
[[ $1 == -c ]] && { echo 2.15.0; exit; }
[[ $* == *"--mode matmul"* ]] && { echo '{"flops_per_second": 8e14}'; exit; }
[[ $* == *"--mode graph"* ]] && { echo 'out of memory' >&2; exit 1; }
[[ $* == *"--sequence 1024 --bias --batch 16 --layers 24 --width 896 --heads 14 --kv-heads 2 --ffn 4864 --vocabulary 151936"* ]] &&
  { echo '{"tokens_per_second": 100000, "memory_bytes": 2000, "torch": "2.15.0"}'; exit; }
[[ $* == *"--sequence 1024 --batch 32 --layers 30 --width 576 --heads 9 --kv-heads 3 --ffn 1536 --vocabulary 49152"* ]] &&
  { echo '{"tokens_per_second": 200000, "memory_bytes": 2000, "torch": "2.15.0"}'; exit; }
exit 1
SH
qwen='Qwen2.5-0.5B, sequence 1,024, batch 16, bf16' smollm='SmolLM-135M, sequence 1,024, batch 32, bf16'
check "lm-speed: a slow training is a failure" refused 1 'lm-speed' gpu_check lm-speed
check "  Lockstep's own utilization is missing: that of PyTorch's matmul rate" entry lm-speed "$smollm" failed \
  '^327,680 tokens/s, 3[0-9].[0-9] % of the matmul rate; PyTorch 2.15.0 200,000 \(compile\): 1.64 times; memory 0.50 times; 1.0 % of the time spent waiting for data; graph: out of memory; 50 % required$'
check "  160,000 tokens/s are enough" entry lm-speed "$qwen" passed '^163,840 tokens/s, .*; 160,000 tokens/s required$'
check "  recomputation" entry lm-speed "$qwen: recomputation" passed \
  '^block saves [4-9][0-9] % of [0-9.]+ GB of activations and takes 20 % more time; selective saves [1-9][0-9]* % of .* takes 1 % more time; 40 % for less than 25 % required$'
check "  where the time goes" entry lm-speed "$qwen: where the time goes" passed '^0.40 ms per uncaptured step: '
export UTILIZATION=', "model_flops_utilization": 0.55'
check "lm-speed with Lockstep's own utilization" gpu_check lm-speed
check "  reaches the aim" entry lm-speed "$smollm" passed '^327,680 tokens/s, 55.0 % of the matmul rate'

check "no sanitizer" gpu_check sanitizer
check "  does not run" entry sanitizer 'memcheck: pool2d_test' 'not run' 'compute-sanitizer is neither on PATH'
make_compute_sanitizer
check "a sanitizer that finds an error" refused 1 'sanitizer' gpu_check sanitizer
check "  an error" entry sanitizer 'racecheck: pool2d_test' failed '1 hazard'
check "  none" entry sanitizer 'racecheck: optimizer_test' passed '0 hazards'
check "  memcheck" entry sanitizer 'memcheck: pool2d_test' passed 'ERROR SUMMARY: 0 errors'
check "  a sanitizer that saw no kernel is a failure" entry sanitizer 'memcheck: optimizer_test' failed 'terminated before'

check "parts of other calls are kept" has '^## training: 15 passed, 2 failed$' "$work/results/h200-imagined.md"
printf '{"version": {"commi' >"$report"
rm "$FAKES/log"
check "a truncated report is ignored" gpu_check ops
check "  and all checks run again" has 'optimizer_test' "$FAKES/log"
sed -i 's/"commit": "[^"]*"/"commit": "another"/' "$report"
rm "$FAKES/log"
check "so is a report of another commit" gpu_check ops
check "  and all checks run again" has 'optimizer_test' "$FAKES/log"
rm "$FAKES/log"
check "--fresh ignores the report" gpu_check ops --fresh
check "  and all checks run again" has 'optimizer_test' "$FAKES/log"
finish
