#!/usr/bin/env bash
# `make bench`: measures single ops, the loader with one and two readers, sums of two ranks, and whole steps in some minutes.      bench/run.sh BUILD
# LOCKSTEP_BENCH_THREADS (default 1) and LOCKSTEP_BENCH_DTYPE (default fp32) are the threads and the activation type of the
# single ops. The results of whole steps are written to BUILD/bench/results, not to the repository.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
for program in conv2d passes decoder images augment loader trace; do
  "$build/bench/micro/$program" --benchmark_min_time=0.2 --benchmark_counters_tabular=true
  echo
done
"${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n 2 "$build/bench/micro/reducer" --benchmark_counters_tabular=true \
  --benchmark_color=false  # mpirun gives its ranks a terminal, which would turn colours on
echo
python3 bench/macro/loader_decoded.py --build "$build" --rounds 1 --results "$build/bench/results"
echo
python3 bench/macro/steps.py --build "$build" --results "$build/bench/results"
