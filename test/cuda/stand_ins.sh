# Stand-ins for the program, its tests, mpirun and compute-sanitizer, for tests of bench/gpu/check.py on a machine without
# a GPU. They print what the real ones print. To be sourced after check.sh; $build, $work, $REAL and $FAKES must be set.
program() { mkdir -p "$(dirname "$1")" && cat >"$1" && chmod 755 "$1"; }

list_tests() { # list_tests NAME...: as scripts/list-tests.sh does
  local name
  for name; do
    printf '%s\t%s_test\t%s.*\t-\t120\tno\tyes\t1\t-\ttest/%s.cpp\n' "$name" "${name%/*}" "${name##*/}" "$name"
  done >"$build/test/list"
}

# The program describes a GPU in the format of the real one, and checks the overrides of a training. FAKE_HANGS, FAKE_FAULT:
# regular expressions; a command whose arguments match hangs and ignores signals, or fails as a kernel does. FAKE_LOST: the
# device does not answer after that.
make_stand_ins() {
cat >"$FAKES/faults" <<'SH'
if [[ -n ${FAKE_HANGS:-} && $* =~ $FAKE_HANGS ]]; then
  touch "$FAKES/hung"
  trap "echo $$ ${0##*/} >>'$FAKES/asked'" USR2 TERM
  while true; do sleep 0.1; done
fi
[[ -z ${FAKE_FAULT:-} || ! $* =~ $FAKE_FAULT ]] || { echo 'CUDA: error 700 (an illegal memory access was encountered)'; exit 1; }
SH
program "$build/lockstep" <<'SH'
#!/usr/bin/env bash
source "$FAKES/faults"
case $1 in
  gpu-info)
    [[ -z ${FAKE_LOST:-} || ! -e $FAKES/hung ]] || exit 1
    "$REAL" gpu-info --json | python3 -c '
import json, os, sys
found = json.load(sys.stdin)
gpu = {"name": "NVIDIA H200 (imagined)", "memory_bytes": 150754820096, "pci_bus": "0000:18:00.0"}
found.update(usable=True, problem="", driver="580.1", gpus=[gpu], nccl=os.environ.get("NCCL_TEXT", "NCCL 2.30.7 (x)"))
print(json.dumps(found))' ;;
  train)
    shift
    steps=40
    for argument; do
      case $argument in
        run.directory=*) folder=${argument#*=} ;;
        run.name=*) name=${argument#*=} ;;
        train.max_steps=*) steps=${argument#*=} ;;
      esac
    done
    [[ $* != *comm.backend=nccl* ]] || set -- "$@" comm.backend=auto # the overrides are checked on a CPU
    "$REAL" plan "$@" device=cpu precision=fp32 >/dev/null || exit
    mkdir -p "$folder/$name/checkpoints"
    bits=same
    [[ $* == *precision=tf32*cuda.graph=false* || $* == *precision=bf16*cuda.weight_gradient_stream=on* ]] && bits=other
    echo $bits >"$folder/$name/checkpoints/step-8.h5"
    loss=2.5 seconds=0.1
    [[ $* == *device=cuda*precision=fp32* ]] && loss=2.5005
    [[ $* == *device=cuda*precision=bf16* ]] && loss=2.6
    [[ $* == *recompute=block* ]] && seconds=0.12
    [[ $* == *nccl_blocking=true* ]] && seconds=0.08
    [[ $* == *weight_gradient_stream=on* ]] && seconds=0.09
    [[ $* == *recompute=selective* ]] && seconds=0.101
    for ((step = 1; step <= steps; step++)); do
      echo "{\"event\": \"step\", \"loss\": $loss, \"step_seconds\": $seconds, \"data_wait_seconds\": ${DATA_WAIT:-0.001}, \"memory_bytes\": 1000$UTILIZATION}"
    done >"$folder/$name/metrics.jsonl"
    if [[ $* == *trace=true* && -n ${REAL_SPANS:-} ]]; then # the names of spans come from a training of a small network
      small=(model.width=16 data.image_size=32)
      [[ $* != *model.config=* ]] || small=("model.config=$REAL_SPANS" data.sequence_length=16)
      "$REAL" train "$@" device=cpu precision=fp32 cpu.threads=1 data.synthetic_samples=4 train.global_batch=2 \
        train.max_steps=4 "${small[@]}" run.name=real-spans >/dev/null || exit
      python3 - "$folder/real-spans/trace.json" >"$folder/$name/trace.json" <<'PYTHON'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
spans = [e for e in events if e.get("tid") == 0 and e.get("cat") in ("forward", "backward", "update") and e["name"] != e["cat"]]
row = {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "device"}}
print(json.dumps({"traceEvents": [row, *spans]}))
PYTHON
    elif [[ $* == *trace=true* ]]; then python3 - >"$folder/$name/trace.json" <<'PYTHON'
