"""The recipes of resnet18.yaml and resnet50.yaml in PyTorch, with PyTorch's own random numbers. Prints one line of JSON."""
import argparse
import json
import math
import pathlib
import sys
import time

import numpy as np
import torch
import torchvision

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from torch_networks import network  # noqa: E402

PADDING = 4


def read_batch(path, limit):
    """(n, 3, 32, 32) uint8 and labels of a binary batch of CIFAR-10."""
    records = np.fromfile(path, np.uint8).reshape(-1, 3073)[:limit]
    return torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(records[:, 0].astype(np.int64))


def read_folder(path, limit):
    """The same from class folders with images of one size."""
    folder = torchvision.datasets.ImageFolder(path)
    images = np.stack([np.asarray(folder.loader(file)) for file, _ in folder.samples[:limit]])
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(folder.targets[:limit])


RECIPES = {
    "resnet18": dict(read=read_batch, network=lambda: network(18, "cifar", classes=10), batch=128, learning_rate=0.1,
                     weight_decay=5e-4),
    "resnet50": dict(read=read_folder, network=lambda: network(50, "imagenet", classes=20, zero_init_residual=True),
                     batch=16, learning_rate=0.01, weight_decay=1e-4),
}


def augmented(images):
    """A random crop of the image padded with zeros, and a random flip, for each sample separately."""
    size = images.shape[-1]
    padded = torch.nn.functional.pad(images, (PADDING,) * 4)
    out = torch.empty_like(images)
    rows, columns = torch.randint(2 * PADDING + 1, (2, len(images))).tolist()
    flips = torch.randint(2, (len(images),)).tolist()
    for i, (row, column, flip) in enumerate(zip(rows, columns, flips)):
        crop = padded[i, :, row:row + size, column:column + size]
        out[i] = crop.flip(-1) if flip else crop
    return out


def learning_rate(step, warmup, length, base):
    """As in src/train/schedule.h: linear warm-up, then cosine to zero."""
    if step < warmup:
        return base * (step + 1) / warmup
    return base * (1 + math.cos(math.pi * (step - warmup) / (length - warmup))) / 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", choices=RECIPES, required=True)
    parser.add_argument("--train", type=pathlib.Path, required=True)
    parser.add_argument("--test", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train-limit", type=int)
    parser.add_argument("--test-limit", type=int)
    args = parser.parse_args()
    recipe = RECIPES[args.recipe]
    batch = recipe["batch"]

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    images, labels = recipe["read"](args.train, args.train_limit)
    test_images, test_labels = recipe["read"](args.test, args.test_limit)
    values = images.double() / 255
    mean, std = (s.float().view(1, 3, 1, 1) for s in (values.mean((0, 2, 3)), values.std((0, 2, 3), unbiased=False)))
    normalized = lambda x: ((x.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)

    net = recipe["network"]().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=recipe["learning_rate"], momentum=0.9,
                                weight_decay=recipe["weight_decay"])
    loss_of = torch.nn.CrossEntropyLoss()

    steps = len(images) // batch
    step, begin = 0, time.perf_counter()
    for _ in range(args.epochs):
        net.train()
        order = torch.randperm(len(images))
        epoch_loss = epoch_correct = 0
        for i in range(steps):
            picked = order[i * batch:(i + 1) * batch]
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps, args.epochs * steps, recipe["learning_rate"])
            optimizer.zero_grad()
            outputs = net(normalized(augmented(images[picked])))
            loss = loss_of(outputs, labels[picked])
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
            epoch_correct += (outputs.argmax(1) == labels[picked]).sum().item()
            step += 1
    net.eval()
    with torch.no_grad():
        correct = sum((net(normalized(test_images[i:i + 500])).argmax(1) == test_labels[i:i + 500]).sum().item()
                      for i in range(0, len(test_images), 500))
    print(json.dumps({"accuracy": correct / len(test_images), "train_loss": epoch_loss / steps,
                      "train_accuracy": epoch_correct / (steps * batch), "seconds": time.perf_counter() - begin,
                      "torch": torch.__version__}))


if __name__ == "__main__":
    main()
