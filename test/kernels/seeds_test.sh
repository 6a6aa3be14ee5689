#!/usr/bin/env bash
# Runs the CUDA kernels on the host with other orders of warps and lanes than the one that every test uses. This covers
# only kernels that share memory between the threads of a block, and only those whose tests are short.
source test/support/check.sh

tests=$(dirname "$lockstep")/test
grep -q '^kernels/cuda_on_host_test' "$tests/list" || { echo "skipped: $tests has no tests of a build with CUDA"; exit 77; }
for test in cuda_on_host cross_entropy hash image_input normalization_unit pool2d ordered_sum; do
  for seed in 2 3; do
    filter=$(awk -F'\t' -v name="kernels/${test}_test" '$1 == name {print $3}' "$tests/list")
    check "$test with seed $seed" env LOCKSTEP_CUDA_ON_HOST_SEED=$seed "$tests/kernels_test" --gtest_brief=1 \
      --gtest_filter="${filter:?$test is not a test}"
  done
done
finish
