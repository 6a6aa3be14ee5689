"""The side of transformers in generate.py: makes the model of random weights, or times prefill and decoding with it."""
import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--make", action="store_true")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--precision", default="bf16")
parser.add_argument("--prompt", type=int, default=256)
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--batch", type=int, default=1)
args = parser.parse_args()
torch.set_num_threads(args.threads)
dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32

if args.make:
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                         num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=2048,
                         tie_word_embeddings=True, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(args.model)
else:
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval()
    ids = torch.randint(3, 500, (args.batch, args.prompt))
    mask = torch.ones_like(ids)

    def seconds(n):
        begin = time.perf_counter()
        with torch.inference_mode():
            model.generate(ids, attention_mask=mask, do_sample=False, min_new_tokens=n, max_new_tokens=n, pad_token_id=0)
        return time.perf_counter() - begin

    def rate(work, n_bytes):
        times = []
        for _ in range(12):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        return n_bytes / min(times)

    seconds(2)
    prefill = min(seconds(1) for _ in range(3))
    whole = min(seconds(args.tokens) for _ in range(2))
    weights = torch.ones(1 << 27, dtype=torch.bfloat16)  # 256 MiB
    target = torch.empty_like(weights)
    a, b = torch.randn(1024, 1024, dtype=dtype), torch.randn(1024, 1024, dtype=dtype)
    print(json.dumps({
        "prefill_seconds": prefill, "decode_seconds": (whole - prefill) / (args.tokens - 1),
        "read_bytes_per_second": rate(lambda: weights.view(torch.float32).sum(), weights.numel() * 2),
        "copy_bytes_per_second": rate(lambda: target.copy_(weights), weights.numel() * 4),
        "matmul_flops": rate(lambda: a @ b, 2 * 1024**3)}))
