#!/usr/bin/env bash
# `make bench`: single ops, the sums of two ranks, whole steps; some minutes.      bench/run.sh BUILD
# LOCKSTEP_BENCH_THREADS, LOCKSTEP_BENCH_DTYPE: threads of the single ops (1), and their activations (fp32). Whole steps
# go to BUILD/bench/results, not into the repository.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
for program in conv2d passes loader trace; do
  "$build/bench/micro/$program" --benchmark_min_time=0.2 --benchmark_counters_tabular=true
  echo
done
"${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n 2 "$build/bench/micro/reducer" --benchmark_counters_tabular=true \
  --benchmark_color=false  # mpirun lends ranks a terminal
echo
python3 bench/macro/steps.py --build "$build" --results "$build/bench/results"
