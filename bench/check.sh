#!/usr/bin/env bash
# `make bench-check`: checks the speeds that must not get worse, on an idle machine.     bench/check.sh BUILD
# PYTHON is an interpreter with torch and torchvision (default: python3). Without them, the comparison with PyTorch is
# skipped and reported as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
exec python3 bench/check.py --build "${1:-build}" --python "${PYTHON:-python3}"
