"""One rank of the same training in PyTorch: DistributedDataParallel over gloo, ResNet-18 or 50, fp32 or bf16 (autocast).

Started by run.py or startup.py, once per rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment.
The batch is drawn once, so no time is spent on data. Rank 0 prints one line of JSON.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from torch_networks import network  # noqa: E402


def peak_memory_bytes():
    with open("/proc/self/status") as status:
        return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--launched", type=float, required=True, help="Unix time at which the ranks were started")
    parser.add_argument("--layout", choices=("contiguous", "channels_last"), default="contiguous")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--depth", type=int, choices=(18, 34, 50), default=18)
    parser.add_argument("--stem", choices=("cifar", "imagenet"), default="cifar")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch", type=int, default=32, help="samples per rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not counted")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(rank)
    layout = torch.channels_last if args.layout == "channels_last" else torch.contiguous_format
    net = network(args.depth, args.stem, classes=10).to(memory_format=layout).train()
    net = torch.nn.parallel.DistributedDataParallel(net)
    if args.compile:
        net = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    loss_of = torch.nn.CrossEntropyLoss()
    images = torch.randn(args.batch, 3, args.image_size, args.image_size).contiguous(memory_format=layout)
    labels = torch.randint(10, (args.batch,))

    ends = []
    begin = time.perf_counter()
    for step in range(args.steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = loss_of(net(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        ends.append(time.perf_counter())
        if step == 0:
            first_end = time.time() - args.launched
    seconds = [b - a for a, b in zip([begin] + ends, ends)]
    # A step of all ranks takes as long as that of the slowest rank.
    mine = torch.tensor([*seconds, float(peak_memory_bytes()), first_end], dtype=torch.float64)
    torch.distributed.all_reduce(mine, op=torch.distributed.ReduceOp.MAX)
    slowest = mine[:args.steps].tolist()
    median = statistics.median(slowest[args.warmup:])
    if rank == 0:
        print(json.dumps({"median_step_seconds": median,
                          "samples_per_second": ranks * args.batch / median, "memory_bytes": int(mine[-2]),
                          "launch_to_first_step_seconds": float(mine[-1]), "step_seconds": slowest,
                          "torch": torch.__version__}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
