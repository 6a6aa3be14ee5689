"""The recipes of this folder in PyTorch, with PyTorch's own random numbers; resnet50_v2 has the transforms, the model and the
average of torchvision's references. ../sides.py starts it once per rank. Rank 0 prints one line of JSON."""
import gzip
import os
import pathlib
import sys
import time

import numpy as np
import torch
import torch.distributed
import torchvision
from torchvision.transforms import v2

sys.path.insert(0, sys.path[0] + "/..")
import torch_peer  # noqa: E402
from torch_peer import network  # noqa: E402

RANKS, RANK = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
PADDING = 4
CLASSES, BATCH, LEARNING_RATE, WARMUP_EPOCHS, WARMUP_DECAY = 20, 16, 0.01, 1, 0.01  # of resnet50_v2, as are the next two lines
CROP, RESIZE, SIZE = 48, 66, 64
EMA_STEPS, EMA_DECAY = 4, 0.9


def read_idx(path):
    """An array of MNIST's format, also compressed."""
    content = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    sizes = np.frombuffer(content, ">i4", content[3], 4)
    return torch.from_numpy(np.frombuffer(content, np.uint8, -1, 4 + 4 * len(sizes)).reshape(sizes).copy())


def read_mnist(split):
    """(n, 1, 28, 28) uint8 and labels from the files of MNIST's names."""
    def read(folder, limit):
        images, labels = (read_idx(next(folder.glob(f"{split}-{part}*")))[:limit] for part in ("images", "labels"))
        return images[:, None], labels.long()
    return read


def grey(net):
    net.conv1 = torch.nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    torch.nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    return net


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
    "resnet18": dict(read=(read_batch, read_batch), network=lambda: network(18, "cifar", classes=10), batch=128,
                     learning_rate=0.1, weight_decay=5e-4),
    "mnist": dict(read=(read_mnist("train"), read_mnist("t10k")), network=lambda: grey(network(18, "imagenet", classes=10)),
                  batch=128, learning_rate=0.05, weight_decay=5e-4, warmup=50, flip=False),
    "resnet50": dict(read=(read_folder, read_folder), network=lambda: network(50, "imagenet", classes=20, zero_init_residual=True),
                     batch=16, learning_rate=0.01, weight_decay=1e-4),
}
RECIPES["resnet18_2gpu"] = RECIPES["resnet18"]  # with a batch of this size on each rank


def augmented(images, flip):
    """A random crop of the image padded with zeros, and a random flip, for each sample separately."""
    change = v2.Compose([v2.RandomCrop(images.shape[-1], padding=PADDING), *([v2.RandomHorizontalFlip()] if flip else [])])
    return torch.stack([change(image) for image in images])


def evaluate(net, batches):
    """The mean loss and the accuracy over all images."""
    net.eval()
    loss = correct = count = 0
    with torch.no_grad():
        for images, labels in batches:
            outputs = net(images.contiguous(memory_format=torch.channels_last))
            loss += torch.nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            correct += (outputs.argmax(1) == labels).sum().item()
            count += len(labels)
    return loss / count, correct / count


def train(args):
    recipe = RECIPES[args.recipe]
    batch = recipe["batch"]

    (images, labels), (test_images, test_labels) = (read(path, limit) for read, path, limit in zip(
        recipe["read"], (args.train, args.test), (args.train_limit, args.test_limit)))
    values = images.double() / 255
    mean, std = (s.float().view(1, -1, 1, 1) for s in (values.mean((0, 2, 3)), values.std((0, 2, 3), unbiased=False)))
    normalized = lambda x: ((x.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)
    test_batches = lambda: ((normalized(x), y) for x, y in zip(test_images.split(500), test_labels.split(500)))

    net = recipe["network"]().to(memory_format=torch.channels_last)
    if RANKS > 1:
        torch.distributed.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=recipe["learning_rate"], momentum=0.9,
                                weight_decay=recipe["weight_decay"])
    loss_of = torch.nn.CrossEntropyLoss()
    orders = torch.Generator().manual_seed(args.seed)  # of the samples: the same on all ranks
    torch.manual_seed(args.seed * RANKS + RANK)

    steps = len(images) // (RANKS * batch)
    found = {"step": [], "evaluation": [], "accuracies": []}
    begin = time.perf_counter()
    for epoch in range(args.epochs):
        net.train()
        order = torch.randperm(len(images), generator=orders)
        sums = torch.zeros(2, dtype=torch.float64)
        for i in range(steps):
            step = epoch * steps + i
            picked = order[i * RANKS * batch:][RANK * batch:(RANK + 1) * batch]
            for group in optimizer.param_groups:
                group["lr"] = torch_peer.learning_rate(step, recipe.get("warmup", steps), args.epochs * steps,
                                                       recipe["learning_rate"])
            optimizer.zero_grad()
            outputs = net(normalized(augmented(images[picked], recipe.get("flip", True))))
            loss = loss_of(outputs, labels[picked])
            loss.backward()
            optimizer.step()
            of_step = torch.tensor([loss.item(), (outputs.argmax(1) == labels[picked]).sum().item()], dtype=torch.float64)
            if RANKS > 1:
                torch.distributed.all_reduce(of_step)
            sums += of_step
            found["step"].append([step + 1, of_step[0].item() / RANKS])
        loss, accuracy = evaluate(net, test_batches())
        found["evaluation"].append([step + 1, loss])
        found["accuracies"].append(accuracy)
    train_loss, correct = sums.tolist()
    return {**found, "loss": loss, "accuracy": accuracy, "train_loss": train_loss / (RANKS * steps),
            "train_accuracy": correct / (RANKS * steps * batch), "seconds": time.perf_counter() - begin}


