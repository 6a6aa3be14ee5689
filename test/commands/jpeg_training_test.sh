#!/usr/bin/env bash
# timeout: 300
# From JPEG files in a folder to a trained network: import, skipped files, training on random crops, stopping and
# resuming, and other sizes for evaluation.
source test/support/check.sh

# The images of the fuzzer's corpus, without the fuzzer's first byte: 9x7 in colour, 16x16 grey, 19x17 progressive.
for class in "a cat" dög; do
  mkdir -p "$work/in/$class"
  for i in 1 2 3 4; do
    for image in colour grey progressive; do
      tail -c +2 test/fuzz/corpus/jpeg/$image >"$work/in/$class/$image$i.jpg"
    done
  done
done
prints() { refused 0 "$@"; }
import() { "$lockstep" data import imagefolder "$work/in" "$work/set.h5" --force "$@"; }
check "imports a folder" import
check "  and reports how it is stored" prints 'of JPEG bytes .the images have several sizes' import
check "  and verify finds no damage" "$lockstep" data verify "$work/set.h5"
tail -c +2 test/fuzz/corpus/jpeg/cut >"$work/in/dög/cut.jpg"
echo text >"$work/in/dög/text.jpg"
check "bad images end the import" refused 1 'text.jpg: it is neither a JPEG nor a PNG file' import
check "  unless they are skipped" prints 'Skipped: 2' import --skip-bad
mkdir "$work/in/bad" && cp "$work/in/dög/text.jpg" "$work/in/bad"
check "  and a class without any other is named" prints 'warning: class bad has no image that can be decoded' import --skip-bad
rm -r "$work/in/bad"
import --skip-bad >/dev/null 2>&1

small=(jobs/configs/quickstart.yaml model.width=16 data.train="$work/set.h5" data.validation="$work/set.h5" data.image_size=8
  data.augment=[resized_crop,flip] train.global_batch=6 train.epochs=2 evaluation.every_epochs=2 cpu.threads=1
  log.progress=false run.directory="$work")
train() { mpirun --oversubscribe --bind-to none -n 2 "$lockstep" train "${small[@]}" "$@"; }
check "trains on the imported set" train run.name=whole
check "stops" train run.name=stopped train.max_steps=3
check "resumes" train run.name=stopped
check "with the same bits" cmp "$work"/{whole,stopped}/checkpoints/step-00000008.h5
check "images of several sizes need data.image_size" refused 2 'set data.image_size' train run.name=none data.image_size=0
check "crop and resized_crop exclude each other" refused 2 'not both' train run.name=none data.augment=[crop,resized_crop]
mv "$work/in/a cat" "$work/in/another cat"
check "imports a split with other classes" "$lockstep" data import imagefolder "$work/in" "$work/other.h5" --skip-bad
check "  which does not fit the train split" refused 2 "class 0 is 'a cat' in the first and 'another cat'" \
  train run.name=none data.validation="$work/other.h5"
check "synthetic images are cropped too" train run.name=synthetic data.train=synthetic train.max_steps=1
finish
