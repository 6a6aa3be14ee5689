"""The speed of encoding on one core, compared with Hugging Face's library `tokenizers`.

In each round, both encode each file, first as one text and then line by line, one after the other. The times are those of
the processor. The ids must agree.
"""
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

PEER = """
import json, sys, time
import tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
text = open(sys.argv[2], encoding="utf-8", newline="").read()
out = {"version": tokenizers.__version__}
for name, parts in ("text", [text]), ("lines", text.removesuffix("\\n").split("\\n")):
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        n = sum(len(tokenizer.encode(part)) for part in parts)
        seconds.append(time.process_time() - begin)
    out[name] = {"seconds": min(seconds), "ids": n}
print(json.dumps(out))
"""


def measure_lockstep(build, tokenizer, file):
    return {row["name"]: {"seconds": row["cpu_time"], "ids": int(row["ids"])}
            for row in harness.micro(build, "tokenizer", tokenizer, file, seconds=0.3)["benchmarks"]}


def measure_peer(python, tokenizer, file):
    path = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    return json.loads(harness.run([python, "-c", PEER, path, file], "tokenizers", env=harness.environment(1) |
                                  {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}))


def main():
    parser = harness.parser(__doc__, name="tokenizer", python="tokenizers", rounds=5)
    parser.add_argument("tokenizers", nargs="+", type=pathlib.Path, help="tokenizer.json files, or folders with one")
    parser.add_argument("--text", nargs="+", type=pathlib.Path, required=True, help="files to encode")
    args = harness.begin(parser)
    if subprocess.run([args.python, "-c", "import tokenizers"], capture_output=True).returncode:
        harness.stop(f"{args.python} has no tokenizers; install it (pip install tokenizers), or use --python")
    rows, cells, peer_version = [], [], ""
    for tokenizer in args.tokenizers:
        for file in args.text:
            megabytes = file.stat().st_size / 1e6
            rounds = [(measure_lockstep(args.build, tokenizer, file), measure_peer(args.python, tokenizer, file))
                      for _ in range(args.rounds)]
            peer_version = rounds[0][1]["version"]
            for what in ("text", "lines"):
                ids = {result[what]["ids"] for pair in rounds for result in pair}
                if len(ids) != 1:
                    harness.stop(f"{tokenizer} and {file}: the numbers of ids differ: {sorted(ids)}")
                ours, peer = ([megabytes / side[what]["seconds"] for side in sides] for sides in zip(*rounds))
                rows.append({"tokenizer": tokenizer.name, "file": file.name, "what": what, "ids": ids.pop(),
                             "megabytes_per_second": ours, "peer_megabytes_per_second": peer})
                median = statistics.median(ours), statistics.median(peer)
                cells.append([tokenizer.name, file.name, "one text" if what == "text" else "lines", f"{median[0]:.1f}",
                              f"{100 * harness.spread(ours):.0f}", f"{median[1]:.2f}", f"{100 * harness.spread(peer):.0f}",
                              f"{median[0] / median[1]:.1f}"])
    text = (f"One thread, medians of {args.rounds} rounds, seconds of the processor; Hugging Face's tokenizers {peer_version}.\n\n"
            + harness.table(["tokenizer", "file", "encoded as", "Lockstep, MB/s", "spread, %", "tokenizers, MB/s", "spread, %",
                             "ratio"], cells))
    harness.finish(args, "Speed of the tokenizers", text, tokenizers=peer_version, rows=rows)


if __name__ == "__main__":
    main()
