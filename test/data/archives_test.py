# timeout: 120
"""Imports of files that other programs made: MNIST's IDX files and WebDataset's tar archives with images, text or
conversations, compressed or not, and what is said about damaged ones.

LOCKSTEP is the program in its build folder. Without libarchive, only plain IDX files are tested.
"""

import gzip
import io
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from png import png  # noqa: E402

LOCKSTEP = os.environ.get("LOCKSTEP", "build/lockstep")
WORK = pathlib.Path(tempfile.mkdtemp())
OUT = WORK / "out.h5"


def run(*arguments):
    done = subprocess.run([LOCKSTEP, *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def accepts(kind, source, *options):
    status, text = run("data", "import", kind, source, OUT, "--force", *options)
    assert status == 0, text
    return json.loads(subprocess.run([LOCKSTEP, "data", "info", OUT, "--json"], capture_output=True, check=True).stdout)


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])
    return path


def refuses(sentence, kind, source, *options, status=1):
    before = sorted(WORK.iterdir())
    found, text = run("data", "import", kind, source, WORK / "refused.h5", *options)
    assert found == status and sentence in text, (found, text)
    assert len(text.strip().splitlines()) == 3, text  # the sentence, the remedy and the code
    assert sorted(WORK.iterdir()) == before


def stored(labels):
    return struct.pack(f"<{len(labels)}i", *labels) in OUT.read_bytes()


# ---- MNIST ------------------------------------------------------------------------------------------------------------
def idx(dims, values):
    return bytes([0, 0, 8, len(dims)]) + b"".join(struct.pack(">I", dim) for dim in dims) + bytes(values)


def pixel(image, row, column):
    return (40 * image + 7 * row + column) % 251


IMAGES = idx((4, 3, 5), [pixel(i, r, c) for i in range(4) for r in range(3) for c in range(5)])
LABELS = idx((4,), [7, 0, 9, 7])
mnist = WORK / "mnist"
mnist.mkdir()
images, labels = mnist / "train-images-idx3-ubyte", mnist / "train-labels-idx1-ubyte"
images.write_bytes(IMAGES)
labels.write_bytes(LABELS)
info = accepts("mnist", mnist)
assert (info["samples"], info["height"], info["width"], info["channels"], info["classes"]) == (4, 3, 5, 1, 10), info
values = [pixel(i, r, c) / 255 for i in range(4) for r in range(3) for c in range(5)]
assert abs(info["mean"][0] - sum(values) / len(values)) < 1e-6, info
assert stored([7, 0, 9, 7]) and IMAGES[16:] in OUT.read_bytes()  # as they are, in their order
plain = info
info = accepts("mnist", images, "--channels", 3, "--limit", 2)
assert info["samples"] == 2 and info["channels"] == 3 and len(set(info["mean"])) == 1, info
assert bytes(v for v in IMAGES[16:46] for _ in range(3)) in OUT.read_bytes()

refuses("contains no t10k-images-idx3-ubyte", "mnist", mnist, "--split", "test")
refuses("train or test", "mnist", mnist, "--split", "val", status=2)
for bad, sentence in ((b"", "is not an IDX file"), (IMAGES[:9], "is not an IDX file"),
                      (b"\0\0\x0d\3" + IMAGES[4:], "is not an IDX file"), (LABELS, "is not an IDX file of 3 dimension"),
                      (IMAGES[:-1], "59 bytes of values, but its header states 60"), (IMAGES + b"x", "61 bytes of values"),
                      (idx((4, 0, 5), []), "a dimension of 0"), (idx((1 << 31, 4096, 4096), []), "its header states 36028797018963968"),
                      (idx((3, 3, 5), IMAGES[16:61]), "3 images, but")):
    images.write_bytes(bad)
    refuses(sentence, "mnist", mnist)
images.write_bytes(IMAGES)
labels.rename(WORK / "elsewhere")
refuses("there is no ", "mnist", mnist)
(WORK / "elsewhere").rename(labels)

if not re.search(r"libarchive *[0-9]", run("--version")[1]):
    print("skipped: there is no libarchive")
    sys.exit(77)

for path in (images, labels):
    (mnist / (path.name + ".gz")).write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
