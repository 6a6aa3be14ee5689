"""One GPU of the same training in PyTorch: ResNet-18 or 50, channels_last, fp32 (tf32), bf16 or fp16 (autocast).

The batch is drawn once, so no time is spent on data. Steps are timed in rounds, within which the host does not wait.
Prints one line of JSON.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from torch_networks import network  # noqa: E402


def copy_rate():
    n_bytes = 2**30
    source = torch.randint(256, (n_bytes,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    seconds = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return 2 * n_bytes / statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("eager", "compile", "graph", "copy"), default="eager",
                        help="graph: torch.compile(mode='reduce-overhead'), which captures CUDA graphs; copy: no training, "
                             "prints the bytes/s that the device reads and writes when it copies")
    parser.add_argument("--depth", type=int, choices=(18, 34, 50), default=50)
    parser.add_argument("--stem", choices=("cifar", "imagenet"), default="imagenet")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp16")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    parser.add_argument("--warmup", type=int, default=10)
    args = parser.parse_args()

    if args.mode == "copy":
        print(json.dumps({"copy_bytes_per_second": copy_rate(), "torch": torch.__version__}))
        return
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(1)
    net = network(args.depth, args.stem, classes=1000 if args.stem == "imagenet" else 10)
    net = net.cuda().to(memory_format=torch.channels_last).train()
    if args.mode != "eager":
        net = torch.compile(net, mode="reduce-overhead" if args.mode == "graph" else "default")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=args.precision == "fp16")
    loss_of = torch.nn.CrossEntropyLoss()
    images = torch.randn(args.batch, 3, args.image_size, args.image_size, device="cuda").contiguous(
        memory_format=torch.channels_last)
    labels = torch.randint(10, (args.batch,), device="cuda")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]

    def step():
        if args.mode == "graph":
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype, enabled=args.precision != "fp32"):
            loss = loss_of(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(args.warmup):
        step()
    seconds = []
    for _ in range(args.rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(args.steps):
            step()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - begin) / args.steps)
    median = statistics.median(seconds)
    print(json.dumps({"samples_per_second": args.batch / median, "median_step_seconds": median,
                      "memory_bytes": torch.cuda.max_memory_reserved(), "torch": torch.__version__,
                      "cudnn": torch.backends.cudnn.version(), "device": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
