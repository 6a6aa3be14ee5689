#!/usr/bin/env bash
# timeout: 120
# make has rules for everything that the commands of README.md need, in a build folder that does not exist yet.
source test/support/check.sh

plan() { make --no-print-directory --dry-run "$@" BUILD="$work/build"; }
check "make" plan
check "make quickstart" plan quickstart
check "make tests" plan tests
check "make benches" plan benches
check "make install" plan install PREFIX="$work/prefix"
finish