info = accepts("mnist", mnist)
assert all(info[key] == plain[key] for key in ("images_xxh3", "labels_xxh3", "mean", "std")), (info, plain)
packed = mnist / "train-images-idx3-ubyte.gz"
for bad, sentence in ((packed.read_bytes()[:-9], "cannot be unpacked"),
                      (packed.read_bytes()[:3], "is not an IDX file"),
                      (gzip.compress(b""), "train-images-idx3-ubyte.gz "), (gzip.compress(IMAGES[:-1]), "59 bytes"),
                      (gzip.compress(b"x" * (8 << 20)), "unpacks to more than 100 times")):
    packed.write_bytes(bad)
    refuses(sentence, "mnist", mnist)
os.environ["LOCKSTEP_LIBARCHIVE"] = "/nowhere"
refuses("install libarchive", "mnist", mnist, status=2)
del os.environ["LOCKSTEP_LIBARCHIVE"]

# ---- WebDataset -------------------------------------------------------------------------------------------------------
def picture(shade):
    return png([bytes([shade, 7, 255 - shade, 255 - shade, shade, 8])] * 3)


def tar(name, members, mode="w", **options):
    with tarfile.open(WORK / name, mode, **options) as archive:
        for member, content in members:
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return WORK / name


samples = [("./a/0001.png", picture(1)), ("./a/0001.txt", b"1"), ("./a/0001.cls", b"2\n"), ("./a/0001.seg.png", b"no image"), ("./a/._0001.png", b"x"),
           ("é" * 120 + ".JSON", b'{"label": 0, "caption": "text"}'), ("é" * 120 + ".png", picture(2)),
           ("0003.png", picture(3)), ("0003.txt", b" 2 ")]
decoded = set()
for name, mode, options in (("pax.tar", "w", {"format": tarfile.PAX_FORMAT}), ("gnu.tar", "w", {"format": tarfile.GNU_FORMAT}),
                            ("x.tgz", "w:gz", {})):
    info = accepts("webdataset", tar(name, samples, mode, **options))
    assert (info["samples"], info["height"], info["width"], info["class_names"]) == (3, 3, 2, ["0", "1", "2"]), info
    assert stored([2, 0, 2])
    decoded.add(info["images_xxh3"])
if shutil.which("zstd"):
    subprocess.run(["zstd", "-q", WORK / "pax.tar", "-o", WORK / "x.tar.zst"], check=True)
    decoded.add(accepts("webdataset", WORK / "x.tar.zst")["images_xxh3"])
assert len(decoded) == 1
accepts("webdataset", WORK / "x.tgz", "--store", "encoded")
assert picture(1) + picture(2) + picture(3) in OUT.read_bytes()

# A folder with the archives of two splits; labels are names of classes, and those of the train split count.
shards = WORK / "shards"
shards.mkdir()
tar("shards/set-train-000.tar", [("0.png", picture(0)), ("0.txt", b"dog"), ("1.txt", b"ant"), ("1.png", picture(1))])
tar("shards/set-train-001.tar.gz", [("0.png", picture(2)), ("0.json", b'{"label": "cat"}')], "w:gz")
tar("shards/set-validation-0.tar", [("0.png", picture(3)), ("0.txt", b"dog")])
info = accepts("webdataset", shards)
assert info["class_names"] == ["ant", "cat", "dog"] and stored([2, 0, 1]), info
shutil.copy(OUT, WORK / "train.h5")
info = accepts("webdataset", shards, "--split", "val", "--statistics-from", WORK / "train.h5")
assert info["samples_per_class"] == [0, 0, 1], info
refuses("of the split test", "webdataset", shards, "--split", "test")
tar("shards/set-validation-0.tar", [("0.png", picture(3)), ("0.txt", b"cow")])
refuses("the label cow", "webdataset", shards, "--split", "val", "--statistics-from", WORK / "train.h5")

