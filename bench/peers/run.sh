#!/usr/bin/env bash
# Compares trainings with PyTorch, and measures the start-up time. About 1.5 hours.   bench/peers/run.sh BUILD [OPTION...]
# PYTHON is an interpreter with torch, torchvision, transformers and Pillow (default: python3).
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build}
shift || true
common=(--build "$build" --python "${PYTHON:-python3}" "$@")
for work in resnet18 resnet50; do
  for precision in fp32 bf16; do
    both=("${common[@]}" --work "$work" --precision "$precision")
    python3 bench/peers/run.py "${both[@]}" --name "${work}_$precision"
    python3 bench/peers/run.py "${both[@]}" --name "${work}_${precision}_one_rank" --ranks 1 --threads 2 --compile
  done
done
# The language model; with --rounds and others of both scripts in OPTION.
python3 bench/peers/language.py "${common[@]}" --name language_bf16
python3 bench/peers/language.py "${common[@]}" --name language_bf16_shard --overrides train.shard=optimizer
python3 bench/peers/language.py "${common[@]}" --name language_bf16_one_rank --ranks 1
# The loading of JPEG images. PHOTOS: a folder of photographs; otherwise images are generated. FFCV, PILLOW_SIMD: interpreters.
python3 bench/peers/loader_jpeg.py "${common[@]}" ${PHOTOS:+--photos "$PHOTOS"} ${FFCV:+--ffcv "$FFCV"} \
  ${PILLOW_SIMD:+--pillow-simd "$PILLOW_SIMD"}
python3 bench/peers/startup.py --build "$build" --python "${PYTHON:-python3}"
