"""Makes augment.json: what torchvision's CutMix, MixUp, RandomErasing, TrivialAugmentWide and ColorJitter do with given
random numbers, and PyTorch's loss of the labels that are mixed. Run in the root of the repository, with torch and
torchvision."""
import json
import random
import re
from unittest import mock

import torch
import torch.nn.functional as F
import torchvision.transforms.functional as TF
from torchvision.transforms import InterpolationMode, RandomErasing, TrivialAugmentWide, v2


class Fixed:
    """In place of a distribution, or of a tensor that is filled with random numbers: gives numbers in their order."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def sample(self, *_):
        return torch.tensor([self.numbers.pop(0)], dtype=torch.float64)

    def uniform_(self, low, high):
        return torch.tensor([float(low) + (float(high) - float(low)) * self.numbers.pop(0)], dtype=torch.float64)


def mixed_by(transform, numbers, weight, images, labels):
    transform._dist = Fixed(weight)
    with mock.patch("torch.randint", lambda *_, **__: torch.tensor([numbers.pop(0)])):
        return transform(images, labels)


def cutmix(weight, row, column, height, width):
    # Pixels of image 1 are 1, and those of its partner, image 0, are 0.
    images = torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1).expand(2, 1, height, width).contiguous()
    y, labels = mixed_by(v2.CutMix(num_classes=2), [column, row], weight, images, torch.tensor([0, 1]))
    cut = (y[1, 0] == 0).nonzero()
    box = [0, 0, 0, 0]
    if len(cut):
        (top, left), (bottom, right) = cut.min(0).values.tolist(), cut.max(0).values.tolist()
        box = [top, bottom + 1, left, right + 1]
    return {"weight": weight, "row": row, "column": column, "height": height, "width": width, "box": box,
            "label_weight": labels[1, 1].item()}


def mixup(weight, smoothing):
    torch.manual_seed(3)
    classes, images, labels = 5, torch.randn(4, 3, 2, 3), torch.tensor([3, 0, 0, 4])
    y, targets = mixed_by(v2.MixUp(num_classes=classes), [], weight, images, labels)
    logits = torch.randn(4, classes, dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy(logits, targets.double(), label_smoothing=smoothing, reduction="sum")
    loss.backward()
    return {"weight": weight, "label_smoothing": smoothing, "labels": labels.tolist(),
            "images": images.permute(0, 2, 3, 1).flatten().tolist(), "mixed": y.permute(0, 2, 3, 1).flatten().tolist(),
            "logits": logits.flatten().tolist(), "loss": loss.item(), "dlogits": logits.grad.flatten().tolist()}


def erased_size(u, v, height, width):
    """Of the first try; None if it is too large."""
    numbers = Fixed(u, v, *[0.0] * 18)
    with mock.patch("torch.empty", lambda *_, **__: numbers):
        _, _, h, w, _ = RandomErasing.get_params(
            torch.zeros(3, height, width), scale=(0.02, 0.33), ratio=(0.3, 3.3), value=[0.0])
    return [h, w] if len(numbers.numbers) == 18 else None


def smooth_image(channels, height, width):
    """With an even channel, a channel of few levels, and noise."""
    h, w = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    torch.manual_seed(7)
    planes = [40 + 9 * h + 6 * w, 128 + 100 * torch.sin(0.9 * h) * torch.cos(0.7 * w), 200 - 13 * h + 2 * w]
    image = torch.stack(planes[:channels]) + 6 * torch.randn(channels, height, width)
    return image.clamp(0, 255).to(torch.uint8)


def rows(image):
    return image.permute(1, 2, 0).flatten().tolist()


def trivial(operation, strength, negative, image):
    numbers = [operation, strength, int(negative)]
    magnitudes, signed = list(TrivialAugmentWide()._augmentation_space(31).values())[operation]
    if magnitudes.ndim == 0:
        del numbers[1]
    with mock.patch("torch.randint", lambda *_, **__: torch.tensor([numbers.pop(0)])):
        changed = TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR)(image)
    return {"operation": operation, "strength": strength, "negative": negative, "pixels": rows(changed)}


draw = random.Random(5)
sizes = [(32, 32), (224, 224), (176, 176), (7, 9), (64, 48), (1, 5)]
out = {"cutmix": [], "mixup": [], "erased_sizes": []}
for height, width in sizes:
    for _ in range(6):
        out["cutmix"].append(cutmix(draw.random(), draw.randrange(height), draw.randrange(width), height, width))
    for _ in range(10):
        u, v = draw.random(), draw.random()
        out["erased_sizes"].append({"u": u, "v": v, "height": height, "width": width, "size": erased_size(u, v, height, width)})
for weight, smoothing in [(0.75, 0.1), (0.25, 0.0), (1.0, 0.1), (0.5, 0.2)]:
    out["mixup"].append(mixup(weight, smoothing))
image, grey = smooth_image(3, 11, 9), smooth_image(1, 20, 18)
strengths = torch.stack([m if m.ndim else torch.zeros(31) for m, _ in TrivialAugmentWide()._augmentation_space(31).values()])
out["strengths"] = [[round(value, 5) for value in row] for row in strengths.tolist()]
out["image"], out["grey"] = rows(image), rows(grey)
out["trivial"], out["trivial_grey"], out["hue"] = [], [], []
for operation in range(14):
    for strength, negative in ((7, False), (21, True), (30, False)) if operation not in (0, 12, 13) else ((0, False),):
        out["trivial"].append(trivial(operation, strength, negative, image))
    out["trivial_grey"].append(trivial(operation, 11, True, grey))
for factor in (-0.5, -0.2, 0.05, 0.3):
    out["hue"].append({"factor": factor, "pixels": rows(TF.adjust_hue(image, factor))})
with open("test/golden/augment.json", "w") as file:
    file.write(re.sub(r"\n\s*(?=[-\d\]n])", " ", json.dumps(out, indent=0)))
    file.write("\n")
