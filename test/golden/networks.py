"""torchvision's ResNets with Lockstep's stems and initial weights."""
import numpy as np
import torch
import torchvision

import philox


def make(depth, stem, classes, zero_gamma, seed, dtype):
    net = getattr(torchvision.models, f"resnet{depth}")(num_classes=classes)
    if stem == "cifar":
        net.conv1 = torch.nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
        net.maxpool = torch.nn.Identity()
    philox.initial_weights.fc_inputs = net.fc.in_features
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(philox.initial_weights(name, tuple(p.shape), seed)))
        for block in net.modules():
            if zero_gamma and isinstance(block, torchvision.models.resnet.Bottleneck):
                block.bn3.weight.zero_()
            elif zero_gamma and isinstance(block, torchvision.models.resnet.BasicBlock):
                block.bn2.weight.zero_()
    return net.to(dtype)


def images(path, first, count, scale):
    """(count, 3, H, W) normalised as the file says, each value computed in double and rounded once to fp32; labels."""
    import h5py
    with h5py.File(path, "r") as f:
        x = f["images"][first:first + count]
        labels = f["labels"][first:first + count].astype(np.int64)
        mean, std = (np.asarray(f.attrs[k], dtype=np.float32).astype(np.float64) for k in ("mean", "std"))
    x = x.repeat(scale, axis=1).repeat(scale, axis=2)
    x = ((x.astype(np.float64) / 255.0 - mean) / std).astype(np.float32)
    return torch.from_numpy(x.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)
