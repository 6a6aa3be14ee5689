# timeout: 300
"""An imported set of images or text is read by plain h5py, a set that h5py wrote is read by lockstep, and a compressed
or linked one is refused with a sentence.

The program is $LOCKSTEP, or build/lockstep. Without h5py the test is skipped (exit status 77).
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import h5py
    import numpy as np
except ImportError:
    print("skipped: h5py is not installed")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
LOCKSTEP = os.environ.get("LOCKSTEP", str(ROOT / "build" / "lockstep"))
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
RECORDS = 40


def lockstep(*arguments, status=0):
    done = subprocess.run([LOCKSTEP, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def make_batches(folder):
    """CIFAR-10's binary format: returns what h5py must find."""
    labels = (np.arange(RECORDS) * 7 % 10).astype(np.uint8)
    planes = np.random.default_rng(1).integers(0, 256, (RECORDS, 3, 32, 32), dtype=np.uint8)
    records = np.concatenate([labels[:, None], planes.reshape(RECORDS, -1)], axis=1)
    (folder / "data_batch_1.bin").write_bytes(records.tobytes())
    return planes.transpose(0, 2, 3, 1), labels


def check_import(folder):
    images, labels = make_batches(folder)
    path = folder / "train.h5"
    out, _ = lockstep("data", "import", "cifar10", folder, path)
    assert out.startswith(f"Imported {RECORDS} train images"), out
    with h5py.File(path) as file:
        assert file["images"].dtype == np.uint8 and file["labels"].dtype == np.int32
        assert file["images"].chunks is None and file["labels"].chunks is None
        assert np.array_equal(file["images"][:], images)
        assert np.array_equal(file["labels"][:], labels)
        attributes = dict(file.attrs)
    assert attributes["format"] == "lockstep-images" and attributes["format_version"] == 1
    assert attributes["split"] == "train" and attributes["classes"] == 10
    assert list(attributes["class_names"]) == NAMES
    scaled = images.astype(np.float64) / 255
    np.testing.assert_allclose(attributes["mean"], scaled.mean((0, 1, 2)), rtol=1e-7)  # stored in fp32
    np.testing.assert_allclose(attributes["std"], scaled.std((0, 1, 2)), rtol=1e-7)
    assert len(attributes["images_xxh3"]) == 16 and len(attributes["labels_xxh3"]) == 16

    info = json.loads(lockstep("data", "info", path, "--json")[0])
    assert info["samples"] == RECORDS and info["has_user_block"] is True
    assert info["samples_per_class"] == [4] * 10
    lockstep("data", "verify", path)

    # One byte of an image is changed: the file still opens, but verify reports the damage.
    with open(path, "r+b") as file:
        file.seek(info["images_offset_bytes"] + 5000)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    report = folder / "verify.json"
    out, _ = lockstep("data", "verify", path, f"--json={report}", status=1)
    assert "'/images'" in out and "is damaged" in out, out
    assert json.loads(report.read_text())["good"] is False
    # Without its magic number, the file is not taken for one of another program, whose metadata nothing protects.
    with h5py.File(path, "r+") as file:
        file.attrs["mean"] = [0.0, 0.0, 0.0]
    bad = bytearray(path.read_bytes())
    bad[3] ^= 1
    path.write_bytes(bad)
    assert "is damaged" in lockstep("data", "verify", path, status=1)[0]
    assert "[data_damaged]" in lockstep("data", "show", path, status=1)[1]
    # An existing output file is kept unless it may be replaced.
    _, error = lockstep("data", "import", "cifar10", folder, path, status=2)
    assert "--force" in error, error
    lockstep("data", "import", "cifar10", folder, path, "--force")
    lockstep("data", "verify", path)


