"""Makes the golden files of the language-model tests: python make_language_golden.py [NAME...] (torch, transformers).

For small models of each architecture and of odd sizes, whose weights have the standard deviation 0.2 so that a wrong
rotation is noticed: in fp64, the loss of each token in step 1, the gradient of every tensor at 64 fixed places, and the
loss of ten steps of AdamW on packed documents. For fp32 and bf16, how far PyTorch's own runs are from that: the spread
of the losses (a running maximum of the relative distance, at least 2e-6) and the maximum error of the gradients. Where
all sizes are multiples of 16, also for fp8, which PyTorch's conversions emulate (include/lockstep/ops/matmul.h).
Weights, tokens and documents are functions of the seed (philox.py), so they are not stored.
"""
import copy
import json
import math
import pathlib
import sys

import numpy as np
import torch
import transformers

import philox

# In transformers, Gemma's norms convert to fp32, also in a model of fp64.
transformers.models.gemma3.modeling_gemma3.Gemma3RMSNorm.forward = lambda norm, x: (
    norm._norm(y := x.double() if x.dtype == torch.float64 else x.float()) * (1 + norm.weight.to(y.dtype))).type_as(x)

HERE = pathlib.Path(__file__).parent
STEPS, PLACES, BATCH = 10, 64, 3
TOKENS, ENDS = 5, 6  # purposes of random numbers
SETTINGS = dict(learning_rate=3e-3, weight_decay=0.1, beta1=0.9, beta2=0.95, epsilon=1e-8)
SHARED = dict(vocab_size=97, hidden_size=56, intermediate_size=50, num_hidden_layers=2, num_attention_heads=7,
              num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-5, initializer_range=0.2,
              bos_token_id=None, eos_token_id=None, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
CASES = {
    "llama_tied": (transformers.LlamaConfig, dict(tie_word_embeddings=True, rope_theta=10000.0)),
    "llama3_biased": (transformers.LlamaConfig, dict(tie_word_embeddings=False, attention_bias=True, mlp_bias=True,
                                                     rope_theta=500.0, rope_scaling=LLAMA3)),
    "qwen2": (transformers.Qwen2Config, dict(tie_word_embeddings=True, rope_theta=1e6)),
    "qwen2_16": (transformers.Qwen2Config, dict(tie_word_embeddings=True, rope_theta=1e6, hidden_size=64,
                                                intermediate_size=80, num_attention_heads=4)),
    "qwen3": (transformers.Qwen3Config, dict(tie_word_embeddings=False, head_dim=16, rope_theta=1e6)),
    "mistral": (transformers.MistralConfig, dict(tie_word_embeddings=False, head_dim=16, sliding_window=4)),
    "smollm3": (transformers.SmolLM3Config, dict(no_rope_layers=[1, 0], attention_bias=True, mlp_bias=True)),
    "gemma3": (transformers.Gemma3TextConfig, dict(
        head_dim=16, sliding_window=4, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=20,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                         "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}})),
}


def length_of(name):
    return 16 if name.endswith("_16") else 13


def make_model(name, seed, dtype):
    kind, options = CASES[name]
    config = kind(**(SHARED | options), attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float64)
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            values = 0.2 * philox.normal(seed, philox.WEIGHTS, philox.name_hash(tensor), p.numel())
            if "norm" in tensor and config.model_type != "gemma3_text":  # whose norms multiply by 1 + weight
                values = 1 + values
            p.copy_(torch.tensor(values.astype(np.float32)).reshape(p.shape))
    return model.to(dtype).train()


def round_to_fp8(values, dtype, power_of_two):
    scale = torch.finfo(dtype).max / values.abs().max().item()
    if power_of_two:
        scale = 2.0 ** (math.frexp(scale)[1] - 1)
    return ((values.double() * scale).float().to(dtype).double() / scale).to(values.dtype)


class ProductInFp8(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, power_of_two):
        x, weight = (round_to_fp8(operand, torch.float8_e4m3fn, power_of_two) for operand in (x, weight))
        ctx.save_for_backward(x, weight)
        ctx.power_of_two = power_of_two
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dy8 = round_to_fp8(dy, torch.float8_e5m2, ctx.power_of_two)
        dbias = dy.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        return dy8 @ weight, dy8.flatten(0, -2).T @ x.flatten(0, -2), dbias, None


def multiply_in_fp8(model, power_of_two):
    for layer in model.model.layers.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.forward = lambda x, layer=layer: ProductInFp8.apply(x, layer.weight, layer.bias, power_of_two)


def batch_of(seed, step, T):
    """Tokens, targets, positions and the additive mask of a batch. One token in five ends a document."""
    first = step * BATCH * T
    tokens = np.floor(philox.uniform(seed, TOKENS, 0, STEPS * BATCH * T)[first:first + BATCH * T] * SHARED["vocab_size"])
    ends = philox.uniform(seed, ENDS, 0, STEPS * BATCH * T)[first:first + BATCH * T] < 0.2
    tokens, ends = tokens.astype(np.int64).reshape(BATCH, T), ends.reshape(BATCH, T)
    start = np.zeros((BATCH, T), np.int64)
    for t in range(1, T):
        start[:, t] = np.where(ends[:, t - 1], t, start[:, t - 1])
    targets = np.full((BATCH, T), -100)
    targets[:, :-1] = np.where(start[:, 1:] == start[:, :-1], tokens[:, 1:], -100)
    at = np.arange(T)
    visible = (at[None, None, :] <= at[None, :, None]) & (at[None, None, :] >= start[:, :, None])
    return tuple(torch.tensor(x) for x in (tokens, targets, at[None, :] - start, visible))


def losses_of(model, seed, step, T):
    tokens, targets, positions, visible = batch_of(seed, step, T)
    dtype = next(model.parameters()).dtype

    def mask_of(visible):
        return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[:, None]

    mask = mask_of(visible)
    if window := getattr(model.config, "sliding_window", None):
        windowed = mask_of(visible & torch.ones(T, T, dtype=torch.bool).triu(1 - window))
        is_gemma = model.config.model_type == "gemma3_text"
        mask = {"full_attention": mask, "sliding_attention": windowed} if is_gemma else windowed
    logits = model(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.double().reshape(-1, logits.shape[-1]), targets.reshape(-1),
                                             ignore_index=-100, reduction="none")
    return loss, (targets.reshape(-1) >= 0)


def places(n):
    return [(i * 2654435761) % n for i in range(min(PLACES, n))]


def run(name, seed, precision, threads):
    """precision: fp64, fp32, autocast (bf16), bf16 (bf16 weights, too, with fp32 masters), or fp8 (beside that), with scales
    that are powers of two or any numbers."""
    torch.set_num_threads(threads)
    masters = make_model(name, seed, torch.float64 if precision == "fp64" else torch.float32)
    groups = [dict(params=[p for p in masters.parameters() if p.dim() > 1]),
              dict(params=[p for p in masters.parameters() if p.dim() == 1], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=SETTINGS["learning_rate"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]),
                                  eps=SETTINGS["epsilon"], weight_decay=SETTINGS["weight_decay"])
    losses, first = [], {}
    for step in range(STEPS):
        has_masters = precision == "bf16" or precision.startswith("fp8")
        model = copy.deepcopy(masters).to(torch.bfloat16) if has_masters else masters
        if precision.startswith("fp8"):
            multiply_in_fp8(model, precision == "fp8")
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            each, counted = losses_of(model, seed, step, length_of(name))
        loss = each.sum() / counted.sum()
        loss.backward()
        if has_masters:
            for p, q in zip(masters.parameters(), model.parameters()):
                p.grad = q.grad.float()
        losses.append(loss.item())
        if step == 0:
            first["losses"] = each.detach().tolist()
            first["gradients"] = {}
            for tensor, p in masters.named_parameters():
                at = torch.tensor(places(p.numel()))
                first["gradients"][tensor] = dict(values=p.grad.reshape(-1)[at].double().tolist(),
                                                  norm=p.grad.double().norm().item())
        optimizer.step()
    return losses, first


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for name in b for x, y in zip(a[name]["values"], b[name]["values"])))


def main():
    for name in sys.argv[1:] or CASES:
        seed = 1
        exact_losses, exact = run(name, seed, "fp64", 1)
        golden = dict(name=name, seed=seed, batch=BATCH, sequence_length=length_of(name), **SETTINGS, torch=torch.__version__,
                      transformers=transformers.__version__, losses=exact_losses)
        config = make_model(name, seed, torch.float64).config.to_dict()
        golden["config"] = {k: v for k, v in config.items() if k not in ("dtype", "transformers_version")}
        for precision, kinds in (("fp32", ["fp32"]), ("bf16", ["autocast", "bf16"]), ("fp8", ["fp8", "fp8, any scale"])):
            if precision == "fp8" and length_of(name) % 16:
                continue
            spread, error, token_error = [2e-6] * STEPS, 0.0, 0.0
            for kind in kinds:
                for threads in (1, 2):
                    losses, first = run(name, seed, kind, threads)
                    apart = [abs(a / b - 1) for a, b in zip(losses, exact_losses)]
                    spread = [max([s] + apart[:i + 1]) for i, s in enumerate(spread)]
                    error = max(error, distance(first["gradients"], exact["gradients"]))
                    token_error = max([token_error] + [abs(a - b) for a, b in zip(first["losses"], exact["losses"])])
            golden[precision] = dict(spread=spread, gradient_error=error, token_error=token_error)
        golden["first_step"] = exact
        path = HERE / f"language_{name}.json"
        path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        print(path.name, path.stat().st_size, "bytes; losses", [f"{v:.4f}" for v in exact_losses], golden["fp32"],
              golden["bf16"], golden.get("fp8"), flush=True)


if __name__ == "__main__":
    main()
