#!/usr/bin/env bash
# timeout: 600
# bench/gpu/check.py --quick, rehearsed with stand-ins for the program and its tests: a device that works, one that hangs,
# one that is throttled, one that fails in a kernel; and calls that end early. The overrides of trainings are checked by the
# real program, and the names in traces come from it.
source test/support/check.sh
source test/cuda/stand_ins.sh

python=$(command -v python3) || { echo "skipped: there is no python3"; exit 77; }
unset CUDA_VISIBLE_DEVICES PYTHON CUDNN_HOME
export CUDA_HOME=$work/no-cuda REAL=$lockstep FAKES=$work/fakes PATH=$work/bin:$PATH NCCL_HOME=$work MPIRUN=mpirun REAL_SPANS=$work/tiny.json
build=$work/build results=$work/results
mkdir -p "$FAKES" "$work/bin" "$work/lib" "$build/test"
quick() { "$python" bench/gpu/check.py --quick --build "$build" --results "$results" --python torch-python "$@"; }
has() { grep -Eq -- "$1" "$2" || { cat "$2"; return 1; }; }
with() { (export "${1?}" && "${@:2}"); } # with NAME=VALUE COMMAND...
# entry ITEM STATUS [PATTERN]: the last record of the check has this status and text
entry() {
  "$python" - "$results/quick/results.jsonl" "$@" <<'PYTHON'
import json, re, sys
found = [record for record in map(json.loads, open(sys.argv[1])) if record["item"] == sys.argv[2]]
assert found and found[-1]["status"] == sys.argv[3] and re.search(sys.argv[4] if len(sys.argv) > 4 else "", found[-1]["text"]), found
PYTHON
}

# ---- The plan, and a machine without a GPU
ln -s "$lockstep" "$build/lockstep"
list_tests kernels/{conv2d,pool2d,embedding,attention,glu,simd,max_isa_avx2}_test
check "--quick and a part" refused 2 'PART, or --quick instead' quick ops
check "an --only that is no expression" refused 2 'argument --only: invalid' quick --only '('
check "the dry run" quick --dry-run
cp "$work/.check" "$work/dry"
planned() { # planned ROWS: the planned seconds of rows
  awk -v rows="^($1)$" '$2 == "s" && $3 ~ rows {sum += $1} END {print int(sum + 0.5)}' "$work/dry"
}
check "  is for 10 minutes" test "$(planned '[0-9]+')" -le 600
check "  of which rows 1 to 6 fit into a call" test "$(planned '[1-6]')" -gt 200 -a "$(planned '[1-6]')" -lt 450
check "  in the order of the rows" bash -c "awk '\$2 == \"s\" && \$3 ~ /^[0-9]+\$/ {print \$3}' '$work/dry' | sort -nc"
check "  with every row" test "$(awk '$2 == "s" && $3 ~ /^[0-9]+$/ {print $3}' "$work/dry" | uniq | wc -l)" = 10
check "  tests of convolutions are divided" has '2 conv2d_test, part 6 of 6$' "$work/dry"
check "  tests of the host are left out" bash -c "! grep -E 'simd_test|max_isa' '$work/dry'"
"$lockstep" gpu-info >"$work/gpu" 2>&1 || true
if grep -q '^No GPU' "$work/gpu"; then
  check "no GPU: one sentence" refused 1 '^check.py: this machine has no GPU that Lockstep can use: .+' quick
  check "  and nothing else" test "$(quick 2>&1 | wc -l)" = 1
fi

