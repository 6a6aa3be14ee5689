"""Writes tables as pyarrow and `datasets` write them with different options, and what `datasets` reads from them:

    python3 test/golden/make_table_golden.py [FOLDER]

Needs datasets, pyarrow, Pillow and the program zstd. FOLDER is test/golden/tables by default. expected.json has, for
each source, the rows of each split as JSON; bytes are null there, and in hexadecimal in `bytes`.
"""

import datetime
import decimal
import gzip
import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "tables")
datasets.disable_progress_bars()
expected = {}


def text_table(n=24):
    return pa.table({"id": range(n), "text": [f"Zeile {i % 5}: naïve “Tee” 🍵\n" * (i % 3) for i in range(n)]})


def nested_table(n=20):
    rows = [
        {
            "messages": None if i == 3 else [
                {"role": role, "content": None if i == 5 else f"{role} {i} \"x\"\t\\", "weight": i % 2 or None}
                for role in ("user", "assistant")[: i % 3]
            ],
            "deep": {"a": {"b": [[i], [], [None, i + 1]] if i % 4 else None}, "c": i % 2 == 0},
            "tags": [f"t{k}" for k in range(i % 4)],
        }
        for i in range(n)
    ]
    return pa.Table.from_pylist(rows)


def types_table():
    return pa.table({
        "null": pa.nulls(3),
        "int8": pa.array([-128, None, 127], pa.int8()),
        "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "int64": pa.array([-(2**63), None, 2**63 - 1]),
        "float": pa.array([0.1, None, -2.5e30], pa.float32()),
        "double": pa.array([0.1, 1e-300, None]),
        "bool": [True, None, False],
        "time": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5, 250000), None, None]),
        "date": pa.array([datetime.date(1999, 12, 31), None, None]),
        "decimal": pa.array([decimal.Decimal("12.50"), None, decimal.Decimal("-0.01")]),
        "bytes": pa.array([b"\x00\xff", None, b""]),
        "pair": pa.array([[1, 2], [0, 9], [3, 4]], pa.list_(pa.int32(), 2)),
        "text": [None, None, None],
    })


def large_table():
    table = text_table(6)
    return table.cast(pa.schema([("id", pa.int64()), ("text", pa.large_string())])).append_column(
        "list", pa.array([["a"], [], None, ["b", None], ["c"], []], pa.large_list(pa.large_string()))
    ).append_column("raw", pa.array([b"1", None] * 3, pa.large_binary()))


def image_dataset(n):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "fox"])})
    rows = []
    for i in range(n):
        file = io.BytesIO()
        image = Image.new("RGB", (6, 5), (20 * i, 255 - 9 * i, 7))
        image.putpixel((i % 6, 1), (255, 0, i))
        image.save(file, "PNG")
        rows.append({"image": {"bytes": file.getvalue(), "path": f"{i}.png"}, "label": i % 3})
    return datasets.Dataset.from_list(rows, features=features)


def undecoded(dataset):
    for name, feature in dataset.features.items():
        if isinstance(feature, datasets.Image):
            dataset = dataset.cast_column(name, datasets.Image(decode=False))
    return dataset


def as_json(value, found):
    if isinstance(value, bytes):
        found.append(value.hex())
        return None
    if isinstance(value, (datetime.datetime, datetime.date, decimal.Decimal)):
        return str(value)
    if isinstance(value, dict):
        return {key: as_json(item, found) for key, item in value.items()}
    return [as_json(item, found) for item in value] if isinstance(value, list) else value


def record(source, splits):
    entry = expected[source] = {}
    for split, dataset in splits.items():
        found = []
        # Columns of bytes are left out: JSON has none.
        names = [n for n, f in dataset.features.items() if "binary" not in str(getattr(f, "dtype", ""))]
        rows = [as_json(row, []) for row in undecoded(dataset.select_columns(names)).to_list()] if names else []
        for row in undecoded(dataset).to_list():
            as_json(row, found)
        entry[split] = {"rows": rows, "bytes": found}


def load(kind, path, **more):
    with tempfile.TemporaryDirectory() as cache:
        return datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=cache, keep_in_memory=True, **more)


