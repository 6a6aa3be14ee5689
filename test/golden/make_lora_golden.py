"""Makes the golden files of adapters: python make_lora_golden.py [NAME...] (torch, transformers, peft, bitsandbytes).

Small Llama, Qwen2 and Gemma 3 models of odd sizes, as in make_language_golden.py, with PEFT adapters whose A and B have
the standard deviation 0.2. In fp64, the gradient of every A and B at 24 fixed places in step 1, and the loss of ten
steps of AdamW on packed documents. For fp32 and bf16, how far PEFT's own runs are from that. The dropout of one of the
models draws the bits that include/lockstep/ops/low_rank.h describes. The bases of two are in NF4: in fp64, their
matrices are what bitsandbytes expands them to, and for one of them, one of the runs in fp32 has bitsandbytes' layers.
One is stored in lora_NAME/ as PEFT saves it, with the logits of some tokens. Weights, tokens and documents are functions
of the seed (philox.py).
"""
import copy
import json
import pathlib
import sys

import bitsandbytes
import bitsandbytes.functional
import numpy as np
import peft
import torch
import transformers

import make_language_golden as base
import philox

HERE = pathlib.Path(__file__).parent
PLACES, DROPOUT_PURPOSE = 24, 5
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "llama": ("llama_tied", dict(r=4, lora_alpha=8, target_modules=ALL)),
    "qwen2": ("qwen2", dict(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], use_rslora=True)),
    "nf4": ("qwen2", dict(r=4, lora_alpha=8, target_modules=ALL)),
    "gemma3": ("gemma3", dict(r=4, lora_alpha=8, target_modules=ALL)),
    "gemma3_nf4": ("gemma3", dict(r=4, lora_alpha=8, target_modules=ALL)),
    "dropout": ("llama_tied", dict(r=2, lora_alpha=4, target_modules=ALL, lora_dropout=0.25)),
}
SAVED = "qwen2"


class Drop(torch.nn.Module):
    """The dropout of a layer in epoch 0. `first` is the index of the first sample of the batch."""
    first = 0

    def __init__(self, seed, layer, p):
        super().__init__()
        self.seed, self.stream, self.threshold = seed, philox.name_hash(layer), round(65536 * p)

    def forward(self, x):
        batch, tokens, width = x.shape
        blocks = (width + 7) // 8
        index = np.broadcast_to(np.arange(tokens * blocks, dtype=np.uint64), (batch, tokens * blocks))
        sample = np.broadcast_to(np.arange(Drop.first, Drop.first + batch, dtype=np.uint64)[:, None], index.shape)
        words = philox.philox4x32([index, np.full_like(index, self.stream), sample, np.zeros_like(index)],
                                  (self.seed, DROPOUT_PURPOSE))
        bits = np.stack([half for word in words for half in (word & np.uint64(0xFFFF), word >> np.uint64(16))], axis=-1)
        kept = (bits >= self.threshold).reshape(batch, tokens, blocks * 8)[:, :, :width]
        return x * torch.tensor(kept, dtype=x.dtype) * (1 / (1 - self.threshold / 65536))


def expanded(codes, state, shape):
    """What dequantize_4bit() computes on GPUs. On CPUs, bitsandbytes 0.50 uses wrong scales for rows of 80, 96 or 112."""
    codes = codes.reshape(-1)
    values = torch.stack([codes >> 4, codes & 15], 1).reshape(-1)[:shape.numel()].long()
    scales = bitsandbytes.functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
    table = bitsandbytes.functional.get_4bit_type("nf4", device="cpu")
    return (table[values] * scales.repeat_interleave(64)[:shape.numel()]).reshape(shape)


