#!/usr/bin/env bash
# timeout: 300
# From PNG files to predictions: a folder of PNG images is imported and trained on, and `predict` on the files agrees with
# `evaluate` on the data set. The same for grey images, which have one channel throughout.
source test/support/check.sh

# write_images FOLDER CHANNELS: 3 classes of 12 images of several sizes. Each class has its own stripes under noise.
write_images() {
  PYTHONPATH=test/support python3 - "$@" <<'PYTHON'
import os, random, sys
from png import png
folder, channels = sys.argv[1], int(sys.argv[2])
def image(height, width, value):
    return png([bytes(value(y, x, c) for x in range(width) for c in range(channels)) for y in range(height)], channels)
random.seed(1)
for k, name in enumerate(("ant", "bee", "a, \"fly\"")):
    os.makedirs(f"{folder}/{name}")
    for i in range(12):
        value = lambda y, x, c: (((y if k == 0 else x if k == 1 else x + y) // 4 % 2) * 120 + random.randrange(130)) % 256
        open(f"{folder}/{name}/{i}.png", "wb").write(image(20 + i % 3, 18 + i % 4, value))
PYTHON
}
# agree FOLDER EVALUATION PREDICTIONS: the accuracy of the predictions, whose classes are the folders, is that of the
# evaluation. Each prediction has five classes or all, in descending order; the probabilities of all classes sum up to
# 1.
agree() {
  python3 - "$@" <<'PYTHON'
import json, os, sys
folder, evaluation, predictions = sys.argv[1], *(json.load(open(name)) for name in sys.argv[2:])
found = predictions["predictions"]
assert len(found) == 36 and not predictions["skipped"], predictions
right = sum(os.path.basename(os.path.dirname(p["file"])) == p["class"] for p in found)
assert abs(right / len(found) - evaluation["accuracy"]) < 1e-12, (right, evaluation["accuracy"])
assert evaluation["accuracy"] > 0.4, "the model has learned nothing"
for p in found:
    values = [t["probability"] for t in p["top"]]
    assert values == sorted(values, reverse=True) and abs(sum(values) - 1) < 1e-9 and values[0] == p["probability"], p
PYTHON
}
prints() { refused 0 "$@"; }

for channels in 3 1; do
  images=$work/images$channels set=$work/set$channels.h5 run=$work/run$channels
  write_images "$images" $channels
  check "imports PNG images of $channels channel(s)" "$lockstep" data import imagefolder "$images" "$set"
  check "  and reports the channels" prints "\"channels\":$channels" "$lockstep" data info "$set" --json
  check "  and verify finds no damage" "$lockstep" data verify "$set"
  check "trains on them" "$lockstep" train jobs/configs/quickstart.yaml model.width=16 model.classes=3 data.train="$set" \
    data.validation="$set" data.image_size=16 data.augment=[flip] train.global_batch=12 train.epochs=6 cpu.threads=1 \
    optimizer.learning_rate=0.05 log.progress=false run.directory="$work" run.name="run$channels"
  check "evaluates" "$lockstep" evaluate "$run" --json="$work/evaluation.json"
  check "predicts a folder" "$lockstep" predict "$run" "$images" --json="$work/predictions.json"
  check "  as evaluate does" agree "$images" "$work/evaluation.json" "$work/predictions.json"
done

model=$work/run3/model.safetensors image=$work/images3/ant/0.png
check "predicts with a .safetensors file" prints 'ant/0.png +(ant|bee|a, "fly") +[0-9.]+%  .*%, .*%' "$lockstep" predict "$model" "$image"
check "predicts with a checkpoint" prints '0.png' "$lockstep" predict "$work/run3/checkpoints/latest" "$image" device=cpu
from_input() { echo "$image" | "$lockstep" predict "$model" - --csv; }
check "reads names from standard input and prints CSV" prints '^[^,]*ant/0.png,("a, ""fly"""|ant|bee),[0-9.]+,' from_input
to_file() { "$lockstep" predict "$model" "$work/images3/ant" --csv="$work/rows.csv" >"$work/printed" 2>&1; }
check "--csv=FILE writes the rows to the file" to_file
check "  all of them" bash -c "(( \$(wc -l <'$work/rows.csv') == 13 ))"
check "  and prints none" bash -c "grep -q 'rows.csv: 12 predictions' '$work/printed' && ! grep -q 'ant/' '$work/printed'"
check "other images are resized, whatever their size" prints 'jpg' bash -c \
  "tail -c +2 test/fuzz/corpus/jpeg/grey >$work/grey.jpg; $lockstep predict $model $work/grey.jpg"

head -c 100 "$image" >"$work/images3/bee/cut.png"
skips() { refused 1 'skipped: .*cut.png: Premature end of PNG file' "$lockstep" predict "$model" "$work/images3" "$work/none.png"; }
check "names and skips what it cannot read, and fails" skips
check "  also if it is missing" grep -q 'skipped: cannot open .*none.png: No such file' "$work/.refused"
check "  and predicts the others" grep -q 'ant/11.png' "$work/.refused"

# Folders and files without permission.
if obeys_permissions; then
  mkdir -p "$work/some/closed" "$work/some/open" "$work/none/closed"
  cp "$image" "$work/some/open/1.png"
  cp "$image" "$work/some/open/secret.png"
  cp "$image" "$work/some/closed/2.png"
  chmod -R a+rX "$work"
  chmod 000 "$work/some/closed" "$work/none/closed" "$work/some/open/secret.png"
  partly() { refused 1 'skipped: cannot list .*some/closed: Permission denied' unprivileged "$lockstep" predict "$model" "$work/some" --csv "$@"; }
  check "a folder without permission is named" partly
  check "  and so is a file" grep -q 'skipped: cannot open .*open/secret.png: Permission denied' "$work/.refused"
  check "  and the rest is predicted" grep -Eq '^[^,]*open/1.png,.*,[0-9.]+$' "$work/.refused"
  check "  if nothing is left, that is an error" refused 1 'cannot list .*none/closed: Permission denied' \
    unprivileged "$lockstep" predict "$model" "$work/none"
  check "  also of the folder itself" refused 1 'cannot list .*some/closed: Permission denied' \
    unprivileged "$lockstep" predict "$model" "$work/some/closed"
  check "  and of one inside of it" refused 1 'cannot open .*closed/2.png: Permission denied' \
    unprivileged "$lockstep" predict "$model" "$work/some/closed/2.png"
  check "an import names the folder too" refused 1 'cannot list .*some/closed: Permission denied' \
    unprivileged "$lockstep" data import imagefolder "$work/some" /tmp/lockstep-none.h5
  chmod -R u+rwX "$work/some" "$work/none"
fi

# Names that are not valid text.
latin=$work/$'caf\xe9.png'
cp "$image" "$latin"
check "a file whose name is not UTF-8 is predicted" "$lockstep" predict "$model" "$latin" --json="$work/latin.json"
check "  and JSON has a replacement" grep -q 'caf.*\.png"' "$work/latin.json"
mv "$work/images3/ant" "$work/images3/"$'caf\xe9'
check "a class whose name is not UTF-8 is not imported" refused 1 'caf.xe9: rename it' "$lockstep" data import imagefolder "$work/images3" "$work/latin.h5"
# A set as an earlier release imported it: in the file, a name is replaced by one of the same length, and the checksums
# are removed.
check "a set with such a name" python3 - "$work/set3.h5" "$work/old.h5" <<'PYTHON'
import sys
data = open(sys.argv[1], "rb").read()[4096:]  # without the user block
assert data.count(b"bee") == 1
open(sys.argv[2], "wb").write(data.replace(b"bee", b"b\xe9e"))
PYTHON
check "  is described" "$lockstep" data info "$work/old.h5" --json="$work/old.json"
check "  in valid JSON" python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["class_names"][2] == "b\ufffde"' "$work/old.json"
check "  is trained on" "$lockstep" train jobs/configs/quickstart.yaml model.width=16 model.classes=3 data.train="$work/old.h5" \
  data.validation="$work/old.h5" data.image_size=16 train.global_batch=12 train.max_steps=1 cpu.threads=1 log.progress=false \
  run.directory="$work" run.name=old
check "  and evaluated" prints 'accuracy' "$lockstep" evaluate "$work/old" --json="$work/evaluated.json"
check "a folder without images is refused" refused 2 'test/commands contains no images: expected .* in its subfolders' "$lockstep" predict "$model" test/commands
check "a folder that is no run is refused" refused 1 'expected the directory of a run' "$lockstep" predict "$work" "$image"
finish
