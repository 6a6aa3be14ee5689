#!/usr/bin/env bash
# timeout: 200
# A data file that is overwritten or truncated while it is in use, and a sector that cannot be read. The file is named, and
# the run ends cleanly.
source test/faults/common.sh

wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
file=$work/images.h5
fresh() { rm -f "$file"; cp data/samples/cifar10_train.h5 "$file"; }
cifar=(data.train="$file" train.global_batch=6 data.prefetch=1)

fresh
start written 2 "${cifar[@]}"
begun
printf 'x' | dd of="$file" bs=1 seek=100000 conv=notrunc status=none
ends "ends" 1 60
prints "the file is named" "images.h5 was written to while it was in use"
status_is failed

fresh
start cut 2 "${cifar[@]}"
begun
truncate -s 200000 "$file"
ends "ends" 1 60
prints "the file is named" 'images.h5 (has changed from [0-9]+ to 200000 bytes|shrank from [0-9]+ to 200000 bytes)'
status_is failed

# Replacing the file by renaming another one is harmless, because the open file stays unchanged.
fresh
start replaced 2 "${cifar[@]}" train.max_steps=40
begun
cp "$file" "$file.new" && mv "$file.new" "$file"
ends "replacing the file by rename is harmless" 0 90
status_is done

fresh
command_of=(env LD_PRELOAD="$wrapper" FAULT_PATH="$file" FAULT_CALLS=pread FAULT_COUNT=0 FAULT_WHEN="$work/fails"
  FAULT_ERROR=EIO "${command_of[@]}")
start unreadable 2 "${cifar[@]}"
begun
touch "$work/fails"
ends "ends" 1 60
prints "file, sample and offset are named" 'images.h5: reading sample [0-9]+ \([0-9]+ bytes at offset [0-9]+\) failed: Input/output error'
status_is failed

# A language model is written at the end with the tokenizer that was read at the start, and the card describes that file.
yes "Full fathom five thy father lies." | head -n 1000 >"$work/lies.txt"
printf '{"model": {"type": "BPE", "vocab": {"F": 0, "u": 1, "l": 2}, "merges": []}, "added_tokens": []}' >"$work/other.json"
text_set() { rm -f "$work/text.h5"; "$lockstep" data import text "$work/lies.txt" "$work/text.h5" --tokenizer "$1"; }
command_of=(env LD_PRELOAD="$wrapper" FAULT_PATH=checkpoints/step FAULT_CALLS=pwrite FAULT_ERROR=WAIT FAULT_WHEN="$work/wait"
  "$lockstep" train model.family=llama data.train="$work/text.h5" data.sequence_length=32 train.global_batch=4
  train.max_steps=2 cpu.threads=1 log.progress=false log.tensorboard=false run.directory="$work"
  model.config='{"architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 16, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}')
saves() { compgen -G "$work/$name/checkpoints/*.partial*" >/dev/null; }
for how in exchanged removed; do
  check "a text set" text_set data/samples/tokenizer.json
  tokens=$("$lockstep" data info "$work/text.h5" | awk '$1 == "tokens" { print $2 }')
  touch "$work/wait"
  start $how 1
  check "$how: waits at its last checkpoint" wait_for 60 saves
  if [[ $how == removed ]]; then rm "$work/text.h5"; else check "  another set" text_set "$work/other.json"; fi
  rm "$work/wait"
  ends "ends well" 0 60
  status_is done
  check "  with the tokenizer of the start" cmp data/samples/tokenizer.json "$work/$how/model/tokenizer.json"
  check "  and its tokens" bash -c "tr -d , <'$work/$how/model/README.md' | grep -q '$tokens'"
done

# An import onto a full disk: whichever write fails first, the import ends with one message, does not crash, and leaves
# nothing behind.
full() { # full FIRST COMMAND...: the write with this number and all later ones fail
  LD_PRELOAD=$wrapper FAULT_PATH=$work/full FAULT_CALLS=pwrite FAULT_ERROR=ENOSPC FAULT_FIRST=$1 FAULT_COUNT=0 "${@:2}"
}
survives_a_full_disk() { # survives_a_full_disk WHAT IMPORT...: an import to $work/full/set.h5
  local n=1 failed_imports=0
  while refused 1 'set.h5.* failed: No space left on device|cannot write .*set.h5.*: No space left on device' full $n "${@:2}"; do
    if grep -q actually "$work/.refused" || [[ -n $(ls -A "$work/full") ]]; then break; fi
    n=$((n + 1)) failed_imports=$((failed_imports + 1))
  done >"$work/.check" 2>&1
  check "a full disk at any of $failed_imports writes ends an import $1" \
    test -e "$work/full/set.h5" -a $failed_imports -ge 5
  rm -f "$work/full/set.h5"
}
mkdir "$work/full"
# 12 images in chunks of 3, so that HDF5 alternates between writing data and metadata.
head -c $((12 * 3073)) /dev/zero | tr '\0' '\1' >"$work/test_batch.bin"
for options in "--chunk 9216 --alignment 512" "--chunk 0"; do
  survives_a_full_disk "with $options" "$lockstep" data import cifar10 "$work/test_batch.bin" "$work/full/set.h5" \
    --split test --mean 0,0,0 --std 1,1,1 $options
done
survives_a_full_disk "of text" "$lockstep" data import text "$work/lies.txt" "$work/full/set.h5" \
  --tokenizer data/samples/tokenizer.json

# A signal that arrives when the data set gets its name is too late: the import succeeds.
late() { # late ARGUMENTS...: imports them into $work/late.h5
  rm -f "$work/late.h5"
  LD_PRELOAD=$wrapper FAULT_PATH=$work/late.h5 FAULT_CALLS=rename FAULT_ERROR=TERM "$lockstep" data import "$1" "$2" \
    "$work/late.h5" "${@:3}" && test -e "$work/late.h5"
}
mkdir -p "$work/folder/a" && cp docs/pictures/*.png "$work/folder/a"
for options in "--store encoded" "--store decoded --short-side 8"; do
  check "a late signal: images with $options" late imagefolder "$work/folder" --mean 0,0,0 --std 1,1,1 $options
done
check "  CIFAR-10" late cifar10 "$work/test_batch.bin" --split test --mean 0,0,0 --std 1,1,1
check "  text" late text "$work/lies.txt" --tokenizer data/samples/tokenizer.json

finish
