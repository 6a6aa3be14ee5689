"""The FFCV side of loader_jpeg.py. Each call prints one line of JSON.

    loader_ffcv.py write FOLDER FILE     writes the images of the class folders in FOLDER to a file of FFCV, as JPEG, quality 90
    loader_ffcv.py run FILE              reads them with one worker thread, after an epoch that compiles FFCV's functions

FFCV decodes whole images with libjpeg-turbo and resizes the crop with OpenCV's area filter, which is its only way.
"""
import importlib.metadata
import json
import pathlib
import resource
import sys
import time

BATCH = 32


def write(folder, path):
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


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(path):
    """One epoch: random crops resized to 224x224, as bytes, shuffled."""
    import torch
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
    processor = processor_seconds()
    batches = iter(loader)
    next(batches)
    begin = time.perf_counter()
    images = sum(len(labels) for _, labels in batches)
    seconds = time.perf_counter() - begin
    return {"images_per_second": images / seconds,
            "processor_ms": 1e3 * (processor_seconds() - processor) / (images + BATCH),
            "ffcv": importlib.metadata.version("ffcv"), "torch": torch.__version__}


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    print(json.dumps(write(*rest) if command == "write" else run(*rest)))
