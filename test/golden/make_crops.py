"""Makes crops.json: images that torchvision crops and resizes, for test/kernels/image_region_test.cpp.

    python test/golden/make_crops.py > test/golden/crops.json

A random crop is cut out, then resized to a square; for validation the shorter side is resized and the centre taken.
"""
import json

import numpy as np
import torch
import torchvision
from torchvision.transforms.v2 import functional as F

# height, width, channels, (top, left, height, width) of a random crop, output
CROPS = [(9, 7, 3, (0, 0, 9, 7), 5), (40, 53, 3, (3, 11, 31, 29), 8), (40, 53, 1, (3, 11, 31, 29), 12),
         (12, 12, 3, (5, 4, 3, 4), 11), (64, 85, 3, (0, 0, 64, 85), 15), (33, 25, 3, (7, 2, 14, 15), 15),
         (1, 1, 3, (0, 0, 1, 1), 4), (90, 70, 1, (1, 0, 88, 66), 3)]
# height, width, channels, shorter side, output
CENTRES = [(9, 7, 3, 7, 5), (40, 53, 3, 18, 16), (53, 40, 1, 18, 16), (64, 85, 3, 13, 11), (20, 31, 3, 27, 24),
           (15, 15, 3, 12, 12)]


def pixels(height, width, channels):
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    return ((y * 31 + x * 17 + c * 101 + y * x * 7) % 256).astype(np.uint8)


def tensor(height, width, channels):
    return torch.from_numpy(pixels(height, width, channels)).permute(2, 0, 1)


def text(image):
    return image.permute(1, 2, 0).contiguous().numpy().tobytes().hex()


cases = []
for height, width, channels, crop, size in CROPS:
    out = F.resized_crop(tensor(height, width, channels), *crop, [size, size], antialias=True)
    cases.append({"height": height, "width": width, "channels": channels, "crop": crop, "size": size,
                  "bytes": text(out)})
for height, width, channels, resize, size in CENTRES:
    out = F.center_crop(F.resize(tensor(height, width, channels), [resize], antialias=True), [size, size])
    cases.append({"height": height, "width": width, "channels": channels, "resize": resize, "size": size,
                  "bytes": text(out)})
print(json.dumps({"torchvision": torchvision.__version__.split("+")[0], "cases": cases}, indent=1))
