#!/usr/bin/env bash
# scripts/bundle.sh replaces an older bundle and nothing else.
source test/support/check.sh
mkdir "$work/mine" && echo gold >"$work/mine/thesis.txt"
build=$(dirname "$lockstep")
check "no arguments" refused 2 'usage: scripts/bundle.sh BUILD FOLDER' scripts/bundle.sh
check "an empty name" refused 2 'usage' scripts/bundle.sh "$build" ""
check "no build" refused 1 'contains no program' scripts/bundle.sh "$work/nosuch" "$work/new"
check "no Open MPI" refused 1 'there is no /nosuch/mpirun' env MPIRUN=/nosuch/mpirun scripts/bundle.sh "$build" "$work/new"
check "a folder that is not a bundle" refused 1 'exists and is not a bundle' scripts/bundle.sh "$build" "$work/mine"
check "  nor a file" refused 1 'exists and is not a bundle' scripts/bundle.sh "$build" "$work/mine/thesis.txt"
check "  keeps what it holds" grep -q gold "$work/mine/thesis.txt"
finish
