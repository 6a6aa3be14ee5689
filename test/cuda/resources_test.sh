#!/usr/bin/env bash
# No kernel spills registers or has an array in local memory, according to the output of ptxas (*.resources beside the
# objects).
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${LOCKSTEP:?the path of the program; kernels/cuda is next to it}
shopt -s nullglob
mapfile -t resources < <(find "${build%/lockstep}"/{,units/}kernels/cuda -name "*.resources" | sort)
if ((${#resources[@]} == 0)); then
  echo "skipped: this build has no CUDA (make with nvcc on PATH or CUDA_HOME)"
  exit 77
fi

# The lines have this format: Compiling entry function 'NAME' for 'sm_90' / 0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
awk '
  /Compiling entry function/ { kernel = $0; sub(/^[^\x27]*/, "", kernel); n++ }
  /bytes spill stores/ {
    spills = $0; sub(/^ */, "", spills)
    if (spills !~ /^0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/) { printf "%s: %s: %s\n", FILENAME, kernel, spills; bad++ }
  }
  END {
    if (n == 0) { print "no kernel in these files: does nvcc run with -Xptxas -v?"; exit 1 }
    printf "%d kernels, %d with memory of their own\n", n, bad
    exit bad > 0
  }' "${resources[@]}"
