#!/usr/bin/env bash
# lockstep gpu-info: the number of GPUs; one sentence and exit status 1 without a GPU; with one, the GPU and its libraries.
. test/support/check.sh

"$lockstep" gpu-info >"$work/text" 2>"$work/errors"
status=$?
"$lockstep" gpu-info --json >"$work/json" 2>/dev/null
check "one JSON object" python3 -c "
import json, sys
o = json.load(open('$work/json'))
assert o['usable'] == ($status == 0), o
assert bool(o['gpus']) or o['problem'], o
assert len(o['reaches']) == len(o['gpus'])"
check "the number of GPUs comes first" test "$(head -1 "$work/text")" = \
  "Number of GPUs: $(python3 -c "import json; print(len(json.load(open('$work/json'))['gpus']))")"
if grep -q '^GPU 0: ' "$work/text"; then
  check "names the driver" grep -q '^NVIDIA driver' "$work/text"
  check "names the GPU" grep -Eq '^  compute capability [0-9.]+, [0-9]+ multiprocessors at up to [0-9]+ MHz' "$work/text"
  check "names cuDNN" grep -q '^cuDNN ' "$work/text"
  check "names NCCL" grep -q 'NCCL' "$work/text"
else
  check "exit status 1" test "$status" = 1
  check "one sentence" grep -Exq 'No GPU can be used: .*\.' "$work/text"
  check "and no more" test "$(wc -l <"$work/text")" = 2
fi
# With the shared library of the CUDA runtime, which cudnn-frontend opens, hidden.
hide=${lockstep%/lockstep}/test/kernels/hidden_library.so
hidden() { env LD_AUDIT="$hide" HIDDEN_LIBRARY=libcudart.so "$@"; }
if [[ -e $hide ]]; then
  hidden "$lockstep" gpu-info --json >"$work/hidden" 2>/dev/null
  check "exit status 1 without the CUDA runtime" test $? = 1
  check "  and names the library" python3 -c "
import json
library = json.load(open('$work/hidden'))['libraries']['CUDA runtime']
assert not library['version'] and library['problem'].startswith('libcudart.so.'), library"
fi
check "nothing on standard error" test ! -s "$work/errors"
check "device=cuda is refused in a sentence, or works" bash -c \
  "'$lockstep' plan data.train=synthetic device=cuda 2>&1 | grep -Eq 'use device=cpu|Memory per rank|set device=cpu|not written for cuda'"
check "device=auto works without a GPU" bash -c \
  "[[ $status == 0 ]] || '$lockstep' plan data.train=synthetic device=auto | grep -q 'Memory per rank'"
if ((status)); then
  cd "$work" || exit 1
  check "  and training reports why" bash -c \
    "'$lockstep' train data.train=synthetic data.synthetic_samples=8 train.global_batch=8 train.max_steps=1 2>&1 | grep -q 'device: CPU, since this '"
fi
finish
