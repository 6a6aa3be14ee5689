"""One rank of the same training in PyTorch on CPUs. sides.py starts it once per rank, with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT in the environment. The batch is drawn once, so no time is spent on data. Rank 0 prints one line of JSON.

  resnet     DistributedDataParallel over gloo, ResNet-18 or 50, fp32 or bf16 (autocast)
  language   transformers' LlamaForCausalLM with the sizes of SmolLM-135M, scaled_dot_product_attention, the fused AdamW, and
             with several ranks DistributedDataParallel over gloo. The variants:
             fp32: everything in fp32
             autocast: fp32 weights; torch.autocast computes the matrix products and attention in bf16
             masters: a model in bf16, whose gradients are in bf16 too; AdamW updates fp32 masters, which are rounded to it
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed

sys.path.insert(0, sys.path[0] + "/..")
import torch_peer  # noqa: E402

RANKS, RANK = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
DDP = torch.nn.parallel.DistributedDataParallel


def peak_memory_bytes():
    with open("/proc/self/status") as status:
        return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


def resnet(args):
    """A function that runs a step and returns its loss."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(RANK)
    layout = torch.channels_last if args.layout == "channels_last" else torch.contiguous_format
    net = DDP(torch_peer.network(args.depth, args.stem, classes=10).to(memory_format=layout).train())
    if args.compile:
        net = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    loss_of = torch.nn.CrossEntropyLoss()
    images = torch.randn(args.batch, 3, args.image_size, args.image_size).contiguous(memory_format=layout)
    labels = torch.randint(10, (args.batch,))

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = loss_of(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


class Masters:
    """AdamW on fp32 copies of the weights of a model in bf16."""

    def __init__(self, parameters, **options):
        self.parameters = parameters
        self.masters = [p.detach().float().requires_grad_() for p in parameters]
        self.optimizer = torch.optim.AdamW(self.masters, **options)

    def step(self):
        for master, parameter in zip(self.masters, self.parameters):
            master.grad = parameter.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.parameters):
                parameter.copy_(master)
                master.grad = None

    def zero_grad(self, set_to_none):
        for parameter in self.parameters:
            parameter.grad = None if set_to_none or parameter.grad is None else parameter.grad.zero_()


def fully_shard_layers(net, args):
    """FSDP2. zero2: weights are gathered once per step; zero3: also for the backward pass."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    options = {"reshard_after_forward": args.shard == "zero3", **(policy if args.variant == "autocast" else {})}
    for layer in net.model.layers:
        fully_shard(layer, **options)
    fully_shard(net, **options)


def deepspeed_engine(net, optimizer, args):
    os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK=str(RANK))
    import deepspeed
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    config = {"train_micro_batch_size_per_gpu": args.batch, "zero_optimization": {"stage": int(args.shard[-1])},
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    return deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0]


def language(args):
    torch.manual_seed(1)
    net = torch_peer.smollm(use_cache=False, attn_implementation="sdpa").train()
    if args.variant == "masters":
        net = net.bfloat16()
    if RANKS > 1:
        torch.distributed.init_process_group("gloo")
        if args.shard == "none":
            net = DDP(net, gradient_as_bucket_view=True, static_graph=True)
        elif args.shard.startswith("zero"):
            fully_shard_layers(net, args)
    make = Masters if args.variant == "masters" else torch.optim.AdamW
    optimizer = make(list(net.parameters()), lr=1e-4, weight_decay=0.1, fused=True)
    torch.manual_seed(100 + RANK)
    tokens = torch.randint(49152, (args.batch, args.sequence))
    engine = deepspeed_engine(net, optimizer, args) if args.shard.startswith("deepspeed") else None

    def step_of_engine():
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss.item()

    def step():
        # DDP keeps its buckets; without it, freed gradients are faster than zeroed ones.
        optimizer.zero_grad(set_to_none=RANKS == 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.variant == "autocast" and args.shard == "none"):
            loss = net(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.item()
    return step_of_engine if engine else step


def main():
    parser = torch_peer.parser(__doc__, batch=32, steps=20, warmup=3, threads=1)
    parser.add_argument("kind", choices=("resnet", "language"))
    parser.add_argument("--launched", type=float, default=time.time(), help="Unix time at which the ranks were started")
    parser.add_argument("--layout", choices=("contiguous", "channels_last"), default="contiguous")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    torch_peer.add_network(parser, depth=18, stem="cifar", image_size=32, precision="fp32")
    parser.add_argument("--variant", choices=("fp32", "autocast", "masters"), default="fp32")
    parser.add_argument("--shard", choices=("none", "zero2", "zero3", "deepspeed2", "deepspeed3"), default="none",
                        help="FSDP2 or a stage of DeepSpeed instead of DDP")
    parser.add_argument("--sequence", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    step = resnet(args) if args.kind == "resnet" else language(args)
    losses, ends, worked = [], [time.perf_counter()], [time.process_time()]
    for number in range(args.steps):
        losses.append(step())
        ends.append(time.perf_counter())
        worked.append(time.process_time())
        if number == 0:
            first_end = time.time() - args.launched
    seconds, work = ([b - a for a, b in zip(times, times[1:])] for times in (ends, worked))
    # A step of all ranks takes as long as that of the slowest rank.
    slowest = torch.tensor([*seconds, statistics.median(work[args.warmup:]), float(peak_memory_bytes()), first_end],
                           dtype=torch.float64)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(slowest, op=torch.distributed.ReduceOp.MAX)
    *seconds, work, memory, first_end = slowest.tolist()
    median = statistics.median(seconds[args.warmup:])
    if RANK == 0:
        torch_peer.output(median_step_seconds=median, samples_per_second=RANKS * args.batch / median, processor_seconds=work,
                          memory_bytes=int(memory), launch_to_first_step_seconds=first_end, step_seconds=seconds,
                          loss=losses[-1])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
