#!/usr/bin/env bash
# `make bench-check`: the speeds that we hold ourselves to, on a machine with nothing else to do. bench/check.sh BUILD
# PYTHON names the interpreter that has torch and torchvision (python3); without them the comparison is left out, aloud.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
exec python3 bench/check.py --build "${1:-build}" --python "${PYTHON:-python3}"