def parquet(name, table, loads=True, **options):
    """`loads`: whether load_dataset() can read it, which fails for a file without rows and for dots in names."""
    pq.write_table(table, OUT / name, **options)
    record(name, {"train": load("parquet", OUT / name) if loads else datasets.Dataset(table)})


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    for compression in ("none", "snappy", "gzip", "zstd", "brotli", "lz4"):
        parquet(f"{compression}.parquet", text_table(), compression=compression)
    parquet("plain_v2.parquet", text_table(), compression="zstd", use_dictionary=False, data_page_version="2.0")
    parquet("groups_v2.parquet", text_table(), row_group_size=7, data_page_size=64, data_page_version="2.0")
    parquet("delta.parquet", text_table(), use_dictionary=False,
            column_encoding={"id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"})
    parquet("hub.parquet", nested_table(), compression="snappy", use_content_defined_chunking=True,
            write_page_index=True, row_group_size=8)
    parquet("nested_v2.parquet", nested_table(), compression="zstd", use_dictionary=False, data_page_version="2.0",
            row_group_size=3)
    parquet("types.parquet", types_table())
    parquet("types_v1.parquet", types_table(), version="1.0", store_schema=False, compression="gzip")
    parquet("large.parquet", large_table(), compression="zstd")
    parquet("empty.parquet", text_table(0), loads=False)
    parquet("dotted.parquet", pa.table({"a.b": ["d0", "d1"], "a": [{"c": "x"}, None]}), loads=False)
    parquet("coded.parquet", pa.table({"text": pa.array(["a", "b", None, "a"]).dictionary_encode()}))

    # What push_to_hub writes.
    whole = datasets.Dataset(text_table(9))
    (OUT / "snapshot/data").mkdir(parents=True)
    (OUT / "snapshot/README.md").write_text("---\nlicense: cc0-1.0\n---\n")
    for k in range(2):
        whole.shard(2, k, contiguous=True).to_parquet(OUT / f"snapshot/data/train-0000{k}-of-00002.parquet")
    whole.select(range(4)).to_parquet(OUT / "snapshot/data/test-00000-of-00001.parquet")
    record("snapshot", {"train": whole, "test": whole.select(range(4))})
    (OUT / "images/data").mkdir(parents=True)
    images = {"train": image_dataset(7), "validation": image_dataset(3)}
    for split, dataset in images.items():
        dataset.to_parquet(OUT / f"images/data/{split}-00000-of-00001.parquet")
    record("images", images)
    (OUT / "conversations/data").mkdir(parents=True)  # the fields of HuggingFaceH4/no_robots
    chats = {split: datasets.Dataset.from_list([
        {"prompt": f"Who is there, {k}?", "prompt_id": f"{k:08x}", "category": "Open QA",
         "messages": [{"content": f"Who is there, {k}?", "role": "user"}, {"content": f"Answer {k}.", "role": "assistant"}]}
        for k in range(n)]) for split, n in (("train", 5), ("test", 2))}
    for split, dataset in chats.items():
        dataset.to_parquet(OUT / f"conversations/data/{split}-00000-of-00001.parquet")
    record("conversations", chats)

    # What save_to_disk writes, and files of Arrow with other options.
    whole.save_to_disk(OUT / "saved", num_shards=2)
    record("saved", {"train": whole})
    saved = {"train": datasets.Dataset(nested_table(5)), "test_sft": datasets.Dataset(nested_table(2))}
    datasets.DatasetDict(saved).save_to_disk(OUT / "saved_splits")
    record("saved_splits", saved)
    for name, open_writer, codec in (("file.arrow", pa.ipc.new_file, "zstd"), ("stream.arrow", pa.ipc.new_stream, "lz4")):
        table = nested_table(6).append_column("coded", pa.array(["x", "y", None] * 2).dictionary_encode())
        with open_writer(OUT / name, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(table, max_chunksize=4)
        rows = datasets.Dataset.from_list(table.to_pylist())
        record(name, {"train": rows})

    # Text files of rows.
    rows = text_table(5).to_pylist()
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (OUT / "lines.jsonl.gz").write_bytes(gzip.compress(lines[:99], mtime=0) + gzip.compress(lines[99:], mtime=0))
    (OUT / "lines.json.zst").write_bytes(subprocess.run(["zstd", "-c"], input=lines, capture_output=True, check=True).stdout)
    for name in ("lines.jsonl.gz", "lines.json.zst"):
        record(name, {"train": load("json", OUT / name)})
    records = 'id,text,"a, ""b"""\n1,"line 1\nline ""2""",x\n2, padded ,\n\n3,"a"b,"ü,"\n'
    (OUT / "quoted.csv").write_text(records)
    (OUT / "quoted.tsv").write_bytes(records.replace(",", "\t").replace("\n", "\r\n").encode())
    for name, delimiter in (("quoted.csv", ","), ("quoted.tsv", "\t")):
        names = ["id", "text", f'a{delimiter} "b"']
        features = datasets.Features({name: datasets.Value("string") for name in names})
        record(name, {"train": load("csv", OUT / name, sep=delimiter, features=features, keep_default_na=False)})
    (OUT / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
