"""Shared by the scripts that run PyTorch for a comparison: arguments, output, timing, models, data, schedules."""
import argparse
import json
import math
import resource
import statistics
import sys
import time

import torch
from torch import nn

try:
    import torchvision
except ImportError:  # on a machine with PyTorch alone, the speed of the same network can still be measured
    torchvision = None


class Block(nn.Module):
    """A basic or a bottleneck block, with the names of torchvision."""

    def __init__(self, inputs, width, stride, expansion):
        super().__init__()
        kernels = (3, 3) if expansion == 1 else (1, 3, 1)
        widths = [inputs, *[width] * (len(kernels) - 1), expansion * width]
        for i, kernel in enumerate(kernels, 1):
            step = stride if i == kernels.index(3) + 1 else 1
            setattr(self, f"conv{i}", nn.Conv2d(widths[i - 1], widths[i], kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(widths[i]))
        self.n, self.relu, self.downsample = len(kernels), nn.ReLU(inplace=True), None
        if stride != 1 or inputs != widths[-1]:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, widths[-1], 1, stride, bias=False), nn.BatchNorm2d(widths[-1]))

    def forward(self, x):
        y = x
        for i in range(1, self.n + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = self.relu(y) if i < self.n else y
        return self.relu(y + (self.downsample(x) if self.downsample else x))


def resnet(depth, classes):
    counts, expansion = {18: ((2, 2, 2, 2), 1), 34: ((3, 4, 6, 3), 1), 50: ((3, 4, 6, 3), 4)}[depth]
    net, inputs = nn.Sequential(), 64
    net.add_module("conv1", nn.Conv2d(3, 64, 7, 2, 3, bias=False))
    for name, module in (("bn1", nn.BatchNorm2d(64)), ("relu", nn.ReLU(inplace=True)), ("maxpool", nn.MaxPool2d(3, 2, 1))):
        net.add_module(name, module)
    for number, n in enumerate(counts, 1):
        width, blocks = 32 << number, []
        for i in range(n):
            blocks.append(Block(inputs, width, 2 if number > 1 and i == 0 else 1, expansion))
            inputs = expansion * width
        net.add_module(f"layer{number}", nn.Sequential(*blocks))
    for name, module in (("avgpool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("fc", nn.Linear(inputs, classes))):
        net.add_module(name, module)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def network(depth, stem, classes, **options):
    """torchvision's ResNet. The stem "cifar" is a 3x3 convolution of stride 1 without pooling."""
    net = getattr(torchvision.models, f"resnet{depth}")(num_classes=classes, **options) if torchvision else resnet(depth, classes, **options)
    if stem == "cifar":
        net.conv1 = torch.nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
        # torchvision initializes its other convolutions in the same way.
        torch.nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        net.maxpool = torch.nn.Identity()
    return net


def smollm(layers=30, **options):
    """A model of transformers with the sizes of SmolLM-135M and random weights."""
    import transformers
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**dict(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=0,
        eos_token_id=0), **options}))


def parser(description, **counts):
    """`counts`: the integers among the arguments, with their defaults; None: the argument is required."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in counts.items():
        made.add_argument("--" + name.replace("_", "-"), type=int, default=default, required=default is None)
    return made


def add_network(made, depth, stem, image_size, precision):
    made.add_argument("--depth", type=int, choices=(18, 34, 50), default=depth)
    made.add_argument("--stem", choices=("cifar", "imagenet"), default=stem)
    made.add_argument("--image-size", type=int, default=image_size)
    made.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default=precision)


def output(**found):
    """Prints one line of JSON, with the versions of the libraries that are loaded."""
    versions = {name: sys.modules[name].__version__ for name in ("torch", "torchvision", "transformers") if name in sys.modules}
    print(json.dumps({**found, **versions}), flush=True)


def seconds_of(work, rounds, repetitions, finish):
    """The median seconds of `work` over rounds of some repetitions; `finish` waits for the device after each round."""
    seconds = []
    for _ in range(rounds):
        finish()
        begin = time.perf_counter()
        for _ in range(repetitions):
            work()
        finish()
        seconds.append((time.perf_counter() - begin) / repetitions)
    return statistics.median(seconds)


def compiled(net, mode):
    """graph: torch.compile(mode='reduce-overhead'), which captures CUDA graphs."""
    return net if mode == "eager" else torch.compile(net, mode="reduce-overhead" if mode == "graph" else "default")


def learning_rate(step, warmup, length, base, final=0.0):
    """As in src/train/schedule.h: linear warm-up, then cosine."""
    if step < warmup:
        return base * (step + 1) / warmup
    return final + (base - final) * (1 + math.cos(math.pi * (step - warmup) / (length - warmup))) / 2


def adamw(parameters, rate, weight_decay, beta2):
    """AdamW without decay of vectors."""
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
              {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, beta2), eps=1e-8)


def processor_seconds():
    """Of this process and of the children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def loader_speed(batches, batch):
    """The speed of one epoch of (images, labels), without the first batch."""
    processor, batches = processor_seconds(), iter(batches)
    next(batches)
    begin = time.perf_counter()
    images = sum(len(labels) for _, labels in batches)
    seconds = time.perf_counter() - begin
    del batches  # ends the worker, whose time counts from then on
    return {"images_per_second": images / seconds, "processor_ms": 1e3 * (processor_seconds() - processor) / (images + batch)}
