"""Plain h5py opens a checkpoint and finds the values that were imported.

Exit status 77 (skipped) without h5py or safetensors. LOCKSTEP is the program.
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy
    from safetensors.numpy import save_file
except ImportError as missing:
    print(f"skipped: {missing}; `make deps-test` installs h5py and safetensors")
    sys.exit(77)

LOCKSTEP = os.environ.get("LOCKSTEP", "build/lockstep")


def resnet18():
    """A ResNet-18 with the CIFAR stem: torchvision's names and shapes, any values."""
    random = numpy.random.default_rng(7)
    tensors = {}

    def add(name, *shape):
        tensors[name] = random.standard_normal(shape).astype(numpy.float32)

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            add(f"{name}.{part}", channels)
        tensors[f"{name}.running_var"] = numpy.abs(tensors[f"{name}.running_var"])
        tensors[f"{name}.num_batches_tracked"] = numpy.array(5, dtype=numpy.int64)

    add("conv1.weight", 64, 3, 3, 3)
    norm("bn1", 64)
    channels = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            add(f"{name}.conv1.weight", width, channels, 3, 3)
            norm(f"{name}.bn1", width)
            add(f"{name}.conv2.weight", width, width, 3, 3)
            norm(f"{name}.bn2", width)
            if channels != width:
                add(f"{name}.downsample.0.weight", width, channels, 1, 1)
                norm(f"{name}.downsample.1", width)
            channels = width
    add("fc.weight", 10, 512)
    add("fc.bias", 10)
    return tensors


def main():
    tensors = resnet18()
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/a.safetensors", f"{folder}/a.h5"
        save_file(tensors, source)
        subprocess.run([LOCKSTEP, "checkpoint", "import", source, target], check=True)
        with h5py.File(target, "r") as file:
            assert file.userblock_size == 4096
            state = json.loads(file["state"].attrs["json"])
            assert state["model"] == {"family": "resnet", "depth": 18, "stem": "cifar", "classes": 10}, state
            n = 0
            for name, values in tensors.items():
                if name.endswith("num_batches_tracked"):
                    continue
                group = "statistics" if "running" in name else "parameters"
                found = file[group][name]
                assert found.chunks is None and found.dtype == numpy.float32
                assert numpy.array_equal(found[...], values), name
                n += 1
            assert n == len(file["parameters"]) + len(file["statistics"])
            weight = file["parameters/fc.weight"]
            offset, values, checksum = weight.id.get_offset(), weight[...], int(weight.attrs["xxh3"])
        # The offset that HDF5 reports is the position of the data in the file, including the user block.
        with open(target, "rb") as file:
            file.seek(offset)
            assert file.read(values.nbytes) == values.tobytes()
        check_checksum(values, checksum)
    print("h5py reads", n, "tensors")


def check_checksum(values, found):
    try:
        import xxhash
    except ImportError:
        return  # the values were compared
    digest = xxhash.xxh3_64_intdigest(values.tobytes())
    assert xxhash.xxh3_64_intdigest(digest.to_bytes(8, "little")) == found


main()