def statistics_of(folder):
    """The mean and the standard deviation of each channel of the training images."""
    data = torchvision.datasets.ImageFolder(folder, v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float64, scale=True)]))
    sums = torch.stack([torch.stack([x.sum((1, 2)), (x * x).sum((1, 2))]) for x, _ in data]).sum(0) / (len(data) * SIZE**2)
    return sums[0].tolist(), (sums[1] - sums[0] ** 2).sqrt().tolist()


def parameter_groups(net):
    """torchvision.ops._utils.split_normalization_params with --norm-weight-decay 0."""
    norms, others = torchvision.ops._utils.split_normalization_params(net)
    return [{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": 2e-5}]


def scheduler_of(optimizer, epochs):
    """--lr-scheduler cosineannealinglr --lr-warmup-method linear of torchvision's references; called once per epoch."""
    schedulers = torch.optim.lr_scheduler
    cosine = schedulers.CosineAnnealingLR(optimizer, T_max=epochs - WARMUP_EPOCHS, eta_min=0.0)
    warmup = schedulers.LinearLR(optimizer, start_factor=WARMUP_DECAY, total_iters=WARMUP_EPOCHS)
    return schedulers.SequentialLR(optimizer, schedulers=[warmup, cosine], milestones=[WARMUP_EPOCHS])


def train_v2(args):
    mean, std = statistics_of(args.train)
    last = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    train = torchvision.datasets.ImageFolder(args.train, v2.Compose(
        [v2.RandomResizedCrop(CROP, antialias=True), v2.RandomHorizontalFlip(),
         v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR), *last, v2.RandomErasing(0.1)]))
    test = torchvision.datasets.ImageFolder(args.test, v2.Compose([v2.Resize(RESIZE, antialias=True), v2.CenterCrop(SIZE), *last]))
    loader = torch.utils.data.DataLoader(train, BATCH, shuffle=True, drop_last=True)
    test_loader = torch.utils.data.DataLoader(test, 50)
    mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=CLASSES), v2.CutMix(alpha=1.0, num_classes=CLASSES)])

    net = network(50, "imagenet", classes=CLASSES).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(parameter_groups(net), lr=LEARNING_RATE, momentum=0.9)
    scheduler = scheduler_of(optimizer, args.epochs)
    average = torch.optim.swa_utils.AveragedModel(net, avg_fn=lambda a, w, n: EMA_DECAY * a + (1 - EMA_DECAY) * w,
                                                  use_buffers=True)
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    steps, begin = len(loader), time.perf_counter()
    for epoch in range(args.epochs):
        net.train()
        epoch_loss = 0
        for i, (images, labels) in enumerate(loader):
            images, labels = mix(images, labels)
            optimizer.zero_grad()
            loss = loss_of(net(images.contiguous(memory_format=torch.channels_last)), labels)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
            if i % EMA_STEPS == 0:
                average.update_parameters(net)
                if epoch < WARMUP_EPOCHS:
                    average.n_averaged.fill_(0)
        scheduler.step()
    seconds = time.perf_counter() - begin
    loss, accuracy = evaluate(net, test_loader)
    ema_loss, ema_accuracy = evaluate(average, test_loader)
    return {"train_loss": epoch_loss / steps, "loss": loss, "accuracy": accuracy, "ema_loss": ema_loss,
            "ema_accuracy": ema_accuracy, "seconds": seconds}


def main():
    parser = torch_peer.parser(__doc__, seed=None, epochs=None, threads=2)
    parser.add_argument("--recipe", choices=(*RECIPES, "resnet50_v2"), required=True)
    for split in ("train", "test"):
        parser.add_argument(f"--{split}", type=pathlib.Path, required=True, help="a file of CIFAR-10, or class folders")
        parser.add_argument(f"--{split}-limit", type=int)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    found = train_v2(args) if args.recipe == "resnet50_v2" else train(args)
    if RANK == 0:
        torch_peer.output(**found)


if __name__ == "__main__":
    main()
