"""The ResNets that the PyTorch side of each comparison trains."""
import torch
import torchvision


def network(depth, stem, classes, **options):
    """torchvision's ResNet. The stem "cifar" is a 3x3 convolution of stride 1 without pooling."""
    net = getattr(torchvision.models, f"resnet{depth}")(num_classes=classes, **options)
    if stem == "cifar":
        net.conv1 = torch.nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
        # torchvision initializes its other convolutions in the same way.
        torch.nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        net.maxpool = torch.nn.Identity()
    return net
