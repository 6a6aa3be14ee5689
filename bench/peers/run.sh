#!/usr/bin/env bash
# The same training here and in PyTorch, then the time from launch to training.      bench/peers/run.sh BUILD [OPTION...]
# PYTHON names the interpreter that has torch and torchvision (python3).
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build}
shift || true
python=${PYTHON:-python3}
python3 bench/peers/run.py --build "$build" --python "$python" "$@"
python3 bench/peers/startup.py --build "$build" --python "$python"