whole = (WORK / "pax.tar").read_bytes()
bomb = gzip.compress(tar("bomb.tar", [("0.png", bytes(64 << 20)), ("0.cls", b"1")]).read_bytes())
for members, sentence in (([("0.png", picture(0))], ": 0 has no label"), ([("0.cls", b"1")], "0 has no image"),
                          ([("0.png", b""), ("0.png", b"")], "second image of its sample"),
                          ([("0.png", picture(0)), ("0.cls", b"-1")], 'found \"-1\"'),
                          ([("0.png", picture(0)), ("0.cls", b"1048576")], "the label 1048576"),
                          ([("0.png", picture(0)), ("0.json", b"[" * 9000)], "0.json"),
                          ([("0.png", picture(0)), ("0.txt", bytes(2 << 20))], "expected a label"),
                          ([("0.png", b"\x89PNG"), ("0.cls", b"1")], "cannot be decoded"), ([], "contains no samples"),
                          ([(f"{i}.{end}", picture(0) if end == "png" else b"text %d" % i) for i in range(1100) for end in ("png", "txt")],
                           "descriptions rather than names")):
    status, text = run("data", "import", "webdataset", tar("bad.tar", members), WORK / "refused.h5")
    assert status == 1 and sentence in text, (sentence, text)
for bad, sentence in ((b"", "cannot be unpacked"), (b"text " * 500, "contains no samples"),
                      (whole[:560], "is truncated in"), (whole[:600], "cannot be unpacked"),
                      (gzip.compress(whole)[:-40], "cannot be unpacked"), (bomb, "unpacks to more")):
    (WORK / "bad.tar").write_bytes(bad)
    refuses(sentence, "webdataset", WORK / "bad.tar")

# ---- Text and conversations in archives --------------------------------------------------------------------------------
TOKENIZER = ["--tokenizer", "data/samples/tokenizer.json"]
texts = ["The first document.\n", "Another, é.", "The third one."]
(WORK / "lines.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def tokens_of(kind, source, *options):
    info = accepts(kind, source, *TOKENIZER, *options)
    begin = info["tokens_offset_bytes"]
    return info["documents"], info["documents_xxh3"], OUT.read_bytes()[begin:begin + info["tokens"] * info["token_bytes"]]


expected = tokens_of("text", WORK / "lines.jsonl")
as_text = [(f"d/{k}.txt", text.encode()) for k, text in enumerate(texts)] + [("d/0.json", b'{"url": "x"}'), ("d/._0.txt", b"x")]
as_json = [(f"d/{k}.json", json.dumps({"text": text}, indent=1).encode()) for k, text in enumerate(texts)]
assert tokens_of("text", tar("text.tar", as_text)) == expected  # the JSON beside a text describes it
assert tokens_of("text", tar("json.tar.gz", as_json, "w:gz")) == expected
shards = WORK / "texts"
shards.mkdir()
tar("texts/c4-train-000.tar.gz", as_text[:1], "w:gz")
tar("texts/c4-train-001.tar", as_text[1:])
tar("texts/c4-validation-0.tar", as_text[2:3])
(shards / "README.md").write_text("---\n---\n")
assert tokens_of("text", shards) == expected
assert tokens_of("text", shards, "--split", "val")[0] == 1
chats = [{"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]} for text in texts]
(WORK / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
in_tar = tar("chats.tar", [(f"{k}.json", json.dumps(chat, indent=1).encode()) for k, chat in enumerate(chats)] + [("0.txt", b"x")])
(WORK / "plain.jinja").write_text("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}")
PLAIN = ["--template", WORK / "plain.jinja"]
assert tokens_of("chat", in_tar, *PLAIN) == tokens_of("chat", WORK / "chats.jsonl", *PLAIN)
refuses('json.tar.gz: d/0.json:1: the object has no field "content"', "text", WORK / "json.tar.gz", *TOKENIZER, "--field", "content")
refuses("0.txt is not text, since byte 1 is 0", "text", tar("zero.tar", [("0.txt", b"x\0")]), *TOKENIZER)
refuses("contains no documents", "text", tar("none.tar", [("0.png", picture(0))]), *TOKENIZER)
refuses("no split test", "text", shards, *TOKENIZER, "--split", "test")
refuses("cannot be unpacked", "text", cut(tar("cut.tar.gz", as_json, "w:gz")), *TOKENIZER)
shutil.rmtree(WORK)
print("[  PASSED  ] everything")
