#!/usr/bin/env bash
# Every test of every program is run: the filters of test/list select all of them.
source test/support/check.sh
programs=${lockstep%/lockstep}/test
tests() { "$programs/$1" --gtest_list_tests --gtest_filter="$2" | sed 's/ *#.*//'; }
while read -r program; do
  filters=$(awk -F'\t' -v program="$program" '$2 == program {print $3}' "$programs/list" | paste -sd:)
  check "$program" diff <(tests "$program" '*') <(tests "$program" "$filters")
done < <(awk -F'\t' '$2 != "-" && $2 !~ /emulated_amx/ {print $2}' "$programs/list" | sort -u) # which has tests of kernels_test
finish