def check_chunked_import(folder):
    images, labels = make_batches(folder)
    path = folder / "train.h5"
    for chunk, alignment, rows in (("30000", "4KiB", 9), ("3KiB", 0, 1), ("64KiB", "64KiB", 21)):
        lockstep("data", "import", "cifar10", folder, path, "--chunk", chunk, "--alignment", alignment, "--force")
        with h5py.File(path) as file:
            assert file["images"].chunks == (rows, 32, 32, 3) and file["labels"].chunks is None
            assert file["images"].compression is None
            assert np.array_equal(file["images"][:], images) and np.array_equal(file["labels"][:], labels)
        info = json.loads(lockstep("data", "info", path, "--json")[0])
        assert info["chunk_bytes"] == rows * 3072 and info["chunks"] == -(-RECORDS // rows) and info["has_user_block"] is True
        if alignment:
            assert info["images_offset_bytes"] % 4096 == 0
        lockstep("data", "verify", path)
    out, _ = lockstep("data", "info", path)
    assert "2 chunks of 63 KiB, 21 images each" in out, out

    # If everything fits into one chunk, the images are contiguous, as with --chunk 0.
    lockstep("data", "import", "cifar10", folder, path, "--force")
    lockstep("data", "import", "cifar10", folder, folder / "contiguous.h5", "--chunk", 0)
    assert path.read_bytes() == (folder / "contiguous.h5").read_bytes()
    assert json.loads(lockstep("data", "info", path, "--json")[0])["chunks"] == 0
    # A larger alignment alone makes the chunks larger too.
    lockstep("data", "import", "cifar10", folder, path, "--alignment", "1MiB", "--force")
    _, error = lockstep("data", "import", "cifar10", folder, path, "--chunk", "64KiB", "--force", status=2)
    assert "--chunk 65536 is smaller than --alignment 524288" in error, error
    lockstep("data", "import", "cifar10", folder, path, "--chunk", "2GiB", "--force", status=2)


def check_jpeg_import(folder):
    """JPEG files stored as bytes, which plain h5py splits up again. The images are those of the fuzzer's corpus."""
    corpus = ROOT / "test" / "fuzz" / "corpus" / "jpeg"
    files = []
    for label, (name, class_name, size) in enumerate([("colour", "a", (9, 7)), ("grey", "b", (16, 16))]):
        (folder / "in" / class_name).mkdir(parents=True)
        data = (corpus / name).read_bytes()[1:]  # the first byte is the fuzzer's
        (folder / "in" / class_name / f"{name}.JPEG").write_bytes(data)
        files.append((data, size, label))
    path = folder / "jpeg.h5"
    lockstep("data", "import", "imagefolder", folder / "in", path, "--split", "val")
    with h5py.File(path) as file:
        assert file["images"].chunks is None and file["images"].dtype == np.uint8
        offsets = file["offsets"][:]
        assert offsets.dtype == np.uint64 and list(file["labels"][:]) == [label for _, _, label in files]
        for i, (data, size, _) in enumerate(files):
            assert file["images"][int(offsets[i]) : int(offsets[i + 1])].tobytes() == data
            assert tuple(file["sizes"][i]) == size
        assert file.attrs["format_version"] == 2 and file.attrs["split"] == "val"
    info = json.loads(lockstep("data", "info", path, "--json")[0])
    assert info["encoding"] == "jpeg" and info["height"] == 0 and info["has_user_block"] is True
    # The same set, written by h5py, can be read as well.
    with h5py.File(path) as file, h5py.File(folder / "foreign.h5", "w") as copy:
        for name in ("images", "offsets", "sizes", "labels"):
            copy[name] = file[name][:]
        copy.attrs.update(file.attrs)
    lockstep("data", "verify", folder / "foreign.h5")
    with h5py.File(folder / "foreign.h5", "r+") as copy:
        copy["offsets"][1] = 10**9
    assert "'/images', which is not possible" in lockstep("data", "info", folder / "foreign.h5", status=1)[1]


def write_by_h5py(path, user_block=0, label_chunks=None, **images_options):
    with h5py.File(path, "w", userblock_size=user_block) as file:
        file.create_dataset("images", data=np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3), **images_options)
        file.create_dataset("labels", data=np.array([0, 1, 2, 2, 1, 0], dtype=np.int32), chunks=label_chunks)
        file.attrs.update(format="lockstep-images", format_version=1, classes=3, mean=[0.5] * 3, std=[0.25] * 3)


