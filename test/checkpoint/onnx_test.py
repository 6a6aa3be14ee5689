# long: yes
# timeout: 900
"""onnxruntime computes the same logits from an exported .onnx file as the program computes from the checkpoint.

Exit status 77 (skipped) without onnxruntime. LOCKSTEP is the program; the logits come from the test program of
test/train, whose role --logits writes them.
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    import onnx
    import onnxruntime
except ImportError as missing:
    print(f"skipped: {missing}; `make deps-test` installs onnx and onnxruntime")
    sys.exit(77)

LOCKSTEP = os.environ.get("LOCKSTEP", "build/lockstep")
PROGRAM = os.path.join(os.path.dirname(LOCKSTEP), "test", "train_test")
SAMPLES = 16


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compare(folder, depth, stem, size, *overrides):
    name = f"{stem}{depth}-{size}"
    run(LOCKSTEP, "train", "jobs/configs/quickstart.yaml", "device=cpu", "cpu.threads=1", "data.train=synthetic",
        "data.validation=", f"data.image_size={size}", f"model.depth={depth}", f"model.stem={stem}", "data.augment=[]",
        "train.max_steps=3", "train.global_batch=8", "optimizer.learning_rate=0.01", "data.mean=[0.4,0.5,0.6]",
        "data.std=[0.2,0.25,0.3]", f"run.directory={folder}", f"run.name={name}", "log.progress=false", *overrides)
    checkpoint, model = f"{folder}/{name}/checkpoints/latest", f"{folder}/{name}.onnx"
    print(run(LOCKSTEP, "checkpoint", "export", checkpoint, model).strip())
    run(LOCKSTEP, "checkpoint", "export", f"{folder}/{name}/model.safetensors", f"{folder}/second.onnx", "--force")
    assert open(model, "rb").read() == open(f"{folder}/second.onnx", "rb").read(), "the two exports differ"

    onnx.checker.check_model(model, full_check=True)
    metadata = {entry.key: entry.value for entry in onnx.load(model).metadata_props}
    assert json.loads(metadata["lockstep"])["model"]["depth"] == depth, metadata

    # A checkpoint's link has no extension, and the role reads it as a checkpoint.
    run(PROGRAM, "--logits", checkpoint, f"{folder}/images", f"{folder}/logits", str(SAMPLES))
    images = numpy.fromfile(f"{folder}/images", numpy.uint8).reshape(SAMPLES, size, size, 3)
    own = numpy.fromfile(f"{folder}/logits", numpy.float32).reshape(SAMPLES, -1)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    inputs = numpy.ascontiguousarray((images / numpy.float32(255)).transpose(0, 3, 1, 2).astype(numpy.float32))
    for n in (SAMPLES, 3):  # the batch size of the model is dynamic
        (theirs,) = session.run(["logits"], {"image": inputs[:n]})
        difference = numpy.abs(theirs - own[:n]).max() / numpy.abs(own).max()
        # Both sum a few thousand fp32 products per output, in different orders, through up to 50 layers.
        assert difference < 2e-5, (name, difference)
    assert own.std(axis=0).max() > 1e-3, "the logits of all images are the same"
    print(f"{name}: relative difference of the logits {difference:.1e}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        compare(folder, 18, "cifar", 16)
        compare(folder, 18, "cifar", 32, "model.width=16")
        compare(folder, 34, "imagenet", 64)
        compare(folder, 50, "imagenet", 64, "model.width=16", "batch_norm.epsilon=1e-3")
        compare(folder, 50, "cifar", 16)
        compare(folder, 101, "cifar", 16, "model.width=16")


main()
