"""The PyTorch side of loader_jpeg.py. Each call prints one line of JSON.

    loader_jpeg_peer.py make PHOTOS OUT COUNT     writes COUNT JPEG files of 500x375 with quality 90 to the class folder OUT/0;
                                                  PHOTOS: a folder of photographs, or "generated"
    loader_jpeg_peer.py run FOLDER DECODER        reads them with a DataLoader with one worker; DECODER: torchvision or pillow
"""
import json
import pathlib
import random
import resource
import sys
import time

WIDTH, HEIGHT, BATCH = 500, 375, 32


def generated(seed):
    """An image whose details become weaker as they become finer, as in photographs."""
    import torch
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
    folder = pathlib.Path(out) / "0"
    folder.mkdir(parents=True)
    n_bytes = 0
    if photos == "generated":
        for i in range(count):
            path = folder / f"{i:05}.jpg"
            Image.fromarray(generated(i)).save(path, quality=90)
            n_bytes += path.stat().st_size
        return {"count": count, "bytes": n_bytes / count, "source": "generated"}
    files = sorted(path for path in pathlib.Path(photos).rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
    tiles = [Image.open(path).convert("RGB") for path in files[:2000]]
    if not tiles:
        sys.exit(f"{photos} contains no JPEG files")
    choose = random.Random(1)
    for i in range(count):
        mosaic = Image.new("RGB", (WIDTH, HEIGHT))
        size = tiles[0].width
        for top in range(0, HEIGHT, size):
            for left in range(0, WIDTH, size):
                mosaic.paste(choose.choice(tiles), (left, top))
        path = folder / f"{i:05}.jpg"
        mosaic.save(path, quality=90)
        n_bytes += path.stat().st_size
    return {"count": count, "bytes": n_bytes / count, "source": "mosaics of photographs"}


def processor_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def run(folder, decoder):
    """One epoch: random crops resized to 224x224, as bytes, shuffled. Lockstep flips on the device, so nothing is flipped."""
    import PIL
    import torch
    import torchvision
    from torchvision.transforms import v2
    crop = [v2.RandomResizedCrop(224, antialias=True)]
    if decoder == "torchvision":
        read = lambda path: torchvision.io.decode_image(torchvision.io.read_file(path), torchvision.io.ImageReadMode.RGB)
    else:
        read = torchvision.datasets.folder.pil_loader
        crop.append(v2.PILToTensor())
    data = torchvision.datasets.ImageFolder(folder, v2.Compose(crop), loader=read)
    processor = processor_seconds()
    batches = iter(torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=1, drop_last=True))
    next(batches)
    begin = time.perf_counter()
    images = sum(len(labels) for _, labels in batches)
    seconds = time.perf_counter() - begin
    del batches  # Ends the worker, whose time counts from then on.
    return {"images_per_second": images / seconds,
            "processor_ms": 1e3 * (processor_seconds() - processor) / (images + BATCH),
            "torch": torch.__version__, "torchvision": torchvision.__version__, "pillow": PIL.__version__}


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    print(json.dumps(make(*rest[:2], int(rest[2])) if command == "make" else run(*rest)))