def check_foreign(folder):
    path = folder / "h5py.h5"
    write_by_h5py(path)
    info = json.loads(lockstep("data", "info", path, "--json")[0])
    assert info["sealed"] is info["has_user_block"]  # its name until release 0.1
    assert info["samples"] == 6 and info["width"] == 5 and info["has_user_block"] is False
    assert info["samples_per_class"] == [2, 2, 2] and info["mean"] == [0.5] * 3

    # Chunks of whole images, whatever the index is and wherever HDF5's data begins in the file.
    images = np.arange(6 * 4 * 5 * 3, dtype=np.uint8)
    for options in ({"chunks": (2, 4, 5, 3)}, {"chunks": (4, 4, 5, 3)}, {"chunks": (2, 4, 5, 3), "maxshape": (None, 4, 5, 3)}, {"chunks": (8, 4, 5, 3), "maxshape": (9, 4, 5, 3)}):
        write_by_h5py(path, **options)
        info = json.loads(lockstep("data", "info", path, "--json")[0])
        rows = options["chunks"][0]
        assert info["chunk_bytes"] == rows * 60 and info["chunks"] == -(-6 // rows), info
        with h5py.File(path) as file:
            first = file["images"].id.get_chunk_info(0).byte_offset
        begin = info["images_offset_bytes"]
        assert begin == first
        assert path.read_bytes()[begin : begin + min(rows, 6) * 60] == images[: rows * 60].tobytes()

    # What another program wrote is not damaged, although it has no checksums and no user block.
    out, _ = lockstep("data", "verify", path, f"--json={folder / 'verify.json'}")
    found = json.loads((folder / "verify.json").read_text())
    assert found["good"] is True and found["damaged"] == [] and len(found["unchecked"]) == 3, found
    assert "is valid" not in out and "images_xxh3" in out, out
    write_by_h5py(path, user_block=4096)  # which only imports have
    assert "[data_damaged]" in lockstep("data", "info", path, status=1)[1]

    write_by_h5py(path, chunks=(2, 4, 5, 3), compression="gzip")
    assert "is compressed" in lockstep("data", "info", path, status=1)[1]
    write_by_h5py(path, chunks=(2, 4, 5, 3), fletcher32=True)
    assert "another filter" in lockstep("data", "info", path, status=1)[1]
    write_by_h5py(path, chunks=(2, 2, 5, 3))
    assert "must hold whole images of (4, 5, 3)" in lockstep("data", "info", path, status=1)[1]
    write_by_h5py(path, label_chunks=(2,))
    assert "'/labels' is stored in chunks; it is read in place and must be contiguous" in lockstep("data", "info", path, status=1)[1]

    write_by_h5py(folder / "other.h5")
    with h5py.File(path, "w") as file:
        file["images"] = h5py.ExternalLink("other.h5", "/images")
        file["labels"] = np.zeros(6, np.int32)
        file.attrs.update(format="lockstep-images", format_version=1)
    assert "must be in this file" in lockstep("data", "info", path, status=1)[1]

    with h5py.File(path, "w") as file:
        file["images"] = np.zeros(3)
    assert "not a data set of Lockstep" in lockstep("data", "info", path, status=1)[1]


def check_text(folder):
    (folder / "in.jsonl").write_text('{"text": "To be, or not to be"}\n{"text": "that is the question"}\n')
    tokenizer = ROOT / "data" / "samples" / "tokenizer.json"
    path, copied = folder / "text.h5", folder / "copy.h5"
    lockstep("data", "import", "text", folder / "in.jsonl", path, "--tokenizer", tokenizer)
    with h5py.File(path) as file:
        tokens, documents = file["tokens"], file["documents"]
        assert tokens.dtype == np.uint16 and tokens.chunks is None and documents.dtype == np.uint64
        assert documents[0] == 0 and documents[2] == len(tokens) and tokens[-1] == tokens[documents[1] - 1] == 0
        assert file["tokenizer"][:].tobytes() == tokenizer.read_bytes()
        assert file.attrs["format"] == "lockstep-text" and file.attrs["format_version"] == 1
        assert file.attrs["vocabulary_size"] == 1024 and file.attrs["end_token"] == 0
        assert file.attrs["source"] == "in.jsonl" and len(file.attrs["documents_xxh3"]) == 16
        n_tokens = len(tokens)
        # The same set, written by h5py, can be read as well.
        with h5py.File(copied, "w") as copy:
            for name in ("tokens", "documents", "tokenizer", "tokens_xxh3"):
                copy[name] = file[name][:]
            copy.attrs.update(file.attrs)
    lockstep("data", "verify", copied)
    info = json.loads(lockstep("data", "info", copied, "--json")[0])
    assert info["format"] == "lockstep-text" and info["has_user_block"] is False
    assert info["documents"] == 2 and info["tokens"] == n_tokens
    with h5py.File(copied, "r+") as copy:
        copy["tokens"][1] = 1024
    assert "block 0 of '/tokens'" in lockstep("data", "verify", copied, status=1)[0]
    with h5py.File(copied, "r+") as copy:
        del copy["tokens"]
        copy.create_dataset("tokens", data=np.zeros(n_tokens, np.uint16), compression="gzip")
    assert "it is read in place and must be contiguous" in lockstep("data", "info", copied, status=1)[1]


def check_given_statistics(folder):
    make_batches(folder)
    given = ("--mean", "0.1,0.2,0.3", "--std", "0.4,0.5,0.6")
    lockstep("data", "import", "cifar10", *given, folder, folder / "given.h5", "--limit", 7)
    info = json.loads(lockstep("data", "info", folder / "given.h5", "--json")[0])
    assert info["samples"] == 7
    np.testing.assert_allclose(info["mean"], [0.1, 0.2, 0.3], rtol=1e-7)  # stored in fp32
    np.testing.assert_allclose(info["std"], [0.4, 0.5, 0.6], rtol=1e-7)
    lockstep("data", "import", "cifar10", folder, folder / "same.h5", "--statistics-from", folder / "given.h5")
    again = json.loads(lockstep("data", "info", folder / "same.h5", "--json")[0])
    assert again["mean"] == info["mean"] and again["std"] == info["std"]
    assert lockstep("data", "import", "cifar10", folder, folder / "no.h5", "--mean", "0.1,0.2", status=2)[1]


def check_samples():
    listed = dict(reversed(line.split()) for line in (ROOT / "data" / "MANIFEST.sha256").read_text().splitlines())
    for name, n in (("cifar10_train.h5", 2000), ("cifar10_test.h5", 500)):
        path = ROOT / "data" / "samples" / name
        assert hashlib.sha256(path.read_bytes()).hexdigest() == listed[f"samples/{name}"]
        lockstep("data", "verify", path)
        with h5py.File(path) as file:
            assert file["images"].shape == (n, 32, 32, 3)
            assert np.array_equal(np.bincount(file["labels"][:]), [n // 10] * 10)
            assert list(file.attrs["class_names"]) == NAMES
    for name, n in (("shakespeare_train.h5", 411269), ("shakespeare_test.h5", 49423)):
        path = ROOT / "data" / "samples" / name
        assert hashlib.sha256(path.read_bytes()).hexdigest() == listed[f"samples/{name}"]
        lockstep("data", "verify", path)
        with h5py.File(path) as file:
            assert file["tokens"].shape == (n,) and list(file["documents"][:]) == [0, n]
            assert file["tokenizer"][:].tobytes() == (path.parent / "tokenizer.json").read_bytes()


with tempfile.TemporaryDirectory() as temporary:
    check_import(Path(temporary))
with tempfile.TemporaryDirectory() as temporary:
    check_chunked_import(Path(temporary))
with tempfile.TemporaryDirectory() as temporary:
    check_jpeg_import(Path(temporary))
with tempfile.TemporaryDirectory() as temporary:
    check_foreign(Path(temporary))
with tempfile.TemporaryDirectory() as temporary:
    check_text(Path(temporary))
with tempfile.TemporaryDirectory() as temporary:
    check_given_statistics(Path(temporary))
check_samples()
print("h5py and lockstep read each other's data sets")
