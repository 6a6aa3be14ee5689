"""The lines of Python in docs/using.md load an exported model with the stem `cifar` into torchvision's ResNet-18.

The lines are taken from the page and run. Without torch and torchvision they run on stand-ins, which have the names and
shapes of torchvision's model and compare them as its load_state_dict does. LOCKSTEP is the program.
"""

import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import types

LOCKSTEP = os.path.abspath(os.environ.get("LOCKSTEP", "build/lockstep"))


def lines_of_page():
    page = open("docs/using.md").read()
    block = re.search(r"\n\n((?:    .*\n)*    resnet\.load_state_dict\(.*\n)", page)
    assert block, "docs/using.md does not show how to load a model into torchvision"
    lines = [line[4:] for line in block[1].splitlines()]
    assert len(lines) == 4 and lines[0].startswith("import "), lines
    return "\n".join(lines)


def shapes_in(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


class Conv2d:
    def __init__(self, inputs, outputs, window, stride=1, padding=0, bias=True):
        self.stride, self.padding = stride, padding
        self.shapes = {"weight": (outputs, inputs, window, window)}
        if bias:
            self.shapes["bias"] = (outputs,)


class BatchNorm:
    def __init__(self, channels):
        names = ("weight", "bias", "running_mean", "running_var")
        self.shapes = {name: (channels,) for name in names} | {"num_batches_tracked": ()}


class Other:
    def __init__(self, **shapes):
        self.shapes = shapes


class ResNet18:
    """The names and shapes of torchvision.models.resnet18."""

    def __init__(self, num_classes=1000):
        self.conv1 = Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = BatchNorm(64)
        self.maxpool = Other()
        self.fc = Other(weight=(num_classes, 512), bias=(num_classes,))
        self.blocks = {}
        for stage, channels in enumerate((64, 128, 256, 512), 1):
            for block in (0, 1):
                name = f"layer{stage}.{block}"
                inputs = channels // 2 if stage > 1 and block == 0 else channels
                self.blocks[name + ".conv1"] = Conv2d(inputs, channels, 3, bias=False)
                self.blocks[name + ".conv2"] = Conv2d(channels, channels, 3, bias=False)
                self.blocks[name + ".bn1"] = self.blocks[name + ".bn2"] = BatchNorm(channels)
                if inputs != channels:
                    self.blocks[name + ".downsample.0"] = Conv2d(inputs, channels, 1, bias=False)
                    self.blocks[name + ".downsample.1"] = BatchNorm(channels)

    def load_state_dict(self, tensors):
        own = {"conv1": self.conv1, "bn1": self.bn1, "maxpool": self.maxpool, "fc": self.fc} | self.blocks
        expected = {f"{module}.{name}": shape for module, part in own.items() for name, shape in part.shapes.items()}
        assert tensors == expected, {name: (tensors.get(name), expected.get(name)) for name in tensors.keys() | expected.keys()
                                     if tensors.get(name) != expected.get(name)}


def run_on_stand_ins(lines, folder):
    torch, torchvision, safetensors = (types.ModuleType(name) for name in ("torch", "torchvision", "safetensors"))
    torch.nn = types.SimpleNamespace(Conv2d=Conv2d, Identity=Other)
    torchvision.models = types.SimpleNamespace(resnet18=ResNet18)
    safetensors.torch = types.ModuleType("safetensors.torch")
    safetensors.torch.load_file = shapes_in
    sys.modules |= {"torch": torch, "torchvision": torchvision, "safetensors": safetensors,
                    "safetensors.torch": safetensors.torch}
    found = {}
    os.chdir(folder)
    exec(lines, found)
    assert (found["resnet"].conv1.stride, found["resnet"].conv1.padding) == (1, 1)
    unchanged = ResNet18(num_classes=10)
    try:
        unchanged.load_state_dict(shapes_in("resnet18.safetensors"))
    except AssertionError:
        return
    raise AssertionError("the stand-in accepts another first convolution")


def run_on_torchvision(lines, folder):
    found = {}
    os.chdir(folder)
    exec(lines, found)
    import torch

    found["resnet"].eval()
    assert found["resnet"](torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def main():
    lines = lines_of_page()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([LOCKSTEP, "train", "jobs/configs/quickstart.yaml", "device=cpu", "cpu.threads=1", "data.image_size=8",
                        "data.train=synthetic", "data.validation=", "train.max_steps=1", "train.global_batch=2",
                        f"run.directory={folder}", "run.name=a", "log.progress=false"], check=True, capture_output=True)
        export = [LOCKSTEP, "checkpoint", "export", f"{folder}/a/checkpoints/latest", f"{folder}/resnet18.safetensors"]
        subprocess.run(export, check=True)
        again = subprocess.run(export, capture_output=True, text=True)
        assert again.returncode == 2 and "already exists; use --force" in again.stderr, again
        subprocess.run([*export, "--force"], check=True)
        info = json.loads(subprocess.run([LOCKSTEP, "checkpoint", "info", "--json", f"{folder}/resnet18.safetensors"],
                                         check=True, capture_output=True).stdout)
        assert info["inference"]["height"] == 8 and info["model"]["depth"] == 18 and info["parameters"] == 11173962, info
        here = os.getcwd()
        has_torchvision = all(importlib.util.find_spec(name) for name in ("torch", "torchvision"))
        (run_on_torchvision if has_torchvision else run_on_stand_ins)(lines, folder)
        os.chdir(here)
    print("the lines load the export of ResNet-18" + ("" if has_torchvision else " (on stand-ins: torchvision is not installed)"))


main()
