"""The safetensors library, and torchvision where it is installed, read what `checkpoint export` writes; importing
that file results in the same checkpoint, byte for byte.

Exit status 77 (skipped) without safetensors. LOCKSTEP is the program.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    import safetensors.numpy
except ImportError as missing:
    print(f"skipped: {missing}; `make deps-test` installs safetensors")
    sys.exit(77)

LOCKSTEP = os.environ.get("LOCKSTEP", "build/lockstep")


def run(*arguments, status=0):
    result = subprocess.run([LOCKSTEP, "checkpoint", *arguments], capture_output=True, text=True)
    assert result.returncode == status, (arguments, result)
    return result.stdout + result.stderr


def small_resnet18():
    """The tensors that `import` checks, with few distinct values."""
    tensors = {"conv1.weight": (64, 3, 7, 7), "fc.weight": (10, 512), "fc.bias": (10,)}
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            tensors[f"layer{stage}.{block}.conv1.weight"] = (64, 64, 3, 3)
            tensors[f"layer{stage}.{block}.conv2.weight"] = (64, 64, 3, 3)
            for part in ("weight", "bias", "running_mean", "running_var"):
                tensors[f"layer{stage}.{block}.bn1.{part}"] = (64,)
    random = numpy.random.default_rng(3)
    tensors = {name: random.standard_normal(shape).astype(numpy.float32) for name, shape in tensors.items()}
    for name in tensors:
        if name.endswith("running_var"):
            tensors[name] = numpy.abs(tensors[name])
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            tensors[f"layer{stage}.{block}.bn1.num_batches_tracked"] = numpy.array(0, dtype=numpy.int64)
    return tensors


def there_and_back(tensors, folder):
    first, second = f"{folder}/first.h5", f"{folder}/second.h5"
    safetensors.numpy.save_file(tensors, f"{folder}/source.safetensors")
    run("import", f"{folder}/source.safetensors", first)
    run("export", first, f"{folder}/export.safetensors")
    exported = safetensors.numpy.load_file(f"{folder}/export.safetensors")
    assert exported.keys() == tensors.keys(), exported.keys() ^ tensors.keys()
    for name, values in tensors.items():
        assert exported[name].dtype == values.dtype and exported[name].shape == values.shape, name
        assert exported[name].tobytes() == values.tobytes(), name
    run("import", f"{folder}/export.safetensors", second)
    with open(first, "rb") as a, open(second, "rb") as b:
        assert a.read() == b.read()
    assert "are equal" in run("diff", first, second)


def commands_report(folder):
    first, other = f"{folder}/first.h5", f"{folder}/other.h5"
    assert "is valid" in run("verify", first)
    assert "fc.weight" in run("info", first)
    import json

    info = json.loads(subprocess.run([LOCKSTEP, "checkpoint", "info", "--json", first], capture_output=True, check=True).stdout)
    assert info["model"]["depth"] == 18 and info["step"] == 0
    assert {"/parameters/fc.bias"} <= {tensor["name"] for tensor in info["tensors"]}

    tensors = small_resnet18()
    tensors["fc.bias"][4] += 1
    safetensors.numpy.save_file(tensors, f"{folder}/other.safetensors")
    run("import", f"{folder}/other.safetensors", other)
    text = run("diff", first, other, status=1)
    assert "/parameters/fc.bias: 1 of 10 values differ" in text and "the first one at 4" in text, text

    with open(other, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 16]))
    assert "is damaged in /" in run("verify", other, status=1)
    assert "is damaged in /" in run("diff", first, other, status=1)
    assert ".safetensors" in run("export", first, f"{folder}/directory", status=2)


def torchvision_reads(folder):
    if not all(importlib.util.find_spec(name) for name in ("torch", "torchvision")):
        print("torchvision is not installed: its part is left out")
        return
    import torch
    import torchvision
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    model = torchvision.models.resnet50(num_classes=10)
    save_file(model.state_dict(), f"{folder}/torch.safetensors")
    run("import", f"{folder}/torch.safetensors", f"{folder}/torch.h5")
    run("export", f"{folder}/torch.h5", f"{folder}/torch2.safetensors")
    again = torchvision.models.resnet50(num_classes=10)
    again.load_state_dict(load_file(f"{folder}/torch2.safetensors"), strict=True)
    for (name, a), (_, b) in zip(model.state_dict().items(), again.state_dict().items()):
        assert torch.equal(a, b), name
    print("torchvision reads the export of ResNet-50")


def main():
    with tempfile.TemporaryDirectory() as folder:
        there_and_back(small_resnet18(), folder)
        commands_report(folder)
        torchvision_reads(folder)
    print("there and back: the same bytes")


main()
