"""Predicts memory and speed of the large models of docs/recipes/large-models.md on the GPUs of their hardware files.

    python3 bench/gpu/recipes.py --build build      # writes bench/results/recipes.md

Memory is that of `lockstep plan`, and the time of the passes that of model.py. Exchanges and the update on the host are added
by the rates below, where a pass is too short to hide them. Nothing here was measured on a GPU.
"""
import argparse
import json
import pathlib
import re
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import model as cost  # noqa: E402

FOLDER = pathlib.Path("jobs/configs/hardware")
COMMON = ["model.family=llama", "optimizer.kind=adamw", "data.train=synthetic", "data.validation=synthetic",
          "data.synthetic_samples=512"]


def qwen(width, inner, layers, heads, shared):
    return {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 152064, "hidden_size": width, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": shared,
            "max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}


# What the models' config.json say of their shapes, and their number of parameters
MODELS = {
    "Qwen2.5-7B": (qwen(3584, 18944, 28, 28, 4), 7_615_616_512),
    "Qwen2.5-14B": (qwen(5120, 13824, 48, 40, 8), 14_770_033_664),
    "Qwen2.5-32B": (qwen(5120, 27648, 64, 40, 8), 32_763_876_352),
    "Gemma-3-27B": ({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 262208, "hidden_size": 5376,
                     "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
                     "head_dim": 128, "sliding_window": 1024, "query_pre_attn_scalar": 168, "max_position_embeddings": 131072,
                     "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}, 27_009_346_304),
    "Llama-3.1-70B": ({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672,
                       "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
                       "max_position_embeddings": 131072, "rope_theta": 5e5, "tie_word_embeddings": False,
                       "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                        "original_max_position_embeddings": 8192, "rope_type": "llama3"}}, 70_553_706_496),
}
# Bytes per second and GPU of a collective, as nccl-tests count them (busbw), about 0.75 of the data sheets: NVLink; PCIe 4.0
# through the memory of the host. Between nodes, each H100 has its own 400 Gbit/s, and NCCL uses all of them at once.
BUS = {"rtx4090": 10e9, "a100": 225e9, "h100": 340e9, "h200": 340e9}
BETWEEN_NODES = 300e9
TEXT = """Predicted by `python3 bench/gpu/recipes.py`; nothing was measured on a GPU. The first groups of columns are the memory of a GPU by
kind, in GiB. *recipe*: the reference speed of the recipe for such a machine. *FSDP2*: torchtitan with Llama 3, times as many GPUs
as here: [2,973 tokens/s of an A100](https://github.com/pytorch/torchtitan/blob/main/docs/performance.md) for 8B and 331 for 70B
(on 64), and [5,762 of an H100](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md) for
8B (on 8, 500 W). It recomputes less. [ZeRO-Offload](https://arxiv.org/abs/2101.06840) states 40 TFLOP/s for a model of 10B on
one V100, 32 % of its 125; on the two A100, tokens/s times 6 FLOP per parameter is 53 % of 312.
"""
# (hardware file, model, keys, nodes, what others state)
CASES = [
    ("2x_rtx4090_llm", "Qwen2.5-7B", [], 1, "1,200 (recipe)"),
    ("2x_rtx4090_llm", "Qwen2.5-14B", [], 1, ""),
    ("2x_h100_llm", "Gemma-3-27B", [], 1, "800 (recipe)"),
    ("4x_h200_llm", "Llama-3.1-70B", [], 1, "600 (recipe)"),
    ("2x_a100_full_llm", "Qwen2.5-7B", [], 1, "5,946 (FSDP2, 8B)"),
    ("8x_h100_full_llm", "Qwen2.5-7B", ["train.offload=none"], 1, "46,096 (FSDP2, 8B)"),
    ("8x_h100_full_llm", "Qwen2.5-32B", [], 1, ""),
    ("8x_h100_full_llm", "Llama-3.1-70B", ["train.batch_per_rank=1", "train.accumulate=4", "train.offload=none"], 4,
     "10,592 (FSDP2, A100)"),
]


def gpus_of(file):
    ranks, device = file.removesuffix("_llm").removesuffix("_full").split("x_")
    return int(ranks), device


def plan(binary, folder, file, name, keys=(), nodes=1):
    """What `plan` says of a model with a hardware file, on full nodes."""
    ranks, device = gpus_of(file)
    config = pathlib.Path(folder, f"{name}.json")
    config.write_text(json.dumps(MODELS[name][0]))
    return json.loads(harness.run([binary, "plan", *COMMON, FOLDER / f"{file}.yaml", f"model.config={config}", *keys, "--ranks", ranks * nodes,
                                   "--nodes", nodes, "--device", device, "--steps", "--json"], "lockstep plan"))


def times_of(launches, rates):
    """Seconds of the forward passes, the backward passes and the rest of a step."""
    times = {"forward": 0, "backward": 0, "rest": 0}
    for launch in launches:
        phase = "backward" if launch["phase"] == "recompute" else launch["phase"]
        times[phase if phase in times else "rest"] += launch["launches"] * cost.seconds_of(launch, rates)
    return times


def not_hidden(seconds, work, pieces):
    """Of exchanges or copies beside a pass that takes `work` seconds: the first or last piece, and what takes longer than the
    pass."""
    return seconds / pieces + max(0, seconds - work)


def exposed_exchanges(planned, file, name, nodes, forward, backward):
    """Seconds of a step that passes wait for exchanges. `forward`, `backward`: seconds of one micro-batch."""
    ranks, device = gpus_of(file)
    shard = setting(file, "shard", "none")
    # Bytes per trained parameter: of each micro-batch in both passes, and of the first or last micro-batch in both
    each, once = {"none": ((0, 0), (0, 8)), "optimizer": ((0, 0), (2, 4)), "gradients": ((0, 4), (2, 0)),
                  "parameters": ((2, 6), (0, 0))}[shard]
    n = ranks * nodes
    rate = BUS[device] if nodes == 1 else min(BUS[device], BETWEEN_NODES)
    seconds = planned["trained_parameters"] * (n - 1) / n / rate
    layers = MODELS[name][0]["num_hidden_layers"]
    return sum(planned["accumulate"] * not_hidden(per_pass * seconds, work, layers) + not_hidden(per_step * seconds, work, layers)
               for work, per_pass, per_step in zip((forward, backward), each, once))


def exposed_offload(offload, layers, forward, backward):
    """Seconds of a step that passes wait for copies and for the update on the host."""
    if not offload:
        return 0
    return (not_hidden(offload["sums_seconds"], backward, layers) +
            not_hidden(max(offload["update_seconds"], offload["weights_seconds"]), forward, layers))


def setting(file, key, otherwise):
    found = re.search(rf"\b{key}: (\w+)", (FOLDER / f"{file}.yaml").read_text())
    return found[1] if found else otherwise


def row(planned, file, name, keys, nodes, others):
    ranks, device = gpus_of(file)
    times = times_of(planned["launches"], cost.RATES[device])
    forward, backward = (times[phase] / planned["accumulate"] for phase in ("forward", "backward"))
    exchanges = exposed_exchanges(planned, file, name, nodes, forward, backward)
    waits = exposed_offload(planned["offload"], MODELS[name][0]["num_hidden_layers"], forward, backward)
    step = sum(times.values()) + exchanges + waits
    tokens = planned["global_batch"] * int(setting(file, "sequence_length", 0))
    gib = {kind: size / 2**30 for kind, size in planned["memory_bytes"].items()}
    kinds = [("parameters", "compute_weights", "nf4_weights", "gathered_weights"), ("gradients", "low_precision_gradients", "partial_sums"),
             ("optimizer",), ("activations",)]
    cells = [sum(gib[kind] for kind in group) for group in kinds]
    cells.append(gib["total_on_device"] - sum(cells))
    assert planned["fits"], (file, name)
    return [f"{nodes} x {ranks} {device}" if nodes > 1 else f"{ranks} {device}", name, " ".join([f"`{file}`", *(f"`{key}`" for key in keys)]),
            *(f"{cell:.1f}" for cell in cells), f"{gib['total_on_device']:.1f}", f"{gib['total_on_host']:.0f}",
            f"{step:.2f}", f"{exchanges:.2f}", f"{waits:.2f}" if planned["offload"] else "-", f"{tokens / step:,.0f}", others or "-"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder with the program lockstep")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("bench/results"), help="folder for recipes.md")
    args = parser.parse_args()
    binary = harness.lockstep(args.build)
    with harness.scratch() as folder:
        rows = [row(plan(binary, folder, file, name, keys, nodes), file, name, keys, nodes, others) for file, name, keys, nodes, others in CASES]
    text = harness.table(["GPUs", "model", "file of jobs/configs/hardware, and keys", "weights", "gradients", "optimizer", "activations", "other", "GiB per GPU",
                          "host, GiB per rank", "step, s", "exposed exchanges, s", "waits for the host, s", "tokens/s", "others: tokens/s"], rows)
    (args.results / "recipes.md").write_text(f"# Large models on the GPUs of their recipes, predicted\n\n{TEXT}\n{text}")
    print(text)


if __name__ == "__main__":
    main()
