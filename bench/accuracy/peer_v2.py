"""The recipe of resnet50_v2.yaml in PyTorch, with the transforms, the model and the average of torchvision's references.
Prints one line of JSON."""
import argparse
import json
import pathlib
import sys
import time

import torch
import torchvision
from torchvision.transforms import v2

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from torch_networks import network  # noqa: E402

CLASSES, BATCH, LEARNING_RATE, WARMUP_EPOCHS, WARMUP_DECAY = 20, 16, 0.01, 1, 0.01
CROP, RESIZE, SIZE = 48, 66, 64
EMA_STEPS, EMA_DECAY = 4, 0.9


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


def evaluate(net, loader):
    net.eval()
    loss = correct = count = 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images.contiguous(memory_format=torch.channels_last))
            loss += torch.nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            correct += (outputs.argmax(1) == labels).sum().item()
            count += len(labels)
    return loss / count, correct / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", choices=["resnet50_v2"], required=True)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="class folders")
    parser.add_argument("--test", type=pathlib.Path, required=True, help="class folders")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

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
    print(json.dumps({"train_loss": epoch_loss / steps, "loss": loss, "accuracy": accuracy, "ema_loss": ema_loss,
                      "ema_accuracy": ema_accuracy, "seconds": seconds, "torch": torch.__version__,
                      "torchvision": torchvision.__version__}))


if __name__ == "__main__":
    main()
