#!/usr/bin/env bash
# timeout: 300
# cores: 1
# Evaluation of checkpoints and model files: the checkpoint determines how images become inputs.
source test/support/check.sh

small=(jobs/configs/quickstart.yaml model.width=16 device=cpu cpu.threads=1 train.epochs=1 train.global_batch=50
  log.progress=false log.tensorboard=false evaluation.batch_per_rank=100)
train() { "$lockstep" train "${small[@]}" run.directory="$work" "$@"; }
prints() { refused 0 "$@"; }
check "trains on images of CIFAR-10" train run.name=a train.max_steps=4
best=$work/a/checkpoints/best
evaluate() { "$lockstep" evaluate "${small[@]}" "$@"; }

# Synthetic images have another mean and standard deviation, which must not be used.
figures() { grep -Eo '"(loss|accuracy)": [0-9.e-]*' "$1"; }
same_figures() { diff <(figures "$1") <(figures "$2"); }
check "evaluates the checkpoint" evaluate --checkpoint "$best" --json="$work/own"
check "  with another train set" evaluate data.train=synthetic --checkpoint "$best" --json="$work/other"
check "  and gets the same figures" same_figures "$work/own" "$work/other"
check "data.mean stays in effect if it is given" prints 'data.mean of the configuration is used' \
  evaluate data.mean=[0.1,0.1,0.1] --checkpoint "$best" --json="$work/shifted"
check "  and changes the figures" refused 1 loss same_figures "$work/own" "$work/shifted"

for field in 'height +32' 'resize +0' 'mean +0\.4[0-9.]*, 0\.4' 'std +0\.2' 'class_names +airplane, automobile' 'model.depth +18'; do
  check "checkpoint info shows: $field" prints "^$field" "$lockstep" checkpoint info "$best"
done

check "exports it" "$lockstep" checkpoint export "$best" "$work/a.safetensors"
check "the record is in the export" grep -aq '\\"class_names\\":\[\\"airplane\\"' "$work/a.safetensors"
check "the model of the run's end has it too" grep -aq '\\"class_names\\":\[\\"airplane\\"' "$work/a/model.safetensors"

# A file without that record, as older releases wrote it: the metadata of the export is renamed to a name of the same
# length.
rm -f "$work/old.h5"
LC_ALL=C sed 's/"lockstep":/"lockstop":/' "$work/a.safetensors" >"$work/old.safetensors"
check "imports a file without it" "$lockstep" checkpoint import "$work/old.safetensors" "$work/old.h5"
check "  which is evaluated with what data.train has" prints 'old.h5 does not record .* they are those of data/samples' \
  evaluate --checkpoint "$work/old.h5" --json="$work/old"
check "  and gets the same figures" same_figures "$work/own" "$work/old"
check "imports a file with it" "$lockstep" checkpoint import "$work/a.safetensors" "$work/new.h5"
check "  which shows it" prints 'class_names +airplane' "$lockstep" checkpoint info "$work/new.h5"

# A run needs no configuration file, and the sums do not depend on the number of ranks.
ranks() { mpirun --oversubscribe --bind-to none -n "$1" "$lockstep" "${@:2}"; }
options=(device=cpu cpu.threads=1 log.progress=false)
check "evaluates a run" "$lockstep" evaluate "$work/a" "${options[@]}" --json="$work/run"
check "  like its best checkpoint" same_figures "$work/own" "$work/run"
check "  without its train set" "$lockstep" evaluate "$work/a" "${options[@]}" data.train=nowhere.h5 --json="$work/alone"
check "  with the same figures" same_figures "$work/own" "$work/alone"
rounded() { python3 - "$1" <<'END'
import json, sys
result = json.load(open(sys.argv[1]))
matrix = result["confusion"]
assert sum(map(sum, matrix)) == result["samples"] == 500, result["samples"]
correct = sum(matrix[k][k] for k in range(10))
assert abs(correct / 500 - result["accuracy"]) < 1e-12, (correct, result["accuracy"])
assert [c["name"] for c in result["classes"]][:2] == ["airplane", "automobile"]
assert all(abs(c["accuracy"] - matrix[c["class"]][c["class"]] / c["samples"]) < 1e-12 for c in result["classes"])
assert result["accuracy"] <= result["top5_accuracy"] <= 1
print(matrix, round(result["loss"], 5), result["top5_accuracy"])
END
}
check "the confusion matrix agrees with the accuracy" rounded "$work/run"
check "  and so does the training" python3 -c "
import json, sys
run = json.load(open(sys.argv[1]))
trained = [e for e in map(json.loads, open(sys.argv[2])) if e['event'] == 'evaluation'][-1]
assert run['accuracy'] == trained['accuracy'] and abs(run['loss'] - trained['loss']) < 1e-5, (run, trained)
" "$work/run" "$work/a/metrics.jsonl"
for n in 2 3; do
  check "evaluates it on $n ranks" ranks "$n" evaluate "$work/a" "${options[@]}" evaluation.batch_per_rank=64 --json="$work/run$n"
  check "  with the same counts" test "$(rounded "$work/run")" = "$(rounded "$work/run$n")"
