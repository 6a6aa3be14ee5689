#!/usr/bin/env bash
# The kernels of SGD and AdamW fuse no product with a sum, according to their PTX: train.offload=optimizer gives the same
# bits on the host. The compiler may still fuse a product whose rounding is not written as .rn.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${LOCKSTEP:?the path of the program; its build has kernels/cuda/optimizer.cu}
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
[[ -x $nvcc ]] || nvcc=$(command -v nvcc) || { echo "skipped: no nvcc"; exit 77; }
"$nvcc" -std=c++20 --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1 -ptx -O3 -I. -Iinclude -Isrc \
  -I"${build%/lockstep}/generated" -o - kernels/cuda/optimizer.cu | awk '
  /\.entry / { is_checked = /[0-9](sgd|adamw)I/; n += is_checked; delete products }
  !is_checked { next }
  { gsub(/[,;]/, "") }
  $1 ~ /^fma\./ { print "fused: " $0; bad++ }
  $1 ~ /^mul\.(ftz\.)?f(32|64)$/ { products[$2] = 1 }
  $1 ~ /^(add|sub)\..*f(32|64)$/ && ($3 in products || $4 in products) { print "may be fused: " $0; bad++ }
  END {
    printf "%d kernels, %d sums with products that are fused\n", n, bad
    exit n < 6 || bad > 0
  }'
