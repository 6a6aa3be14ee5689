#!/usr/bin/env bash
# The last part of `make quickstart`: trains jobs/configs/quickstart.yaml, evaluates the best checkpoint, and prints a summary.
#   scripts/quickstart.sh [RANKS [KEY=VALUE...]]
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-2}
shift || true
lockstep=${LOCKSTEP:-build/lockstep}
config=jobs/configs/quickstart.yaml
launch=("${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$ranks")
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

run=runs/quickstart
for override in "$@"; do
  case $override in
    run.name=*) run=${run%/*}/${override#*=} ;;
    run.directory=*) run=${override#*=}/${run##*/} ;;
  esac
done

cat <<TEXT

Training ResNet-18 on $ranks ranks: 2,000 images of CIFAR-10, 6 epochs. This takes a few minutes on 2 cores.
  scripts/launch ${launch[*]} $lockstep train $config --fresh $*

TEXT
scripts/launch "${launch[@]}" "$lockstep" train "$config" "$@" --fresh

echo
echo "Evaluating the best checkpoint on the 500 test images."
"${launch[@]}" "$lockstep" evaluate "$config" "$@" --checkpoint "$run/checkpoints/best" --json="$run/evaluation.json"

# number FILE KEY: prints the first number with this key
number() { sed -n "s/.*\"$2\": *\([-+0-9.eE]*\).*/\1/p" "$1" | head -1; }
percent() { awk -v x="$1" 'BEGIN {printf "%.1f %%", 100 * x}'; }
cat <<TEXT

Done: $(number "$run/metrics.json" steps) steps, $(number "$run/metrics.json" samples) images in $(number "$run/metrics.json" seconds | awk '{printf "%.0f", $1}') s, $(number "$run/metrics.json" samples_per_second | awk '{printf "%.0f", $1}') images/s on $ranks ranks.
Best checkpoint: $(percent "$(number "$run/evaluation.json" accuracy)") of the test images are classified correctly, loss $(number "$run/evaluation.json" loss | awk '{printf "%.3f", $1}') (random guessing: 10 %, 2.303).
The files of the run are in $run/: log.txt, metrics.jsonl, checkpoints/, model.safetensors, tensorboard/.

What to try next
  make train OVERRIDES="train.epochs=12"                        resume the run and train twice as long
  make train RANKS=4 OVERRIDES="run.name=four --fresh"          the same training on 4 ranks
  $lockstep plan $config --ranks 8      memory and communication of a step on 8 ranks
  $lockstep help config                                      every configuration key with its default and meaning
  data/get_cifar10.sh && make train CONFIG=jobs/configs/resnet18_cifar10.yaml      all 50,000 images
TEXT
