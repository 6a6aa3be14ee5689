"""The checks of the part lora: adapters (model.lora) and a base in NF4 on the GPU."""
import language
import parts
from context import Item

OPS = ("lora_test", "nf4_matmul_test")
CASES = ("llama", "qwen2", "nf4", "dropout")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# The base has random weights and the tokens are random, so no file is needed.
ADAPTERS = ["data.train=synthetic", "data.synthetic_samples=512", "model.lora.rank=8", "model.lora.dropout=0.05"]
BASES = {"adapters": ADAPTERS, "adapters beside NF4": [*ADAPTERS, "model.base_precision=nf4"]}
SPEED = language.SHAPES["SmolLM-135M"]
TRAINED = {"all weights": ["optimizer.kind=adamw"],
           "adapters": ["optimizer.kind=adamw", "model.lora.rank=8"],
           "adapters beside NF4": ["optimizer.kind=adamw", "model.lora.rank=8", "model.base_precision=nf4"]}


def speed(context):
    """Tokens per second and memory of training all weights, adapters, and adapters on an NF4 base. Adapters must need
    less memory than all weights, and an NF4 base less still; no speed is required."""
    measured = {name: language.run_lockstep(context, SPEED, *overrides) for name, overrides in TRAINED.items()}
    memory = [measured[name]["memory_bytes"] for name in TRAINED]
    text = "; ".join(f"{name}: {m['tokens_per_second']:,.0f} tokens/s, {m['memory_bytes'] / 2**20:,.0f} MiB"
                     for name, m in measured.items())
    return memory == sorted(memory, reverse=True), text


def lora(context):
    items = parts.op_items(context, OPS)
    items += [parts.golden_item(f"{case}, {precision}, compared with PEFT", f"*LoraGolden*/{case}_{precision}_*")
              for case in CASES for precision in PRECISIONS]
    items += [Item(f"{name}, {precision}: the losses are those of a CPU", language.as_on_the_cpu(precision, *overrides))
              for name, overrides in BASES.items() for precision in ("fp32", "bf16")]

    def same(name, what, first, second):
        fixed = [*BASES[name], "reproducible=true", "device=cuda", "precision=bf16"]
        return Item(f"{name}: {what}", language.same_bits(fixed, first, second))
    for name in BASES:
        items.append(same(name, "captured and uncaptured steps give the same bits", ([], 1, {}), (["cuda.graph=false"], 1, {})))
        items += [same(name, f"model.recompute={kind} gives the same bits", ([], 1, {}), ([f"model.recompute={kind}"], 1, {}))
                  for kind in language.RECOMPUTATION[1:]]
        tree = ["train.micro_batches=4"]
        two = same(name, f"train.micro_batches: {parts.RANKS} ranks give the same bits as one", (tree, 1, {}),
                   (tree, parts.RANKS, parts.SHARED_GPU))
        items.append(Item(two.name, parts.nccl(two.work)))
    return items + [Item("SmolLM-135M, sequence 1,024, batch 32, bf16: speed and memory", speed)]