def quantise(model, with_layers):
    """Rounds the matrices of the layers to NF4, or stores them in NF4, in bitsandbytes' layers."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or "layers" not in name:
            continue
        weight = module.weight.data.float()
        if not with_layers:
            codes, state = bitsandbytes.functional.quantize_4bit(weight, blocksize=64, quant_type="nf4",
                                                                 compress_statistics=True)
            module.weight.data.copy_(expanded(codes, state, weight.shape))
            continue
        stored = bitsandbytes.nn.Linear4bit(module.in_features, module.out_features, module.bias is not None,
                                            compute_dtype=torch.float32, quant_type="nf4", compress_statistics=True)
        stored.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", blocksize=64,
                                                   compress_statistics=True)
        if module.bias is not None:
            stored.bias = torch.nn.Parameter(module.bias.data.float(), requires_grad=False)
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], stored.to("cpu"))
    model.is_loaded_in_4bit = with_layers


def make_model(name, seed, dtype, with_layers=False):
    of_base, options = CASES[name]
    model = base.make_model(of_base, seed, torch.float64)
    if with_layers:
        model = model.float()
    if name.endswith("nf4"):
        quantise(model, with_layers)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options), autocast_adapter_dtype=False)
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            if not p.requires_grad:
                continue
            stored = name_of(tensor)
            values = 0.2 * philox.normal(seed, philox.WEIGHTS, philox.name_hash(stored), p.numel())
            p.copy_(torch.tensor(values.astype(np.float32)).reshape(p.shape))
    if options.get("lora_dropout"):
        for layer, module in model.named_modules():
            if hasattr(module, "lora_dropout"):
                name_in_base = layer.removeprefix("base_model.model.")
                module.lora_dropout["default"] = Drop(seed, name_in_base, options["lora_dropout"])
    return (model if with_layers else model.to(dtype)).train()


def name_of(tensor):
    return tensor.removeprefix("base_model.model.").replace(".default", "")


def places(n):
    return [(i * 2654435761) % n for i in range(min(PLACES, n))]


def run(name, seed, precision, threads):
    torch.set_num_threads(threads)
    masters = make_model(name, seed, torch.float64 if precision == "fp64" else torch.float32,
                         precision == "bitsandbytes")
    trained = [p for p in masters.parameters() if p.requires_grad]
    s = base.SETTINGS
    optimizer = torch.optim.AdamW(trained, lr=s["learning_rate"], betas=(s["beta1"], s["beta2"]), eps=s["epsilon"],
                                  weight_decay=s["weight_decay"])
    losses, first = [], {}
    for step in range(base.STEPS):
        Drop.first = step * base.BATCH
        model = copy.deepcopy(masters).to(torch.bfloat16) if precision == "bf16" else masters
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            each, counted = base.losses_of(model, seed, step)
        loss = each.sum() / counted.sum()
        loss.backward()
        if precision == "bf16":
            for p, q in zip(masters.parameters(), model.parameters()):
                p.grad = None if q.grad is None else q.grad.float()
        losses.append(loss.item())
        if step == 0:
            first = {name_of(tensor): dict(values=p.grad.reshape(-1)[torch.tensor(places(p.numel()))].double().tolist())
                     for tensor, p in masters.named_parameters() if p.requires_grad}
        optimizer.step()
    return losses, first


def save(name, seed, golden):
    """Saves it with PEFT, and the logits after the first five tokens and after all of the first window."""
    model = make_model(name, seed, torch.float32).eval()
    folder = HERE / f"lora_{name}"
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    tokens = base.batch_of(seed, 0)[0][:1]
    with torch.no_grad():
        logits = make_model(name, seed, torch.float64).eval()(input_ids=tokens, use_cache=False).logits[0]
        apart = (model(input_ids=tokens, use_cache=False).logits[0] - logits).abs().max().item()
    golden["logits"] = dict(tokens=tokens[0].tolist(), positions=[4, base.T - 1], apart=apart,
                            values=[logits[at].tolist() for at in (4, base.T - 1)])


def main():
    for name in sys.argv[1:] or CASES:
        seed = 1
        exact_losses, exact = run(name, seed, "fp64", 1)
        of_base, options = CASES[name]
        golden = dict(name=name, base=of_base, seed=seed, batch=base.BATCH, sequence_length=base.T, **base.SETTINGS,
                      lora=options, torch=torch.__version__, transformers=transformers.__version__,
                      peft=peft.__version__, losses=exact_losses)
        config = base.make_model(of_base, seed, torch.float64).config.to_dict()
        golden["config"] = {k: v for k, v in config.items() if k not in ("dtype", "transformers_version")}
        of_fp32 = ["fp32", "bitsandbytes"] if name == "nf4" else ["fp32"]  # see expanded()
        for precision, kinds in (("fp32", of_fp32), ("bf16", ["autocast", "bf16"])):
            spread, error = [2e-6] * base.STEPS, 0.0
            for kind in kinds:
                for threads in (1, 2):
                    losses, first = run(name, seed, kind, threads)
                    apart = [abs(a / b - 1) for a, b in zip(losses, exact_losses)]
                    spread = [max([s] + apart[:i + 1]) for i, s in enumerate(spread)]
                    error = max(error, base.distance(first, exact))
            golden[precision] = dict(spread=spread, gradient_error=error)
        golden["gradients"] = exact
        if name == SAVED:
            save(name, seed, golden)
        path = HERE / f"lora_{name}.json"
        path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        print(path.name, path.stat().st_size, "bytes; losses", [f"{v:.4f}" for v in exact_losses], golden["fp32"],
              golden["bf16"], flush=True)


if __name__ == "__main__":
    main()
