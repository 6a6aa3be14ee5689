"""Makes augment.json: what torchvision's CutMix, MixUp, RandomErasing, TrivialAugmentWide and ColorJitter do with given
random numbers, and PyTorch's loss for mixed labels. Run in the root of the repository, with torch and
torchvision."""
import itertools
import json
import random
import re
from unittest import mock

import numpy as np
import philox
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as TF
from torchvision.transforms import ColorJitter, InterpolationMode, RandomErasing, TrivialAugmentWide, v2


class Fixed:
    """Replaces a distribution, or a tensor that is filled with random numbers: returns given numbers in order."""

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
    """The size in the first try; None if it is too large."""
    numbers = Fixed(u, v, *[0.0] * 18)
    with mock.patch("torch.empty", lambda *_, **__: numbers):
        _, _, h, w, _ = RandomErasing.get_params(
            torch.zeros(3, height, width), scale=(0.02, 0.33), ratio=(0.3, 3.3), value=[0.0])
    return [h, w] if len(numbers.numbers) == 18 else None


class Stream:
    """The random numbers of one sample in one epoch, as in include/lockstep/philox.h."""

    def __init__(self, seed, purpose, sample, epoch):
        self.key, self.counter = (seed, purpose), (sample, epoch)

    def block(self, index):
        counter = [np.array([part]) for part in (index, 0, *self.counter)]
        return [int(number[0]) for number in philox.philox4x32(counter, self.key)]

    def uniform(self, index, number):
        high, low = self.block(index)[2 * number:2 * number + 2]
        return ((high >> 5) * 67108864.0 + (low >> 6) + 0.5) / 9007199254740992.0


ERASE = 10


def erased(height, width, sample, epoch, probability):
    """The rectangle that a whole call of RandomErasing erases with the random numbers of a sample, and how many of its tries
    drew a size. Pixels are 2 and become 0."""
    stream = Stream(11, ERASE, sample, epoch)
    tries, places = [], []

    class Try:
        """Replaces a tensor of one element, of which torchvision fills two in each try."""
        def uniform_(self, low, high):
            if len(tries) % 2 == 0:
                places[:] = stream.block(len(tries) + 2)[:2]
            tries.append(stream.uniform(len(tries) // 2 * 2 + 1, len(tries) % 2))
            return torch.tensor([float(low) + (float(high) - float(low)) * tries[-1]], dtype=torch.float64)

    with mock.patch("torch.rand", lambda *_: torch.tensor([stream.uniform(0, 0)], dtype=torch.float64)), \
            mock.patch("torch.empty", lambda *_, **__: Try()), \
            mock.patch("torch.randint", lambda low, high, **_: torch.tensor([low + (places.pop(0) * (high - low) >> 32)])):
        image = RandomErasing(probability)(torch.full((3, height, width), 2.0))
    zeros = (image[0] == 0).nonzero()
    if not len(zeros):
        return {"box": None, "tries": len(tries) // 2}
    (top, left), (bottom, right) = zeros.min(0).values.tolist(), zeros.max(0).values.tolist()
    expected = torch.full_like(image, 2.0)
    expected[:, top:bottom + 1, left:right + 1] = 0
    assert torch.equal(image, expected), "a rectangle of zeros in all channels"
    return {"box": [top, left, bottom + 1 - top, right + 1 - left], "tries": len(tries) // 2}


def erasing(height, width, epoch, probability, samples=24):
    found = [erased(height, width, 1000003 * n + 17, epoch, probability) for n in range(samples)]
    return {"height": height, "width": width, "epoch": epoch, "probability": probability,
            "boxes": [one["box"] for one in found], "tries": [one["tries"] for one in found]}


def jittered(order, factors, image):
    """A whole call of ColorJitter. `order` has the indices of brightness, contrast, saturation and hue; a factor of
    None turns that change off."""
    drawn = (torch.tensor(order), *factors)
    with mock.patch.object(ColorJitter, "get_params", staticmethod(lambda *_: drawn)):
        changed = ColorJitter()(image)
    return {"order": order, "factors": factors, "pixels": rows(changed)}


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
out["erased"] = [erasing(height, width, epoch, probability)
                 for height, width, epoch, probability in [(32, 32, 0, 0.5), (176, 176, 1, 1.0), (7, 9, 2, 1.0), (24, 4, 0, 1.0),
                                                           (3, 30, 3, 1.0), (1, 5, 0, 1.0), (2, 90, 1, 1.0)]]
small = image[:, :7, :6]
out["jitter"] = []
for order in itertools.permutations(range(4)):
    factors = [draw.uniform(0.6, 1.4), draw.uniform(0.6, 1.4), draw.uniform(0.6, 1.4), draw.uniform(-0.1, 0.1)]
    out["jitter"].append(jittered(order, factors, small))
for off in range(4):
    factors = [None if i == off else x for i, x in enumerate([0.3, 1.9, 0.0, 0.45])]
    out["jitter"].append(jittered([3, 1, 0, 2], factors, small))
with open("test/golden/augment.json", "w") as file:
    file.write(re.sub(r"\n\s*(?=[-\d\]n])", " ", json.dumps(out, indent=0)))
    file.write("\n")
