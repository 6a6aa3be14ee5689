"""The sides of PyTorch and FFCV in loader_jpeg.py. Each call prints one line of JSON.

  make PHOTOS OUT COUNT      writes COUNT JPEG files of 500x375 with quality 90 to the class folder OUT/0;
                             PHOTOS: a folder of photographs, or "generated"
  run FOLDER DECODER         reads them with a DataLoader with one worker; DECODER: torchvision or pillow
  write_ffcv FOLDER FILE     writes the images of the class folders in FOLDER to a file of FFCV, as JPEG, quality 90
  run_ffcv FILE              reads them with one worker thread, after an epoch that compiles FFCV's functions

FFCV decodes whole images with libjpeg-turbo and resizes the crop with OpenCV's area filter, which is its only way.
"""
import importlib.metadata
import pathlib
import random
import sys

import torch

sys.path.insert(0, sys.path[0] + "/..")
import torch_peer  # noqa: E402

WIDTH, HEIGHT, BATCH = 500, 375, 32


def generated(seed):
    """An image whose details become weaker as they become finer, as in photographs."""
    random_numbers = torch.Generator().manual_seed(seed)
    total = torch.zeros(1, 3, HEIGHT, WIDTH)
    for octave in range(8):
        shape = (1, 3, max(2, HEIGHT >> (7 - octave)), max(2, WIDTH >> (7 - octave)))
        noise = torch.randn(shape, generator=random_numbers)
        total += 0.82**octave * torch.nn.functional.interpolate(noise, (HEIGHT, WIDTH), mode="bilinear")
    return (128 + 48 * total[0]).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()


def make(photos, out, count):
    """Mosaics of the photographs, or generated images, with as many bytes as photographs of that size."""
    from PIL import Image
    tiles, choose = [], random.Random(1)
    if photos != "generated":
        files = sorted(path for path in pathlib.Path(photos).rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
        tiles = [Image.open(path).convert("RGB") for path in files[:2000]]
        if not tiles:
            sys.exit(f"{photos} contains no JPEG files")

    def mosaic():
        image, size = Image.new("RGB", (WIDTH, HEIGHT)), tiles[0].width
        for top in range(0, HEIGHT, size):
            for left in range(0, WIDTH, size):
                image.paste(choose.choice(tiles), (left, top))
        return image

    folder = pathlib.Path(out) / "0"
    folder.mkdir(parents=True)
    n_bytes = 0
    for i in range(int(count)):
        path = folder / f"{i:05}.jpg"
        (mosaic() if tiles else Image.fromarray(generated(i))).save(path, quality=90)
        n_bytes += path.stat().st_size
    return {"count": int(count), "bytes": n_bytes / int(count), "source": "mosaics of photographs" if tiles else "generated"}


def run(folder, decoder):
    """One epoch: random crops resized to 224x224, as bytes, shuffled. Lockstep flips on the device, so nothing is flipped."""
    import PIL
    import torchvision
    from torchvision.transforms import v2
    crop = [v2.RandomResizedCrop(224, antialias=True)]
    if decoder == "torchvision":
        read = lambda path: torchvision.io.decode_image(torchvision.io.read_file(path), torchvision.io.ImageReadMode.RGB)
    else:
        read = torchvision.datasets.folder.pil_loader
        crop.append(v2.PILToTensor())
    data = torchvision.datasets.ImageFolder(folder, v2.Compose(crop), loader=read)
    found = torch_peer.loader_speed(torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=1, drop_last=True), BATCH)
    return {**found, "pillow": PIL.__version__}


def write_ffcv(folder, path):
    import numpy
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class Images:
        def __init__(self):
            self.files = sorted(pathlib.Path(folder).rglob("*.jpg"))

        def __len__(self):
            return len(self.files)

        def __getitem__(self, i):
            return numpy.array(Image.open(self.files[i]).convert("RGB")), 0

    images = Images()
    DatasetWriter(path, {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()},
                  num_workers=1).from_indexed_dataset(images)
    return {"count": len(images), "bytes": pathlib.Path(path).stat().st_size / len(images)}


def run_ffcv(path):
    """One epoch: random crops resized to 224x224, as bytes, shuffled."""
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor
    torch.set_num_threads(1)
    loader = Loader(path, batch_size=BATCH, num_workers=1, order=OrderOption.RANDOM, os_cache=True, drop_last=True,
                    pipelines={"image": [RandomResizedCropRGBImageDecoder((224, 224)), ToTensor()],
                               "label": [IntDecoder(), ToTensor()]})
    for _ in loader:
        pass
    return {**torch_peer.loader_speed(loader, BATCH), "ffcv": importlib.metadata.version("ffcv")}


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    torch_peer.output(**{"make": make, "run": run, "write_ffcv": write_ffcv, "run_ffcv": run_ffcv}[command](*rest))
