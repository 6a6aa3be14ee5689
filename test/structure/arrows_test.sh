#!/usr/bin/env bash
# The rules for includes between folders hold, and scripts/check-arrows.sh detects each kind of violation.
set -euo pipefail
scripts/check-arrows.sh

breach() { # FILE INCLUDE: the check must name the file
  local root=$TMPDIR/breach
  rm -rf "$root"
  mkdir -p "$root"/{include/lockstep,kernels/cpu,"$(dirname "$1")"}
  mkdir -p "$root/src" "$root/$(dirname "$1")"
  echo "#include $2" >"$root/$1"
  if scripts/check-arrows.sh "$root" >"$TMPDIR/out"; then
    echo "check-arrows.sh did not report that $1 includes $2"
    exit 1
  fi
  grep -q "^$1:1:" "$TMPDIR/out"
}
breach src/graph/graph.cpp '"layers/layers.h"'
breach src/layers/linear.cpp '"train/trainer.h"'
breach src/data/loader.cpp '"comm/world.h"'
breach src/base/log.cpp '"config/parser.h"'
breach src/text/tokenizer.cpp '"data/loader.h"'
breach src/models/family.cpp '"text/tokenizer.h"'
breach src/text/tokenizer.cpp '<pcre2.h>'
breach src/train/trainer.cpp '"commands/commands.h"'
breach src/train/trainer.cpp '"kernels/cpu/backend.h"'
breach src/train/trainer.cpp '<mpi.h>'
breach src/comm/world.cpp '<hdf5.h>'
breach src/train/plan.cpp '<oneapi/dnnl/dnnl.hpp>'
breach src/commands/train.cpp '<yaml-cpp/yaml.h>'
breach src/config/parser.cpp '<CLI/CLI.hpp>'
breach kernels/cpu/conv2d.cpp '"base/file.h"'
breach kernels/cpu/base/amx.h '"kernels/cpu/conv2d.h"'
breach include/lockstep/op.h '"graph/graph.h"'
breach include/lockstep/op.h '<dnnl.hpp>'
breach kernels/cpu/matmul.cpp '<dnnl.hpp>'

# An op that only one backend has is reported, and an op that both have is not.
root=$TMPDIR/twins
mkdir -p "$root"/{include,src,kernels/{cpu,cuda}}
touch "$root"/kernels/cpu/pool2d.cpp "$root"/kernels/cuda/{pool2d.cu,pool2d_plan.cpp}
echo '#include "lockstep/op.h"' >"$root/src/main.cpp"
scripts/check-arrows.sh "$root"
touch "$root"/kernels/cuda/attention.cu
if scripts/check-arrows.sh "$root" >"$TMPDIR/out"; then
  echo "check-arrows.sh did not report an op that only one backend has"
  exit 1
fi
grep -q "^kernels/cuda/attention.cu:" "$TMPDIR/out"
