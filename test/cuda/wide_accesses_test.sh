#!/usr/bin/env bash
# The kernels of language models that only move memory load and store 16 bytes at once, according to cuobjdump: nvcc
# splits some of these accesses into narrower ones.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${LOCKSTEP:?the path of the program; kernels/cuda is next to it}
cuobjdump=${CUDA_HOME:-/usr/local/cuda}/bin/cuobjdump
for installed in .deps/python/lib/python3*/site-packages/nvidia/cu*/bin/cuobjdump; do # by make deps-test
  [[ -x $cuobjdump || ! -x $installed ]] || cuobjdump=$installed PATH=${installed%/*}:$PATH
done
[[ -x $cuobjdump ]] || cuobjdump=$(command -v cuobjdump) || { echo "skipped: no cuobjdump"; exit 77; }
kernels="rms_norm_forward rms_norm_backward rotary_rows rotary_norm_backward glu_forward glu_backward add_rows"
mapfile -t objects < <(find "${build%/lockstep}"/{,units/}kernels/cuda -name "*.cu.o" 2>/dev/null | sort)
mapfile -t objects < <(for object in "${objects[@]}"; do grep -qaE "${kernels// /|}" "$object" && echo "$object"; done)
if ((${#objects[@]} == 0)); then
  echo "skipped: this build has no CUDA (make with nvcc on PATH or CUDA_HOME)"
  exit 77
fi

# A kernel is NAME<[function,] TYPE, VECTOR[, ...]>, mangled: 16rms_norm_forwardI6__halfLi8EE. A vector of one number is
# for rows that are not aligned. Those that also write sums have narrow stores of fp32, and the forward norm one.
for object in "${objects[@]}"; do "$cuobjdump" -sass "$object"; done | awk -v kernels="$kernels" '
  BEGIN { n_kernels = split(kernels, names, " ") }
  function check() {
    if (kernel == "") return
    n_found[kernel]++
    sums = kernel ~ /_backward$|add_rows/ && kernel != "glu_backward"
    if (wide_loads == 0 || (wide_stores == 0 && kernel != "add_rows") || halves > 0 || (narrow_stores > 1 && !sums)) {
      printf "%s: %d loads and %d stores of 16 bytes, %d of 2 bytes, %d narrow stores\n",
             name, wide_loads, wide_stores, halves, narrow_stores
      bad++
    }
  }
  /Function : / {
    check()
    kernel = ""; name = $NF; wide_loads = wide_stores = narrow_stores = halves = 0
    for (i = 1; i <= n_kernels; i++) if (name ~ "[0-9]" names[i] "I.*Li[48]E") kernel = names[i]
  }
  / (LDG|STG)\.E/ {
    if (/\.128/) { if (/LDG/) wide_loads++; else wide_stores++ }
    else if (/\.[US](8|16)/) halves++
    else if (/STG/) narrow_stores++
  }
  END {
    check()
    for (i = 1; i <= n_kernels; i++) {
      if (n_found[names[i]] == 0) { print "no kernel of this name: " names[i]; bad++ }
      total += n_found[names[i]]
    }
    printf "%d kernels, %d with narrow accesses\n", total, bad
    exit bad > 0
  }'
