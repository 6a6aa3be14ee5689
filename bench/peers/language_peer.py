"""One rank of the same training of a language model in PyTorch: transformers' LlamaForCausalLM with the sizes of
SmolLM-135M, scaled_dot_product_attention, the fused AdamW, and with several ranks DistributedDataParallel over gloo.

Started by language.py, once per rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment. The batch
is drawn once, so no time is spent on data. Rank 0 prints one line of JSON. The variants:
  fp32       everything in fp32
  autocast   fp32 weights; torch.autocast computes the matrix products and attention in bf16
  masters    a model in bf16, whose gradients are in bf16 too; AdamW updates fp32 masters, which are rounded to the model
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed
import transformers

from peer import peak_memory_bytes


def small_language_model():
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation="sdpa")
    return transformers.LlamaForCausalLM(config).train()


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
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("fp32", "autocast", "masters"), required=True)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1, help="windows per rank")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2, help="steps that are not counted")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    torch.manual_seed(1)
    net = small_language_model()
    if args.variant == "masters":
        net = net.bfloat16()
    options = dict(lr=1e-4, weight_decay=0.1, fused=True)
    parameters = list(net.parameters())
    optimizer = Masters(parameters, **options) if args.variant == "masters" else torch.optim.AdamW(parameters, **options)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True)
    torch.manual_seed(100 + rank)
    tokens = torch.randint(49152, (args.batch, args.sequence))

    ends, worked = [], []
    begin, begin_work = time.perf_counter(), time.process_time()
    for _ in range(args.steps):
        # DDP keeps its buckets; without it, freed gradients are faster than zeroed ones.
        optimizer.zero_grad(set_to_none=ranks == 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.variant == "autocast"):
            loss = net(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        loss.item()
        ends.append(time.perf_counter())
        worked.append(time.process_time())
    seconds = [b - a for a, b in zip([begin] + ends, ends)]
    work = statistics.median([b - a for a, b in zip([begin_work] + worked, worked)][args.warmup:])
    # A step of all ranks takes as long as that of the slowest rank.
    slowest = torch.tensor([*seconds, work, float(peak_memory_bytes())], dtype=torch.float64)
    if ranks > 1:
        torch.distributed.all_reduce(slowest, op=torch.distributed.ReduceOp.MAX)
    *seconds, work, memory = slowest.tolist()
    median = statistics.median(seconds[args.warmup:])
    if rank == 0:
        print(json.dumps({"median_step_seconds": median, "tokens_per_second": ranks * args.batch * args.sequence / median,
                          "processor_seconds": work, "memory_bytes": int(memory), "step_seconds": seconds,
                          "loss": loss.item(),
                          "torch": torch.__version__, "transformers": transformers.__version__}))
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
