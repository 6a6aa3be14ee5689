"""The speed of `data import text` from Parquet, compared with `datasets` and `tokenizers` on the same cores.

In each round, Lockstep imports a Parquet file and the same documents as JSON Lines, and `datasets` loads the Parquet file
and tokenises it with as many processes as there are cores; one after the other. The time is that of whole processes, from
their start. The numbers of tokens must agree.
"""
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

WRITE = """
import json, sys, pyarrow, pyarrow.parquet
rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sys.argv[2], row_group_size=1000)
"""
PEER = """
import sys, datasets, tokenizers
datasets.disable_progress_bars()
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
def encode(batch):
    ids = [encoding.ids for encoding in tokenizer.encode_batch(batch["text"], add_special_tokens=False)]
    return {"ids": ids, "n": [len(i) for i in ids]}
data = datasets.load_dataset("parquet", data_files=sys.argv[2], split="train", cache_dir=sys.argv[3])
data = data.map(encode, batched=True, num_proc=int(sys.argv[4]), remove_columns=data.column_names)
print(sum(data["n"]) + len(data))
"""


def main():
    parser = harness.parser(__doc__, name="tables", python="datasets and tokenizers", rounds=3)
    parser.add_argument("tokenizer", type=pathlib.Path, help="a tokenizer.json")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="JSON Lines with the field text, 100 MB or so")
    args = harness.begin(parser)
    cores = len(os.sched_getaffinity(0))
    with harness.scratch() as scratch:
        table = f"{scratch}/text.parquet"
        harness.run([args.python, "-c", WRITE, args.text, table], "writing Parquet")
        megabytes = sum(len(json.loads(line)["text"].encode()) for line in args.text.open(encoding="utf-8")) / 1e6

        def measure(command):
            begin = time.perf_counter()
            out = harness.run(command, str(command[0]), env=dict(os.environ, TOKENIZERS_PARALLELISM="false"))
            return {"seconds": time.perf_counter() - begin, "out": out}

        def lockstep(source):
            done = measure([args.binary, "data", "import", "text", source, f"{scratch}/out.h5", "--force", "--tokenizer",
                            args.tokenizer])
            return done | {"tokens": int(done["out"].split(" with ")[1].split()[0])}

        def peer():
            cache = f"{scratch}/cache-{time.time_ns()}"
            done = measure([args.python, "-c", PEER, args.tokenizer, table, cache, cores])
            return done | {"tokens": int(done["out"].split()[-1])}

        rounds = harness.run_rounds(args.rounds, {"Lockstep, Parquet": lambda: lockstep(table),
                                                  "Lockstep, JSON Lines": lambda: lockstep(args.text.resolve()),
                                                  "datasets and tokenizers, Parquet": peer})
    tokens = {result["tokens"] for side in rounds.values() for result in side}
    if len(tokens) != 1:
        harness.stop(f"the numbers of tokens differ: {sorted(tokens)}")
    first = [result["seconds"] for result in rounds["Lockstep, Parquet"]]
    rows = []
    for name, side in rounds.items():
        seconds = [result["seconds"] for result in side]
        ratio = harness.ratios(seconds, first)
        rows.append([name, f"{megabytes / harness.median(side, 'seconds'):.1f}", *[f"{r:.2f}" for r in ratio]])
    text = (f"{megabytes:.0f} MB of text, {tokens.pop()} tokens, {cores} cores, {args.rounds} rounds.\n\n" +
            harness.table(["", "MB/s", "time / Parquet", "least", "most"], rows))
    harness.finish(args, "Importing text from Parquet", text, rows=rows)


if __name__ == "__main__":
    main()
