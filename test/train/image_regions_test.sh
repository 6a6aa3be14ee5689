#!/usr/bin/env bash
# timeout: 600
# Decoded images of several sizes, whose regions are resized by the op image_input: the bits are the same on any number
# of ranks and readers, as when reader threads resize the images, and in a run that is stopped and resumed.
source test/support/check.sh

# The images of the fuzzer's corpus, without the fuzzer's first byte: 9x7 in colour, 16x16 grey, 19x17 progressive.
for class in cat dog; do
  mkdir -p "$work/in/$class"
  for i in 1 2 3 4; do
    for image in colour grey progressive; do
      tail -c +2 test/fuzz/corpus/jpeg/$image >"$work/in/$class/$image$i.jpg"
    done
  done
done
import() { "$lockstep" data import imagefolder "$work/in" "$@"; }
prints() { refused 0 "$@"; }
check "images of several sizes cannot be stored decoded as they are" refused 2 'add --short-side' \
  import "$work/none.h5" --store decoded
check "nor resized and encoded" refused 2 'use --store decoded' import "$work/none.h5" --store encoded --short-side 8
check "imports a folder, shrunk" prints 'decoded, with a shorter side of at most 8 pixels' \
  import "$work/small.h5" --store decoded --short-side 8
check "  and info describes it" prints '24 decoded images, heights [78] to [89], widths [78] to [89]' "$lockstep" data info "$work/small.h5"
check "  and verify finds no damage" "$lockstep" data verify "$work/small.h5"
check "imports a folder whose images are smaller than the short side" import "$work/whole.h5" --store decoded --short-side 64
check "imports the same as the bytes of the files" import "$work/jpeg.h5"

small=(jobs/configs/quickstart.yaml model.width=16 data.image_size=8 data.augment=[resized_crop,flip] data.crop_padding=2
  train.global_batch=8 train.epochs=2 evaluation.every_epochs=1 cpu.threads=1 train.micro_batches=4 reproducible=true
  log.progress=false log.tensorboard=false run.directory="$work" model.classes=2)
train() { # RANKS SET RUN KEY=VALUE...
  mpirun --oversubscribe --bind-to none -n "$1" "$lockstep" train "${small[@]}" data.train="$work/$2.h5" \
    data.validation="$work/$2.h5" run.name="$3" "${@:4}"
}
last=checkpoints/step-00000006.h5
same() { cmp "$work/$1/$last" "$work/$2/$last"; }
same_tensors() { "$lockstep" checkpoint diff "$work/$1/$last" "$work/$2/$last"; } # the data sets have different hashes
check "trains on regions" train 1 whole one
check "  which the input resizes" grep -q 'resiz' <("$lockstep" plan "${small[@]}" data.train="$work/whole.h5" \
  data.validation="$work/whole.h5")
for n in 2 3 4; do
  check "$n ranks, $n readers" train "$n" whole several data.readers="$n"
  check "  have the bits of one rank" same several one
  rm -rf "$work/several"
done
check "reader threads that resize JPEG images" train 2 jpeg jpeg
check "  give the same bits" same_tensors jpeg one
check "a run stops" train 2 whole stopped train.max_steps=2
check "  resumes on 3 ranks" train 3 whole stopped
check "  has the bits of the uninterrupted run" same stopped one
check "an evaluation of JPEG images between steps on regions" train 2 whole mixed data.validation="$work/jpeg.h5"
check "  gives the same bits" same mixed one
check "an evaluation of regions between steps on JPEG images" train 2 jpeg mixed2 data.validation="$work/whole.h5"
check "  gives the same bits" same_tensors mixed2 one
evaluate() { "$lockstep" evaluate "$work/one" data.validation="$work/$1.h5" cpu.threads=1 --json="$work/$1.json"; }
figures() { grep -Eo '"(loss|accuracy)": [0-9.e-]*' "$1"; }
same_figures() { test -n "$(figures "$1")" && diff <(figures "$1") <(figures "$2"); }
check "evaluate reads regions" evaluate whole
check "  and JPEG images" evaluate jpeg
check "  with the same figures" same_figures "$work/whole.json" "$work/jpeg.json"
check "without resized_crop, the centre is padded and cropped on the device: 1 rank" train 1 small padded 'data.augment=[crop,flip]'
check "  4 ranks" train 4 small padded4 'data.augment=[crop,flip]'
check "  have the same bits" same padded4 padded
check "images of several sizes need data.image_size" refused 2 'set data.image_size' train 1 whole none data.image_size=0
finish
