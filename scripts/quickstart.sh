#!/usr/bin/env bash
# The last part of `make quickstart`: trains a small model, evaluates the best checkpoint, and prints a summary.
#   [MODEL=image|text] scripts/quickstart.sh [RANKS [KEY=VALUE...]]
# image: jobs/configs/quickstart.yaml; text: jobs/configs/gpt_small_shakespeare.yaml
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-2}
shift || true
lockstep=${LOCKSTEP:-build/lockstep}
case ${MODEL:-image} in
  image)
    config=jobs/configs/quickstart.yaml run=runs/quickstart counted=samples unit=images longer=12 on="the 500 test images"
    title="ResNet-18 on $ranks ranks: 2,000 images of CIFAR-10, 6 epochs"
    next="data/get_cifar10.sh && make train CONFIG=jobs/configs/resnet18_cifar10.yaml      all 50,000 images"
    ;;
  text)
    config=jobs/configs/gpt_small_shakespeare.yaml run=runs/gpt-small-shakespeare counted=tokens unit=tokens longer=8 on="the last tenth of the text"
    title="a language model of 1.8 million parameters on $ranks ranks: 411,269 tokens of Shakespeare, 4 epochs"
    next=
    ;;
  *)
    echo "quickstart: MODEL=$MODEL: expected image or text" >&2
    exit 2
    ;;
esac
launch=("${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n "$ranks")
if [[ $(id -u) == 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

for override in "$@"; do
  case $override in
    run.name=*) run=${run%/*}/${override#*=} ;;
    run.directory=*) run=${override#*=}/${run##*/} ;;
  esac
done

next=${next:-"$lockstep checkpoint export $run/checkpoints/best gpt-small      a directory that transformers loads"}

cat <<TEXT

Training $title. This takes a few minutes on 2 cores.
  scripts/launch ${launch[*]} $lockstep train $config --fresh $*

TEXT
scripts/launch "${launch[@]}" "$lockstep" train "$config" "$@" --fresh

echo
echo "Evaluating the best checkpoint on $on."
"${launch[@]}" "$lockstep" evaluate "$config" "$@" --checkpoint "$run/checkpoints/best" --json="$run/evaluation.json"

# number FILE KEY: prints the first number with this key
number() { sed -n "s/.*\"$2\": *\([-+0-9.eE]*\).*/\1/p" "$1" | head -1; }
percent() { awk -v x="$1" 'BEGIN {printf "%.1f %%", 100 * x}'; }
result() {
  local loss
  loss=$(number "$run/evaluation.json" loss)
  if [[ $unit == images ]]; then
    echo "$(percent "$(number "$run/evaluation.json" accuracy)") of the test images are classified correctly, loss $(printf %.3f "$loss") (random guessing: 10 %, 2.303)."
  else
    echo "loss $(printf %.3f "$loss") per token, perplexity $(printf %.1f "$(number "$run/evaluation.json" perplexity)") (random guessing: 6.931, 1024)."
  fi
}
cat <<TEXT

Done: $(number "$run/metrics.json" steps) steps, $(number "$run/metrics.json" $counted) $unit in $(number "$run/metrics.json" seconds | awk '{printf "%.0f", $1}') s on $ranks ranks.
Best checkpoint: $(result)
The files of the run are in $run/: log.txt, metrics.jsonl, checkpoints/, the trained model, tensorboard/.

What to try next
  make train CONFIG=$config OVERRIDES="train.epochs=$longer"      resume the run and train twice as long
  make train CONFIG=$config RANKS=4 OVERRIDES="run.name=four --fresh"      the same training on 4 ranks
  $lockstep plan $config --ranks 8      memory and communication of a step on 8 ranks
  $lockstep help config                                      every configuration key with its default and meaning
  $next
TEXT
