#!/usr/bin/env bash
# `make bench`: single ops, the all-reduce of two ranks, whole steps; a minute or two.      bench/run.sh BUILD
# LOCKSTEP_BENCH_THREADS: threads of the single ops (1). Whole steps go to BUILD/bench/results, not into the repository.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
for program in conv2d passes loader trace; do
  "$build/bench/micro/$program" --benchmark_min_time=0.2
  echo
done
"${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n 2 "$build/bench/micro/all_reduce"
echo
python3 bench/macro/steps.py --build "$build" --results "$build/bench/results"
