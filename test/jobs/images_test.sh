#!/usr/bin/env bash
# timeout: 120
# The configurations and job scripts of MNIST and Tiny ImageNet, reduced in size only with key=value: what a script starts is
# started here, on the CPU, from the files as they are distributed to the prediction.
source test/support/check.sh
check_output=$work/log
export LOCKSTEP_DATA=$work LOCKSTEP_RUNS=$work/runs
unset SLURM_JOB_ID SLURM_JOB_NAME LOCKSTEP_HOME
job() { # SCRIPT KEY=VALUE...
  local words
  mapfile -d '' -t words < <(OVERRIDES="${*:2}" LOCKSTEP_CHECK=yes bash "jobs/$1")
  [[ ${words[0]} == train ]] &&
    "${MPIRUN:-mpirun}" --oversubscribe --bind-to none -n 2 "$lockstep" "${words[@]}" >"$work/log" 2>&1
}
prints() { check "$1" grep -Eq -- "$2" "$work/log"; }
small=(device=cpu cpu.threads=1 log.progress=false log.tensorboard=false model.width=16 comm.watchdog_seconds=120)

# A mirror of MNIST, with a random pattern per digit.
PYTHONPATH=test/support python3 - "$work" <<'PYTHON'
import gzip, pathlib, random, struct, sys
from png import png
work = pathlib.Path(sys.argv[1])
random.seed(1)
(work / "mirror").mkdir()
patterns = [[random.randrange(2) for _ in range(49)] for _ in range(10)]
def rows(label):
    top, left = random.randrange(8), random.randrange(8)
    return [bytes(random.randrange(150, 256) if 0 <= row - top < 21 and 0 <= column - left < 21 and
                  patterns[label][(row - top) // 3 * 7 + (column - left) // 3] else 0 for column in range(28)) for row in range(28)]
for split, n in (("train", 600), ("t10k", 100)):
    labels = bytes(i % 10 for i in range(n))
    pixels = b"".join(row for label in labels for row in rows(label))
    for name, dims, values in (("images-idx3", (n, 28, 28), pixels), ("labels-idx1", (n,), labels)):
        head = bytes([0, 0, 8, len(dims)]) + b"".join(struct.pack(">I", dim) for dim in dims)
        (work / f"mirror/{split}-{name}-ubyte.gz").write_bytes(gzip.compress(head + values))
(work / "five.png").write_bytes(png(rows(5), 1))
for split in ("train", "val"):
    for k, wnid in enumerate(("n01", "n02")):
        folder = work / "tiny" / split / wnid
        folder.mkdir(parents=True)
        for i in range(8):
            (folder / f"{i}.png").write_bytes(png([bytes(random.randrange(100 * k, 100 * k + 150) for _ in range(192))] * 64))
PYTHON
# The script, with the sums of these files.
mkdir "$work/data"
awk 'FNR == NR {sum[$2] = $1; next} /^fetch / {$3 = sum[$2]} {print}' <(cd "$work/mirror" && sha256sum ./* | sed 's#\./##') \
  data/get_mnist.sh >"$work/data/get_mnist.sh"
get() { LOCKSTEP=$lockstep MNIST_URL=file://$work/mirror bash "$work/data/get_mnist.sh" "$@"; }
check "get_mnist.sh downloads and converts" get "$work/mnist"
check "  and keeps what there is" bash -c "$(declare -f get); lockstep='$lockstep' work='$work'; mv '$work/mirror' '$work/moved' && get '$work/mnist'"
check "  refuses other files" refused 1 'train-images-idx3-ubyte.gz has sha256 .*, expected 440fcabf' \
  env LOCKSTEP="$lockstep" MNIST_URL="file://$work/moved" data/get_mnist.sh "$work/other"

mnist=(data.train="$work/mnist/mnist_train.h5" data.validation="$work/mnist/mnist_test.h5")
check "mnist.yaml" job mnist_1gpu.sh "${small[@]}" "${mnist[@]}" train.global_batch=32 train.epochs=4
prints "  learns from images with one channel" 'Epoch \[4/4\].* Accuracy \(train, val\): [0-9.]+%, (100|9[0-9])'
run=$LOCKSTEP_RUNS/mnist-1gpu
check "  predicts" bash -c "'$lockstep' predict '$run' '$work/five.png' --csv 2>&1 | tee '$work/predicted' | grep -q five.png"
check "  the right digit" grep -Eq '\b5\b' "$work/predicted"
check "  is exported for ONNX" "$lockstep" checkpoint export "$run/checkpoints/latest" "$work/mnist.onnx"

import() { "$lockstep" data import tiny-imagenet "$work/tiny" "$work/tiny-imagenet/$1.h5" --split "$1" "${@:2}"; }
mkdir "$work/tiny-imagenet"
check "imports a sorted Tiny ImageNet" import train
check "  and its validation images" import val --statistics-from "$work/tiny-imagenet/train.h5"
check "resnet50_tinyimagenet.yaml" job resnet50_tinyimagenet.sh "${small[@]}" model.classes=2 train.batch_per_rank=4 train.epochs=1
prints "  with the rate of the job" 'LR: 0\.00100'
prints "  and images of 64 x 64" 'samples of 64x64x3'
finish
