#!/usr/bin/env bash
# timeout: 120
# make has rules for everything that the commands of README.md need, in a build folder that does not exist yet.
source test/support/check.sh

plan() { make --no-print-directory --dry-run "$@" BUILD="$work/build"; }
check "make" plan
check "make quickstart" plan quickstart
check "make tests" plan tests
check "make benches" plan benches
# A second Make builds the tests. If both ran at once, they would write the same objects.
is_after() { plan --print-data-base "$1" "$2" 2>/dev/null | grep -E "^$2: .*\|.* ?$1( |$)" >/dev/null; }
check "the tests are built after all other goals" is_after all tests
check "  and run after them" is_after benches test
check "make install" plan install PREFIX="$work/prefix"
finish