import json
events = [{"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}} for tid, name in enumerate(("main", "device"))]
for step in range(6):
    for tid in 0, 1:  # the spans of the host differ from those of the device
        for cat, name, us in (("forward", "conv1", 100), ("backward", "conv1", 200), ("forward", "fc", 20), ("update", "optimizer", 80)):
            events.append({"name": name, "cat": cat, "ph": "X", "pid": 0, "tid": tid, "ts": 0, "dur": us * (1 if tid else 9) + (step < 3)})
print(json.dumps({"traceEvents": events}))
PYTHON
    fi ;;
  plan)
    arguments=()
    for argument in "${@:2}"; do [[ $argument == device=cuda || $argument == --device || $argument == h200 ]] || arguments+=("$argument"); done
    # A build without CUDA does not know the H200.
    "$REAL" plan "${arguments[@]}" --device h200 2>/dev/null || exec "$REAL" plan "${arguments[@]}" device=cpu precision=fp32 ;;
  generate)
    if [[ $* == *--speed* ]]; then
      echo 'prefill: 512 tokens in 0.050 s, 10240.0 tokens/s; decoding: 256 tokens in 256 steps and 0.080 s, 3200.0 tokens/s'
    else
      arguments=()
      for argument in "${@:2}"; do [[ $argument == device=cuda || $argument == cuda.graph=* ]] || arguments+=("$argument"); done
      exec "$REAL" generate "${arguments[@]}" device=cpu
    fi ;;
  checkpoint) cmp "$3" "$4" ;;
  *) exec "$REAL" "$@" ;;
esac
SH
program "$build/test/kernels_test" <<'SH'
#!/usr/bin/env bash
source "$FAKES/faults"
echo "${0##*/} $LOCKSTEP_TEST_DEVICE $LOCKSTEP_CACHE $*" >>"$FAKES/log"
while [[ -e $FAKES/slow && $* == *=pool2d_test* ]]; do sleep 0.1; done
case "$*" in
  *=optimizer_test*) passed=7 skipped=2 ;;
  *=pool2d_test*) passed=3 skipped=0 ;;
  *=conv2d_test*) passed=0 skipped=9 ;;
  *) passed=1 skipped=0 ;;
esac
echo '[==========] 9 tests from 1 test suite ran. (1 ms total)'
[[ $* == *resnet* || $* == *LanguageGolden* || $* == *LoraGolden* ]] && echo "step  2: loss 2.1, fp64 2.0, apart 1.5e-03, PyTorch's 1.0e-03"
((passed)) && echo "[  PASSED  ] $passed tests."
((skipped)) && echo 'it needs another machine' && echo "[  SKIPPED ] $skipped tests."
exit 0
SH
cp "$build/test/kernels_test" "$build/test/train_test"
}

make_mpirun() {
program "$work/bin/mpirun" <<'SH'
#!/usr/bin/env bash
while [[ $1 == -* ]]; do case $1 in -n | --bind-to) shift 2 ;; *) shift ;; esac; done
[[ $NCCL_MULTI_RANK_GPU_ENABLE == 1 ]] && exec "$@"
SH
}

make_compute_sanitizer() {
program "$work/bin/compute-sanitizer" <<'SH'
#!/usr/bin/env bash
# --tool TOOL --error-exitcode 9 [--kernel-name FILTER] PROGRAM ...
echo "========= COMPUTE-SANITIZER"
[[ $2 == memcheck || "$5 $6" == "--kernel-name kns=lockstep" ]] || exit 1
case "$*" in
  *racecheck*pool2d*) echo "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"; exit "$4" ;;
  *racecheck*) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
  *pool2d*) echo "========= ERROR SUMMARY: 0 errors" ;;
  *) echo "========= Target application terminated before first instrumented API call" ;;
esac
SH
}
