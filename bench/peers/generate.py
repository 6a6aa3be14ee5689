"""Compares Lockstep with transformers and llama.cpp in generating text: the sizes of SmolLM-135M, random weights, batch 1.

A round runs Lockstep, transformers and, if --llamacpp names a Python with llama-cpp-python and gguf, llama.cpp
(generate_peer.py) with the same number of threads: a prompt, and then tokens one by one. The figures are the
medians of the rounds. Decoding reads all weights for each token: its bandwidth is their bytes per second, relative to the
greater of what a sum over 256 MiB reads and what a copy of them reads and writes. Prefill is compared with the rate of a
large matrix product. Both are measured by PyTorch in each round. The weights are made once, in --directory.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

PARAMETERS, LAYERS, WIDTH, KV_WIDTH, FFN, VOCABULARY = 134_515_008, 30, 576, 192, 1536, 49152
TOKENIZER = harness.ROOT / "test" / "golden" / "tokenizers" / "tok512.bin"


def peer(python, library, args, *more):
    command = [python, harness.ROOT / "bench/peers/generate_peer.py", library, "--model", args.directory, "--threads",
               args.threads, "--precision", args.precision, "--prompt", args.prompt, "--tokens", args.tokens, *more]
    return harness.run(command, library)


def ours(args):
    with tempfile.TemporaryDirectory() as folder:
        prompt = pathlib.Path(folder) / "prompt.txt"
        harness.write_prompt(prompt, args.prompt)
        command = [args.binary, "generate", args.directory, "--tokenizer", TOKENIZER, "--prompts", prompt, "--ignore-end",
                   "--max-new-tokens", args.tokens, "--speed", f"--json={folder}/out", f"precision={args.precision}",
                   f"cpu.threads={args.threads}", "device=cpu"]
        done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True,
                              env=os.environ | {"LOCKSTEP_CACHE": "none"})
    found = re.search(harness.PREFILL, done.stdout + done.stderr)
    n_prompt, prefill, n_new, decode = map(float, found.groups())
    return {"prompt_tokens": n_prompt, "prefill_seconds": prefill, "decode_seconds": decode / n_new}


def operations(n):
    """The operations that prefill needs: products, and attention. Only the last token goes through the last matrix."""
    products = PARAMETERS - VOCABULARY * WIDTH
    return 2 * n * products + 2 * VOCABULARY * WIDTH + 2 * 2 * LAYERS * WIDTH * n * (n + 1) / 2


def main():
    parser = harness.parser(__doc__, name="", python="torch and transformers", rounds=3, threads=os.cpu_count())
    parser.add_argument("--llamacpp", default="", help="a Python with llama-cpp-python and gguf; without it, llama.cpp is left out")
    parser.add_argument("--directory", default=str(pathlib.Path(tempfile.gettempdir()) / "lockstep-smollm-random"))
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    args = harness.begin(parser)
    if not (pathlib.Path(args.directory) / "config.json").exists():
        peer(args.python, "transformers", args, "--make")
    if args.llamacpp and not pathlib.Path(f"{args.directory}-{args.precision}.gguf").exists():
        peer(args.llamacpp, "llamacpp", args, "--make")
    runs = {"Lockstep": lambda: ours(args), "transformers": lambda: json.loads(peer(args.python, "transformers", args))}
    if args.llamacpp:
        runs["llama.cpp"] = lambda: json.loads(peer(args.llamacpp, "llamacpp", args))
    sides = harness.run_rounds(args.rounds, runs, "ms per token", lambda r: f"{1e3 * r['decode_seconds']:.1f}")

    of = lambda side, key: harness.median(sides[side], key)
    size = 2 if args.precision == "bf16" else 4
    read = max(of("transformers", "read_bytes_per_second"), of("transformers", "copy_bytes_per_second"))
    flops = of("transformers", "matmul_flops")
    figures = {}
    for side in sides:
        n = of(side, "prompt_tokens") if side == "Lockstep" else args.prompt
        figures[side] = {"decode_tokens_per_second": 1 / of(side, "decode_seconds"),
                         "decode_bytes_per_second": PARAMETERS * size / of(side, "decode_seconds"),
                         "bandwidth_share": PARAMETERS * size / of(side, "decode_seconds") / read,
                         "prefill_tokens_per_second": n / of(side, "prefill_seconds"),
                         "matmul_share": operations(n) / of(side, "prefill_seconds") / flops}
    rows = [[name, f"{f['decode_tokens_per_second']:.1f}", f"{f['decode_bytes_per_second'] / 1e9:.1f}",
             f"{100 * f['bandwidth_share']:.0f} %", f"{f['prefill_tokens_per_second']:.0f}", f"{100 * f['matmul_share']:.0f} %"]
            for name, f in figures.items()]
    ratios = [f"{figures['Lockstep']['decode_tokens_per_second'] / f['decode_tokens_per_second']:.2f} times as fast as {name} in "
              f"decoding and {figures['Lockstep']['prefill_tokens_per_second'] / f['prefill_tokens_per_second']:.2f} times in prefill"
              for name, f in figures.items() if name != "Lockstep"]
    text = (f"SmolLM-135M (134.5 million parameters, random), {args.precision}, batch 1, {args.threads} thread(s), a prompt of "
            f"{args.prompt} tokens and {args.tokens} new ones. Medians of {args.rounds} rounds.\n\n"
            + harness.table(["", "decoding, tokens/s", "weights read, GB/s", "of the bandwidth", "prefill, tokens/s",
                             "of the matmul rate"], rows)
            + f"\nMemory: {read / 1e9:.1f} GB/s (PyTorch, the greater of a sum and a copy); matrix product of 1,024: "
            f"{flops / 1e9:.0f} GFLOP/s.\nLockstep is {', and '.join(ratios)}.\n")
    if not args.name:
        print(text)
        return
    others = "transformers and llama.cpp" if args.llamacpp else "transformers"
    harness.finish(args, f"Generating text compared with {others}", text, precision=args.precision, threads=args.threads,
                   prompt=args.prompt, tokens=args.tokens, memory_bytes_per_second=read, matmul_flops_per_second=flops,
                   figures=figures, rounds=sides)


if __name__ == "__main__":
    main()
