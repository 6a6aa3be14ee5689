"""The ResNets that the PyTorch side of each comparison trains."""
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