done
check "evaluates several models in one call" "$lockstep" evaluate "$best" "$work/a/model.safetensors" "$work/a.safetensors" \
  data.validation=data/samples/cifar10_test.h5 "${options[@]}" --json="$work/several"
check "  with a result for each" test "$(grep -c '"top5_accuracy"' "$work/several")" = 3
check "a precision that is given is used" "$lockstep" evaluate "$best" data.validation=data/samples/cifar10_test.h5 "${options[@]}" \
  precision=bf16 --json="$work/bf16"
check "  also for a file outside of its run" "$lockstep" evaluate "$work/a.safetensors" data.validation=data/samples/cifar10_test.h5 \
  "${options[@]}" evaluation.batch_per_rank=100 precision=bf16 --json="$work/outside"
check "  with the same figures" same_figures "$work/bf16" "$work/outside"
check "  which are not those of fp32" refused 1 loss same_figures "$work/run" "$work/outside"
check "prints the matrix" prints '^airplane +50 +[0-9.]+%  ([ 0-9]{4}){10}$' "$lockstep" evaluate "$work/a" "${options[@]}" --confusion "$work/matrix.svg"
check "  and draws it" python3 -c "
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
titles = [t.text for t in root.iter('{http://www.w3.org/2000/svg}title')]
assert sum(int(t.rsplit(' ', 1)[1]) for t in titles) == 500, titles
" "$work/matrix.svg"
mkfifo "$work/pipe"
cat "$work/pipe" >"$work/piped.svg" &
check "  into a pipe, which stays a pipe" "$lockstep" evaluate "$work/a" "${options[@]}" --confusion "$work/pipe"
wait
check "    with the same picture" cmp "$work/matrix.svg" "$work/piped.svg"
check "    which is still there" test -p "$work/pipe"
check "a pipe instead of a checkpoint is refused at once" refused 1 'is not a regular file; expected a file' \
  timeout 20 "$lockstep" checkpoint info "$work/pipe"

# Each thing that cannot be evaluated is reported as one error.
one_error() { refused "$@" && [[ $(grep -c 'error:' "$work/.refused") == 1 ]] && ! grep -q skipped "$work/.refused"; }
check "a checkpoint of another model is one error" one_error 1 'model.depth is 18 in the file and 34 in the configuration' \
  evaluate model.depth=34 --checkpoint "$best"
check "only a configuration is refused" one_error 2 'or a configuration with --checkpoint FILE' evaluate
check "a file without a data set is refused" one_error 2 'set data.validation=FILE' "$lockstep" evaluate "$work/new.h5"
check "a file that does not exist" one_error 1 'nope does not exist: expected a model: the directory of a run' "$lockstep" evaluate nope
touch "$work/model.onnx"
check "a file of another format" one_error 1 'model.onnx is empty' "$lockstep" evaluate "$work/model.onnx" data.validation=synthetic
check "a configuration through a pipe is read" refused 2 'or a configuration with --checkpoint FILE' "$lockstep" evaluate <(cat jobs/configs/quickstart.yaml)
check "a picture that is not SVG is refused before the evaluation" one_error 2 'expected a name that ends in .svg, found .*a.png' \
  "$lockstep" evaluate "$work/a" "${options[@]}" --confusion "$work/a.png"
check "  and there is no file" test ! -e "$work/a.png"
elsewhere() { (cd "$work" && "$lockstep" evaluate a "${options[@]}" "$@"); }
check "a run whose data set is relative to another directory" one_error 1 \
  'data/samples/cifar10_test.h5 of a/config.yaml does not exist in the working directory .*: change to the directory in which' elsewhere
check "  is evaluated with the path of the data set" elsewhere data.validation="$PWD/data/samples/cifar10_test.h5"

