#!/usr/bin/env bash
# timeout: 300
# Builds the cuDNN plans of all convolutions of ResNet-18 and ResNet-50, and of the attention of SmolLM-135M,
# Qwen2-0.5B and Gemma 3 270M, for an H200, on a machine without a GPU, and of one attention over documents for GPUs of
# compute capability 8.0, 8.9, 10.0 and 12.0, and compares the graphs that they use with
# test/golden/cuda_plans_VERSION.txt.
# After an intended change, update the file with
#   make test-plans GOLDEN=1
# PLANS=all (make test-plans) builds every plan instead of one of each kind. GOLDEN=1 writes the table.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() { echo "skipped: $1"; exit 77; }
plans=${LOCKSTEP:?the path of the program; test/cuda/plans is next to it}
plans=${plans%/lockstep}/test/cuda/plans
[[ -x $plans ]] || skip "this build has no CUDA (make with nvcc on PATH or CUDA_HOME)"
cuda=${CUDA_HOME:-$(nvcc=$(command -v nvcc) && dirname "$(dirname "$nvcc")")} || skip "there is no CUDA toolkit"
stub=$cuda/lib64/stubs/libcuda.so
[[ -e $stub ]] || skip "the CUDA toolkit has no $stub"

work=$(mktemp -d "${TMPDIR:-/tmp}/plans.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The fake driver: the functions of driver.c, and a stub that returns "stub library" for all others.
cp test/cuda/driver.c "$work/driver.c"
grep -oE '^int cu[A-Za-z0-9_]+' test/cuda/driver.c | cut -d' ' -f2 | sort >"$work/answered"
nm -D --defined-only "$stub" | awk '$3 ~ /^cu/ {print $3}' | sort | comm -23 - "$work/answered" |
  sed 's/.*/int &(void) { return 34; }/' >>"$work/driver.c"
gcc -w -shared -fPIC -Wl,-soname,libcuda.so.1 "$work/driver.c" -o "$work/libcuda.so.1"
runtime=$(basename "$(find "$cuda/lib64/" -name 'libcudart.so.[0-9]*' | sort | head -1)")
gcc -w -shared -fPIC -I"$cuda/include" -Wl,-soname,"$runtime" test/cuda/runtime.c -o "$work/$runtime"
export LD_LIBRARY_PATH=$work${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

status=0
version=$("$plans" test/cuda/h200_device_properties.json --version) || status=$?
if [[ $status == 77 ]]; then skip "cuDNN cannot be loaded"; elif [[ $status != 0 ]]; then exit 1; fi
# With the runtime hidden, the message names it, whatever is being planned.
hide=${LOCKSTEP%/lockstep}/test/kernels/hidden_library.so
if env LD_AUDIT="$hide" HIDDEN_LIBRARY=libcudart.so "$plans" test/cuda/h200_device_properties.json --version \
  >"$work/hidden" 2>&1 || ! grep -q 'the CUDA runtime is needed on a GPU, and libcudart.so.[0-9]* could not be' "$work/hidden"
then
  echo "without libcudart.so:" && cat "$work/hidden"
  exit 1
fi
golden=test/golden/cuda_plans_${version%.*}.txt
"$plans" test/cuda/h200_device_properties.json ${PLANS:+--"$PLANS"} >"$work/table"
# On other GPUs, attention. NVIDIA publishes these properties; the others do not matter for plans.
while read -r capability multiprocessors shared_bytes name; do
  sed -E "s/(\"(deviceVer|smVersion)\": )[0-9]+/\1${capability}/; s/(\"multiProcessorCount\": )[0-9]+/\1${multiprocessors}/
    s/(\"maxSharedMemoryPerBlockOptin\": )[0-9]+/\1${shared_bytes}/; s/NVIDIA H200/$name/" \
    test/cuda/h200_device_properties.json >"$work/device.json"
  "$plans" "$work/device.json" --attention >>"$work/table"
done <<'DEVICES'
800 108 166912 NVIDIA A100-SXM4-80GB
890 128 101376 NVIDIA GeForce RTX 4090
1000 148 232448 NVIDIA B200
1100 20 232448 NVIDIA Thor
1200 170 101376 NVIDIA GeForce RTX 5090
DEVICES
if [[ ${GOLDEN:-} == 1 ]]; then
  cp "$work/table" "$golden"
  echo "wrote $golden"
  exit 0
fi
[[ -e $golden ]] || skip "there is no table of cuDNN ${version%.*} yet: make test-plans GOLDEN=1 writes $golden"
diff -u "$golden" "$work/table"
echo "$(grep -c '^[a-z]' "$golden") convolutions and attentions have the graphs of $golden"
