"""Compares Lockstep with transformers in generating text: the sizes of SmolLM-135M, random weights, batch 1.

A round runs Lockstep and then transformers (generate_peer.py) with the same number of threads: a prompt, and then tokens one
by one. The figures are the medians of the rounds. Decoding reads all weights for each token: its bandwidth is their bytes per
second, relative to what a sum over 256 MiB reads. Prefill is compared with the rate of a large matrix product. Both are
measured by PyTorch in each round. The weights are made once, in --directory.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PARAMETERS, LAYERS, WIDTH, KV_WIDTH, FFN, VOCABULARY = 134_515_008, 30, 576, 192, 1536, 49152
TOKENIZER = ROOT / "test" / "golden" / "tokenizers" / "tok512.bin"


def peer(args, *more):
    command = [args.python, HERE / "generate_peer.py", "--model", args.directory, "--threads", args.threads,
               "--precision", args.precision, "--prompt", args.prompt, "--tokens", args.tokens, *more]
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def ours(args):
    """Each of the letters is a token, and so is the begin of the text."""
    with tempfile.TemporaryDirectory() as folder:
        prompt = pathlib.Path(folder) / "prompt.txt"
        prompt.write_text("".join("xqzj"[i % 4] for i in range(args.prompt - 2)) + "\n")
        command = [args.binary, "generate", args.directory, "--tokenizer", TOKENIZER, "--prompts", prompt, "--ignore-end",
                   "--max-new-tokens", args.tokens, "--speed", f"--json={folder}/out", f"precision={args.precision}",
                   f"cpu.threads={args.threads}", "device=cpu"]
        done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True,
                              env=os.environ | {"LOCKSTEP_CACHE": "none"})
    found = re.search(r"prefill: (\d+) tokens in ([\d.]+) s.*decoding: (\d+) tokens in \d+ steps and ([\d.]+) s",
                      done.stdout + done.stderr)
    n_prompt, prefill, n_new, decode = map(float, found.groups())
    return {"prompt_tokens": n_prompt, "prefill_seconds": prefill, "decode_seconds": decode / n_new}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="python3", help="with torch and transformers")
    parser.add_argument("--binary", default=str(ROOT / "build" / "lockstep"))
    parser.add_argument("--directory", default=str(pathlib.Path(tempfile.gettempdir()) / "lockstep-smollm-random"))
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if not (pathlib.Path(args.directory) / "config.json").exists():
        peer(args, "--make")
    rounds = [(ours(args), json.loads(peer(args))) for _ in range(args.rounds)]
    of = lambda side, key: statistics.median(r[side][key] for r in rounds)
    size = 2 if args.precision == "bf16" else 4
    n = of(0, "prompt_tokens")
    products = PARAMETERS - VOCABULARY * WIDTH
    operations = 2 * n * products + 2 * VOCABULARY * WIDTH + 2 * 2 * LAYERS * WIDTH * n * (n + 1) / 2
    read = max(of(1, "read_bytes_per_second"), of(1, "copy_bytes_per_second"))
    lines = [
        ("decoding, tokens/s", 1 / of(0, "decode_seconds"), 1 / of(1, "decode_seconds")),
        ("decoding, GB/s", PARAMETERS * size / of(0, "decode_seconds") / 1e9,
         PARAMETERS * size / of(1, "decode_seconds") / 1e9),
        ("decoding, % of bandwidth", 100 * PARAMETERS * size / of(0, "decode_seconds") / read,
         100 * PARAMETERS * size / of(1, "decode_seconds") / read),
        ("prefill, tokens/s", n / of(0, "prefill_seconds"), args.prompt / of(1, "prefill_seconds")),
        ("prefill, % of matmul rate", 100 * operations / of(0, "prefill_seconds") / of(1, "matmul_flops"),
         100 * operations / of(1, "prefill_seconds") / of(1, "matmul_flops")),
    ]
    print(f"{args.precision}, {args.threads} threads, prompt of {n:.0f} tokens, {args.tokens} new tokens, "
          f"{args.rounds} rounds, load {os.getloadavg()[0]:.1f}, memory {read / 1e9:.1f} GB/s, "
          f"matmul {of(1, 'matmul_flops') / 1e9:.0f} GFLOP/s")
    print("| | Lockstep | transformers | ratio |\n|---|---|---|---|")
    for name, a, b in lines:
        print(f"| {name} | {a:.1f} | {b:.1f} | {a / b:.2f} |")


if __name__ == "__main__":
    main()