# Data sets that do not fit the model, and the remedy for each difference.
mismatch() { one_error 2 "$1" "$lockstep" evaluate "$best" "${options[@]}" "${@:2}" && ! grep -q 'remedy: .*model.classes' "$work/.refused"; }
mkdir -p "$work"/grey/{ant,bee}
for k in ant bee; do tail -c +2 test/fuzz/corpus/jpeg/grey >"$work/grey/$k/1.jpg"; done
"$lockstep" data import imagefolder "$work/grey" "$work/grey.h5" >"$work/log" 2>&1
"$lockstep" data import imagefolder "$work/grey" "$work/colour.h5" --channels 3 >>"$work/log" 2>&1
check "images of another size" mismatch 'set data.image_size=32 to resize them' data.validation="$work/colour.h5"
check "images with other channels" mismatch 'import it again with --channels 3' data.validation="$work/grey.h5" data.image_size=32
check "other classes" mismatch "class 0 is 'airplane' in the first and 'ant' in the second; .*the same class folders" \
  data.validation="$work/colour.h5" data.image_size=32

# A file that records nothing is evaluated with what the command line says about its images.
alone=("$lockstep" evaluate "$work/old.safetensors" "${options[@]}" evaluation.batch_per_rank=100 data.validation=data/samples/cifar10_test.h5)
"$lockstep" data info data/samples/cifar10_train.h5 --json >"$work/info"
statistics() { python3 -c "import json, sys; print('data.%s=%s' % (sys.argv[1], json.load(open(sys.argv[2]))[sys.argv[1]]))" "$1" "$work/info"; }
check "size and statistics on the command line are used" prints 'they are those of data.image_size, data.mean and data.std' \
  "${alone[@]}" data.image_size=32 "$(statistics mean)" "$(statistics std)" --json="$work/given"
check "  with the same figures" same_figures "$work/own" "$work/given"
check "  and the names of the data set" grep -q '"name": "airplane"' "$work/given"
check "what is missing is named" one_error 2 "data.train to the data set .*, or add what is missing, such as 'data.std=.*\]'\$" \
  "${alone[@]}" data.image_size=32 "$(statistics mean)"

# Damaged metadata is reported as a fault of the file, not of the command line. edit ENTRY VALUE: a copy with another
# value.
edit() {
  python3 - "$work/a.safetensors" "$work/edited.safetensors" "$@" <<'END'
import json, struct, sys
source, target, entry, value = sys.argv[1:]
data = open(source, "rb").read()
n, = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + n])
state = json.loads(header["__metadata__"]["lockstep"])
*parents, last = entry.split(".")
at = state
for parent in parents: at = at[parent]
at[last] = json.loads(value)
header["__metadata__"]["lockstep"] = json.dumps(state)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(target, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])
END
}
damaged() { # ENTRY VALUE
  edit "$1" "$2" && one_error 1 "edited.safetensors describes its model wrongly: (model.)?${1##*.}: expected" \
    "$lockstep" evaluate "$work/edited.safetensors" data.validation=data/samples/cifar10_test.h5 "${options[@]}" &&
    ! grep -q 'command line' "$work/.refused"
}
for entry in 'model.depth 19' 'model.depth "deep"' 'model.classes [10]' 'model 5' 'precision "fp99"' 'precision 5' 'inference "x"' \
  'inference.mean [0.5]' 'inference.std [0,1,1]' 'inference.height "32"' "inference.class_names $(printf '["a"%s]' "$(printf ',"a"%.0s' {1..10})")"; do
  check "a damaged entry is named: ${entry:0:40}" damaged "${entry%% *}" "${entry#* }"
done
check "it is not imported" refused 1 'edited.safetensors describes its model wrongly: class_names' \
  "$lockstep" checkpoint import "$work/edited.safetensors" "$work/edited.h5"
edit inference '{"height":32,"width":32,"channels":1,"resize":0,"mean":[0.5],"std":[0.5],"batch_norm_epsilon":1e-5,"class_names":[]}'
check "it is not exported to ONNX with other channels than its weights have" refused 1 'wrongly: channels: expected 3, .*found 1' \
  "$lockstep" checkpoint export "$work/edited.safetensors" "$work/edited.onnx"
cp "$work/a.safetensors" "$work/"$'\xff.safetensors'
check "a name that is not UTF-8 is written as JSON" "$lockstep" evaluate "$work/"$'\xff.safetensors' "${options[@]}" \
  data.validation=data/samples/cifar10_test.h5 --json="$work/named"
check "  with a replacement" grep -q $'"checkpoint": ".*\xef\xbf\xbd.safetensors"' "$work/named"

mkdir "$work/empty"
check "a folder that is not a run is refused" one_error 1 'expected the directory of a run' "$lockstep" evaluate "$work/empty"
finish