# ---- A device that works
rm "$build/lockstep"
make_stand_ins
make_mpirun
program "$work/bin/compute-sanitizer" <<'SH'
#!/usr/bin/env bash
echo "========= ERROR SUMMARY: 0 errors"
SH
program "$work/bin/torch-python" <<'SH'
#!/usr/bin/env bash
[[ $1 == -c ]] && { echo 2.15.0; exit; }
speed=samples
[[ $2 != *language* ]] || speed=tokens
echo "{\"${speed}_per_second\": 1000, \"median_step_seconds\": 0.25, \"memory_bytes\": 2000, \"torch\": \"2.15.0\"}"
SH
cat >"$REAL_SPANS" <<'JSON'
{"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
 "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "tie_word_embeddings": true}
JSON
# cuDNN's description of a device, and NVML
nvml=$(dirname "$(readlink -f "$lockstep")")/test/kernels/fake_nvml.so
[[ -e $nvml ]] || { echo "skipped: this build has no fake NVML (make with nvcc on PATH or CUDA_HOME)"; exit 77; }
ln -s "$nvml" "$work/lib/libnvidia-ml.so.1"
cat >"$work/cudnn.c" <<'C'
#include <stdint.h>
#include <string.h>
static const char kText[] = "{\"deviceName\": \"NVIDIA H200\"}";
const char* cudnnGetErrorString(int status) { return "an error"; }
int cudnnBackendCreateDescriptor(int kind, void** out) { *out = (void*)kText; return kind != 38; }
int cudnnBackendSetAttribute(void* of, int name, int type, int64_t n, const int32_t* value) { return name != 2700 || type != 23 || *value; }
int cudnnBackendFinalize(void* of) { return of != kText; }
int cudnnBackendGetAttribute(void* of, int name, int type, int64_t n, int64_t* size, char* out) {
  if (n) memcpy(out, kText, sizeof kText - 1);
  *size = sizeof kText - 1;
  return name != 2702 || type != 24;
}
C
gcc -w -shared -fPIC "$work/cudnn.c" -o "$work/lib/libcudnn.so.9" || { echo "skipped: there is no gcc"; exit 77; }
export LD_LIBRARY_PATH=$work/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

check "a call that is too short does what it can" refused 75 'minutes are up; rerun the command' quick --minutes 0.3
check "  beginning with the first row" entry '1 the device' passed
check "  which saves cuDNN's description" has '"deviceName": "NVIDIA H200"' "$results/quick/device_properties.json"
check "  and leaves the rest" bash -c "! grep -q '\"9 ' '$results/quick/results.jsonl'"
check "  there is a page already" has '^## Checks' "$results/quick/summary.md"
check "the next call does the rest" quick
check "  and nothing twice" bash -c "! grep passed '$results/quick/results.jsonl' | grep -o '\"item\": \"[^\"]*\"' | sort | uniq -d | grep ."
check "  tests run on the device alone" has '^kernels_test cuda none --gtest_brief=1 --gtest_filter=pool2d_test' "$FAKES/log"
check "  so do golden steps" has '^train_test cuda none .*LanguageGolden\*/qwen2_bf16_none' "$FAKES/log"
check "  outputs of commands are kept" has '^\$ .*train jobs/configs/' "$results/quick/outputs/1-ResNet-18-fp16-captured-and-uncaptured-steps-give-the-same-bits.txt"
check "  two ranks share the GPU" entry '8 NCCL, train.micro_batches: 2 ranks give the same bits as one' passed
check "  documents" entry '4 documents, bf16: captured and uncaptured steps give the same bits' passed 'the same bits'
check "  a rate" entry '5 ResNet-50, fp16, batch 256' passed '^100.0 ms, 2,560 images/s$'
check "  of PyTorch" entry '9 PyTorch, compile: Qwen2.5-0.5B, bf16, 16 x 1,024' passed '250.0 ms, 1,000 tokens/s'
page=$results/quick/summary.md
check "the page has each figure beside its floor and what is expected" has '^\| 5 ResNet-50, fp16, batch 256 \| passed \| 100.0 \| 17.1 \| 5.85 \| 32.5 \| 7,877 \| 2,560 images/s \| 8,500 \|  \| 1755 \|$' "$page"
check "  and ten classes of kernels" test "$(sed -n '/^## Classes/,/^## Checks/p' "$page" | grep -c '^| [RQS]')" = 10
check "  every class is in the trace" bash -c "! grep 'the trace has no' '$results/quick/results.jsonl'"
check "  every check" test "$(sed -n '/^## Checks/,$p' "$page" | grep -c '^| [0-9]')" = "$(grep -c ' s  [0-9]' "$work/dry")"

# ---- Devices that do not
rm -r "$results" "$FAKES"/log
export FAKE_HANGS=embedding_test FAKE_FAULT=glu_test
check "a check that hangs and one that fails" refused 1 '' quick --only '^(2 [ge]|8 .*agree)' --limit 4
check "  the kernel's error is reported" entry '2 glu_test' failed 'an illegal memory access was encountered'
check "  the check that hangs is ended" entry '2 embedding_test' failed 'did not end within'
check "  with SIGUSR2 first" has '^[0-9]+ kernels_test' "$FAKES/asked"
check "  and SIGKILL" bash -c "! kill -0 $(cut -d' ' -f1 "$FAKES/asked" | head -1)"
check "  and the next checks run" entry '8 NCCL, 2 ranks agree with one rank' passed
rm -r "$results" "$FAKES/hung"
check "a device that does not answer after that ends the call" with FAKE_LOST=1 \
  refused 75 'the device does not answer any more; rerun' quick --only '^(2 e|8 .*agree)' --limit 4
check "  without further checks" bash -c "! grep NCCL '$results/quick/results.jsonl'"
unset FAKE_HANGS FAKE_FAULT
rm -r "$results"
check "a throttled device" with FAKE_NVML_THROTTLES=1 refused 75 'some figures were rejected' quick --only '^(1 ResNet|5 ResNet)'
check "  its figures are rejected" entry '5 ResNet-50, fp16, batch 256' rejected '^the device was throttled \(power brake, too hot .hardware limit.\): 100.0 ms'
check "  other checks are not" entry '1 ResNet-18, fp16: captured and uncaptured steps give the same bits' passed
export DATA_WAIT=0.003
check "waiting for data, once more" refused 1 '' quick --only '^(1 ResNet|5 ResNet)'
check "  is a reason too" entry '5 ResNet-50, fp16, batch 256' rejected '^3.0 % of the time spent waiting for data: 100.0 ms'
unset DATA_WAIT

# ---- A signal
rm -r "$results"
touch "$FAKES/slow"
"$python" bench/gpu/check.py --quick --build "$build" --results "$results" --only '^2 ' >"$work/ended" 2>&1 &
ended=$!
others=$(($(awk '$2 == "s" && $3 == 2' "$work/dry" | wc -l) - 1)) # all but the slow one
while (($(grep -cE '^  2 .*: (passed|not run):' "$work/ended") < others)) && kill -0 $ended; do sleep 0.1; done
kill -TERM $ended
wait $ended
status=$?
check "a signal ends the call with 75" test $status = 75
check "  says how to resume" has '^ended by a signal; rerun the command for the 1 checks that are left$' "$work/ended"
check "  ends the running program" bash -c "! pgrep -f '$build/test/[k]ernels_test'"
check "  keeps the results" entry '2 glu_test' passed
finish
