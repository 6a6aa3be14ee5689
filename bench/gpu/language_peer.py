"""One GPU of the same training of a language model in PyTorch: a decoder of the Llama family with AdamW and autocast.

Attention is scaled_dot_product_attention restricted to PyTorch's flash attention. The batch is drawn once, so no time is
spent on data. Steps are timed in rounds, within which the host does not wait. Prints one line of JSON.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.kv_heads, self.dim = a.heads, a.kv_heads, a.width // a.heads
        self.qkv = nn.Linear(a.width, (a.heads + 2 * a.kv_heads) * self.dim, bias=a.bias)
        self.out = nn.Linear(a.width, a.width, bias=False)

    def forward(self, x, cos, sin):
        batch, tokens, width = x.shape
        packed = self.qkv(x).view(batch, tokens, self.heads + 2 * self.kv_heads, self.dim).transpose(1, 2)
        q, k, v = packed.split((self.heads, self.kv_heads, self.kv_heads), dim=1)

        def rotate(t):
            first, second = t.chunk(2, dim=-1)
            return (t * cos + torch.cat((-second, first), dim=-1) * sin).to(t.dtype)

        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.first, self.second = nn.RMSNorm(a.width, eps=1e-6), nn.RMSNorm(a.width, eps=1e-6)
        self.attention = Attention(a)
        self.gate_up = nn.Linear(a.width, 2 * a.ffn, bias=False)
        self.down = nn.Linear(a.ffn, a.width, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.first(x), cos, sin)
        gate, up = self.gate_up(self.second(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """The embedding matrix is also the output matrix (tied weights)."""

    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a.vocabulary, a.width)
        self.layers = nn.ModuleList(Layer(a) for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.width, eps=1e-6)
        dim = a.width // a.heads
        angles = torch.outer(torch.arange(a.sequence), 10000.0 ** (-torch.arange(0, dim, 2) / dim)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embedding.weight)[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def finish(device):
    if device == "cuda":
        torch.cuda.synchronize()


def matmul_rate(device, size):
    """FLOPs per second of a product of two square bf16 matrices."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(5):
        finish(device)
        begin = time.perf_counter()
        for _ in range(10):
            a @ b
        finish(device)
        seconds.append((time.perf_counter() - begin) / 10)
    return 2 * size**3 / statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("eager", "compile", "graph", "matmul"), default="eager",
                        help="graph: torch.compile(mode='reduce-overhead'), which captures CUDA graphs; matmul: no training, "
                             "prints the FLOPs per second of a large product in bf16")
    for size, default in dict(layers=30, width=576, heads=9, kv_heads=3, ffn=1536, vocabulary=49152, sequence=1024, batch=32).items():
        parser.add_argument("--" + size.replace("_", "-"), type=int, default=default)
    parser.add_argument("--bias", action="store_true", help="of q, k and v")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="of a round")
    parser.add_argument("--warmup", type=int, default=6)
    parser.add_argument("--matmul-size", type=int, default=8192)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    versions = {"torch": torch.__version__}
    if args.mode == "matmul":
        print(json.dumps({"flops_per_second": matmul_rate(args.device, args.matmul_size), **versions}))
        return
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    net = Decoder(args).to(args.device).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = net if args.mode == "eager" else torch.compile(net, mode="reduce-overhead" if args.mode == "graph" else "default")
    tokens = torch.randint(args.vocabulary, (args.batch, args.sequence), device=args.device)

    def step():
        if args.mode == "graph":
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            loss = run(tokens)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(args.warmup):
        loss = step()
    seconds = []
    for _ in range(args.rounds):
        finish(args.device)
        begin = time.perf_counter()
        for _ in range(args.steps):
            step()
        finish(args.device)
        seconds.append((time.perf_counter() - begin) / args.steps)
    median = statistics.median(seconds)
    memory = torch.cuda.max_memory_reserved() if args.device == "cuda" else 0
    print(json.dumps({"tokens_per_second": args.batch * args.sequence / median, "median_step_seconds": median,
                      "memory_bytes": memory, "first_loss": loss.item(), **versions}))


if __name__ == "__main__":
    main()
