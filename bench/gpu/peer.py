"""The same training in PyTorch on one GPU. The batch is drawn once, so no time is spent on data. Prints one line of JSON.

  resnet     ResNet-18 or 50, channels_last, fp32 (tf32), bf16 or fp16 (autocast)
  language   a decoder of the Llama family with AdamW and autocast; attention is scaled_dot_product_attention restricted to
             PyTorch's flash attention
"""
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, sys.path[0] + "/..")
import torch_peer  # noqa: E402


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


def resnet(args):
    """A function that queues a step."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    net = torch_peer.network(args.depth, args.stem, classes=1000 if args.stem == "imagenet" else 10)
    net = torch_peer.compiled(net.to(args.device).to(memory_format=torch.channels_last).train(), args.mode)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    scaler = torch.amp.GradScaler(args.device, enabled=args.precision == "fp16")
    loss_of = nn.CrossEntropyLoss()
    images = torch.randn(args.batch, 3, args.image_size, args.image_size, device=args.device).contiguous(
        memory_format=torch.channels_last)
    labels = torch.randint(10, (args.batch,), device=args.device)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, dtype, enabled=args.precision != "fp32"):
            loss = loss_of(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss
    return step


def language(args):
    net = Decoder(args).to(args.device).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch_peer.compiled(net, args.mode)
    tokens = torch.randint(args.vocabulary, (args.batch, args.sequence), device=args.device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            loss = run(tokens)
        loss.backward()
        optimizer.step()
        return loss
    return step


def main():
    parser = torch_peer.parser(__doc__, batch=32, rounds=5, steps=10, warmup=10, matmul_size=8192, layers=30, width=576, heads=9,
                               kv_heads=3, ffn=1536, vocabulary=49152, sequence=1024)
    parser.add_argument("kind", choices=("resnet", "language"))
    parser.add_argument("--mode", choices=("eager", "compile", "graph", "copy", "matmul"), default="eager",
                        help="graph: torch.compile(mode='reduce-overhead'), which captures CUDA graphs; without training: copy "
                             "prints the bytes/s that the device reads and writes when it copies, matmul the FLOPs per second of "
                             "a large product in bf16")
    torch_peer.add_network(parser, depth=50, stem="imagenet", image_size=224, precision="fp16")
    parser.add_argument("--bias", action="store_true", help="of q, k and v")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    is_gpu = args.device == "cuda"

    def seconds_of(work, rounds, repetitions):
        """The median over rounds, within which the host does not wait."""
        return torch_peer.seconds_of(work, rounds, repetitions, torch.cuda.synchronize if is_gpu else lambda: None)

    if args.mode == "copy":
        source = torch.randint(256, (2**30,), dtype=torch.uint8, device=args.device)
        target = torch.empty_like(source)
        return torch_peer.output(copy_bytes_per_second=2 * 2**30 / seconds_of(lambda: target.copy_(source), 20, 1))
    if args.mode == "matmul":
        a, b = (torch.randn(args.matmul_size, args.matmul_size, device=args.device, dtype=torch.bfloat16) for _ in range(2))
        return torch_peer.output(flops_per_second=2 * args.matmul_size**3 / seconds_of(lambda: a @ b, 5, 10))
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(1)
    step = resnet(args) if args.kind == "resnet" else language(args)

    def marked_step():
        if args.mode == "graph":
            torch.compiler.cudagraph_mark_step_begin()
        return step()

    for _ in range(args.warmup):
        loss = marked_step()
    first_loss = loss.item()
    seconds = seconds_of(marked_step, args.rounds, args.steps)
    rate = ({"samples_per_second": args.batch / seconds} if args.kind == "resnet" else
            {"tokens_per_second": args.batch * args.sequence / seconds})
    torch_peer.output(**rate, median_step_seconds=seconds, first_loss=first_loss,
                      memory_bytes=torch.cuda.max_memory_reserved() if is_gpu else 0,
                      **({"cudnn": torch.backends.cudnn.version(), "device": torch.cuda.get_device_name()} if is_gpu else {}))


if __name__ == "__main__":
    main()
