#!/usr/bin/env bash
# LOCKSTEP_TEST_DEVICE selects the backends on which the tests of ops run.
source test/support/check.sh

tests=$(dirname "$lockstep")/test
[[ -x $tests/kernels_test ]] || { echo "skipped: $tests has no kernels_test"; exit 77; }
# on DEVICE FILTER PATTERN: the tests pass, and the last lines match
on() {
  LOCKSTEP_TEST_DEVICE=$1 "$tests/kernels_test" --gtest_brief=1 --gtest_filter="$2" >"$work/out" 2>&1 && cat "$work/out" &&
    grep -Eq "$3" "$work/out"
}
check "on the cpu alone" on cpu 'TestedBackends.*' 'PASSED  \] 1 test'
check "  with its own tests" on cpu 'RmsNorm.SameBits*' 'PASSED  \] 1 test'
if grep -q '^kernels/cuda_on_host_test' "$tests/list"; then
  check "on the emulated kernels alone" on host 'TestedBackends.*' 'PASSED  \] 1 test'
  check "  without the tests of the cpu" on host 'RmsNorm.SameBits*:Optimizer.SameBits*' 'SKIPPED \] 2 tests'
  if "$lockstep" gpu-info 2>&1 | grep -q '^No GPU'; then
    check "a GPU that is missing is not passed over" bash -c "! LOCKSTEP_TEST_DEVICE=cuda '$tests/kernels_test' --gtest_filter='Glu.*'"
  fi
fi
finish
