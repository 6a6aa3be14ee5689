"""How fast is a large base read, and in how much memory? A synthetic checkpoint in bf16 is read by `lockstep train`.

It has shards of 1 GB, as transformers writes them. Its base is kept in bf16 or in NF4, by 1 and 2 ranks of this machine,
under a limit of the address space: what the rank keeps, and --limit-gb more (the program and its libraries count). The
same files are read with dd and with safetensors' own reader, which keeps a copy of each tensor. Before each run they are dropped from the page cache.
"""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

WIDTH, FFN, HEADS, WORDS, SHARD = 2560, 6912, 20, 32000, 1_000_000_000
PEER = """import sys, time
from safetensors import safe_open
begin, kept = time.time(), []
for path in sys.argv[1:]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():
            kept.append(file.get_tensor(name).clone())
print(time.time() - begin)"""


def tensors(layers):
    yield "model.embed_tokens.weight", (WORDS, WIDTH)
    for i in range(layers):
        layer = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield layer + name + ".weight", (WIDTH,)
        for name in "qkvo":
            yield f"{layer}self_attn.{name}_proj.weight", (WIDTH, WIDTH)
        for name, shape in (("gate", (FFN, WIDTH)), ("up", (FFN, WIDTH)), ("down", (WIDTH, FFN))):
            yield f"{layer}mlp.{name}_proj.weight", shape
    yield "model.norm.weight", (WIDTH,)


def n_bytes(shape):
    return 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)


def write_checkpoint(folder, layers):
    """Values are those of one random block, repeated. Returns the bytes of all tensors."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": FFN,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "num_hidden_layers": layers, "vocab_size": WORDS,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "hidden_act": "silu"}))
    shards = [[]]
    for name, shape in tensors(layers):
        if sum(n_bytes(s) for _, s in shards[-1]) + n_bytes(shape) > SHARD:
            shards.append([])
        shards[-1].append((name, shape))
    # bf16 numbers of magnitude 2^-7 to 2^-6 with random signs and fractions
    block = b"".join(struct.pack("<H", (x & 0x807F) | 0x3C00) for x in struct.unpack("<1048576H", os.urandom(1 << 21)))
    where, total = {}, 0
    for number, shard in enumerate(shards, 1):
        path = folder / f"model-{number:05}-of-{len(shards):05}.safetensors"
        header, at = {}, 0
        for name, shape in shard:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n_bytes(shape)]}
            at += n_bytes(shape)
            where[name] = path.name
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for begin in range(0, at, len(block)):
                file.write(block[:min(len(block), at - begin)])
        total += at
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return total


def drop_from_cache(files):
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def seconds_of_dd(files):
    begin = time.time()
    for path in files:
        harness.run(["dd", f"if={path}", "of=/dev/null", "bs=16M"], "dd")
    return time.time() - begin


def command(args, folder, ranks, precision):
    keys = ["model.family=llama", f"model.from={folder}", "model.lora.rank=1", "model.lora.targets=[q]",
            f"model.base_precision={precision}", "model.recompute=block", "data.sequence_length=8",
            f"train.global_batch={ranks}", "log.progress=false", "train.max_steps=1", "precision=bf16", "device=cpu", *harness.SYNTHETIC]
    plan = json.loads(harness.run([args.binary, "plan", *keys, "--ranks", ranks, "--json"], "lockstep plan"))
    return plan, [str(args.binary), "train", *keys, f"run.directory={folder.parent}/runs", "--fresh"]


def run(args, folder, ranks, precision):
    """Returns the rate in GB/s and, of the rank that needs most, the peak memory beyond what the plan says it keeps."""
    plan, train = command(args, folder, ranks, precision)
    kept = plan["memory_bytes"]["total"]
    limit = int(kept + args.limit_gb * 1e9)
    peaks = folder.parent / "peaks"  # mpirun may lose the last lines of its ranks
    peaks.unlink(missing_ok=True)
    timed = ["/usr/bin/time", "-a", "-o", str(peaks), "-f", "%M", *train]
    result = subprocess.run([*harness.mpirun(ranks), "prlimit", f"--as={limit}", *timed], capture_output=True, text=True,
                            env=harness.environment(max(1, os.cpu_count() // ranks)))
    log = result.stdout + result.stderr
    rate = re.search(r"read [\d.]+ [MG]B of .* in ([\d.]+) s", log)
    if result.returncode != 0 or not rate:
        harness.stop(f"{precision} on {ranks} ranks ended with {result.returncode}:\n{log[-3000:]}")
    peak = max(map(int, peaks.read_text().split())) * 1024
    return {"seconds": float(rate[1]), "kept_gb": kept / 1e9, "peak_gb": peak / 1e9}


def main():
    made = harness.parser(__doc__, name="load_model", python="torch and safetensors", rounds=3)
    made.add_argument("--layers", type=int, default=50, help="50: 8.1 GB")
    made.add_argument("--limit-gb", type=float, default=3, help="of the address space, beyond what a rank keeps")
    args = harness.begin(made)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as scratch:
        folder = pathlib.Path(scratch) / "model"
        total = write_checkpoint(folder, args.layers)
        files = sorted(folder.glob("*.safetensors"))
        sides = {
            "dd": lambda: {"seconds": seconds_of_dd(files)},
            "safetensors": lambda: {"seconds": float(harness.run([args.python, "-c", PEER, *files], "safetensors"))}}
        for precision in ("same", "nf4"):
            for ranks in (1, 2):
                sides[f"{precision}, {ranks} ranks"] = lambda p=precision, r=ranks: run(args, folder, r, p)
        cold = {side: lambda measure=measure: drop_from_cache(files) or measure() for side, measure in sides.items()}
        rounds = harness.run_rounds(args.rounds, cold, "seconds", lambda one: f"{one['seconds']:.1f}")
    cells = []
    for side, measured in rounds.items():
        seconds = sorted(one["seconds"] for one in measured)
        memory = [f"{max(one[key] for one in measured):.2f}" if key in measured[0] else "" for key in ("kept_gb", "peak_gb")]
        cells.append([side, f"{total / harness.median(measured, 'seconds') / 1e9:.2f}",
                      f"{total / seconds[-1] / 1e9:.2f} to {total / seconds[0] / 1e9:.2f}", *memory])
    text = (f"{total / 1e9:.2f} GB in bf16 in {len(files)} files, {args.rounds} rounds; the address space of a rank was limited to "
            f"what it keeps and {args.limit_gb:g} GB.\n\n"
            + harness.table(["reader", "GB/s, median", "slowest to fastest", "kept, GB per rank", "peak, GB per rank"], cells))
    harness.finish(args, "Reading the base of a large model", text, rounds=rounds)


if __name__ == "__main__":
    main()
