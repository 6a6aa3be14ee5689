"""The checks of the parts lm-ops, lm-training and lm-speed: language models on the GPU."""
import json
import pathlib

import harness
import parts
from context import LANGUAGE_CONFIG, LANGUAGE_SMALL, Failure, Item, Skip
from speed import beside_pytorch, measured_training, peer, where_time_goes, where_time_goes_text

# The tests of the ops that a language model consists of; the optimizer is AdamW.
OPS = ("attention_test", "embedding_test", "linear_cross_entropy_test", "matmul_test", "optimizer_test", "rms_norm_test",
       "rotary_test", "glu_test")
MODELS = ("llama_tied", "llama3_biased", "qwen2", "qwen3")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
RECOMPUTATION = ("none", "block", "selective")
STEPS = 20
# The maximum relative difference of the losses on two devices. Sums are in another order, which training amplifies.
DISTANCES = {"fp32": 1e-3, "bf16": 2e-2, "fp8": 4e-2}

SEQUENCE = 1024
# The trainings that are timed. `aim`: tokens/s on an H200, or the fraction of the matmul rate measured on the same GPU.
SHAPES = {
    "Qwen2.5-0.5B": dict(preset="qwen2-0.5b", batch=16, layers=24, width=896, heads=14, kv_heads=2, ffn=4864,
                         vocabulary=151936, bias=True, aim_tokens=160_000),
    "SmolLM-135M": dict(preset="smollm-135m", batch=32, layers=30, width=576, heads=9, kv_heads=3, ffn=1536,
                        vocabulary=49152, bias=False, aim_utilization=0.5),
}
MIN_SAVED, MAX_SLOWER = 0.40, 0.25  # recomputation: activation memory saved, time added


def lm_ops(context):
    return parts.op_items(context, OPS)


def losses_of(context, folder, name, overrides):
    """The training loss of each step of a small language model."""
    context.train(folder, name, overrides, config=LANGUAGE_CONFIG, base=LANGUAGE_SMALL + [f"train.max_steps={STEPS}"])
    steps = harness.steps_of(pathlib.Path(folder, name))
    if len(steps) != STEPS:
        raise Failure(f"metrics.jsonl has {len(steps)} steps; expected {STEPS}")
    return [step["loss"] for step in steps]


def as_on_the_cpu(precision, *overrides):
    """The losses of a few training steps are the same as on a CPU."""
    def work(context):
        with harness.scratch() as folder:
            cpu, gpu = (losses_of(context, folder, device, [*overrides, f"device={device}", f"precision={precision}"])
                        for device in ("cpu", "cuda"))
        distance = max(abs(b / a - 1) for a, b in zip(cpu, gpu))
        return distance <= DISTANCES[precision], (f"the losses of {STEPS} steps differ by at most {distance:.1e}, "
                                                  f"{DISTANCES[precision]:.0e} allowed; the last is {gpu[-1]:.4f}")
    return work


def same_bits(fixed, first, second):
    """A check that two trainings of a small model give the same bits: (overrides, ranks, environment) of each."""
    return parts.same_bits((fixed + first[0], *first[1:]), (fixed + second[0], *second[1:]), config=LANGUAGE_CONFIG,
                           base=LANGUAGE_SMALL + ["train.max_steps=8"])


def lm_training(context):
    items = [parts.golden_item(f"{model}, {precision}, compared with PyTorch", f"*LanguageGolden*/{model}_{precision}_*")
             for model, precision in [*((model, precision) for model in MODELS for precision in PRECISIONS if precision != "fp8"), ("qwen2_16", "fp8")]]
    items += [Item(f"{precision}: the losses are those of a CPU", as_on_the_cpu(precision)) for precision in DISTANCES]

    def same(first, second):
        return same_bits(["reproducible=true", "device=cuda"], first, second)
    items += [Item(f"{precision}: captured and uncaptured steps give the same bits",
                   same(([f"precision={precision}"], 1, {}), ([f"precision={precision}", "cuda.graph=false"], 1, {})))
              for precision in PRECISIONS]
    items += [Item(f"model.recompute={kind} gives the same bits",
                   same((["precision=bf16"], 1, {}), (["precision=bf16", f"model.recompute={kind}"], 1, {})))
              for kind in RECOMPUTATION[1:]]
    tree = ["precision=bf16", "train.micro_batches=4"]
    return items + [Item(f"train.micro_batches: {parts.RANKS} ranks give the same bits as one",
                         parts.nccl(same((tree, 1, {}), (tree, parts.RANKS, parts.SHARED_GPU))))]


def overrides_of(shape, *more):
    """Windows without boundaries of documents, as the training in PyTorch has them."""
    return ["data.train=synthetic", "data.validation=", f"data.sequence_length={SEQUENCE}", "data.cross_documents=true",
            f"data.synthetic_samples={2 * shape['batch']}", f"model.config={shape['preset']}", "device=cuda", "precision=bf16",
            f"train.global_batch={shape['batch']}", "train.epochs=20", "train.max_steps=30", "log.every_steps=1",
            "checkpoint.every_epochs=0", "data.readers=4", *more]


def flops_per_token(shape):
    """The FLOPs that the mathematics of training needs: three times those of the forward pass."""
    dim = shape["width"] // shape["heads"]
    layer = shape["width"] * dim * (2 * shape["heads"] + 2 * shape["kv_heads"]) + 3 * shape["width"] * shape["ffn"]
    attention = 2 * shape["width"] * (SEQUENCE + 1) / 2
    return 6 * (shape["layers"] * (layer + attention) + shape["vocabulary"] * shape["width"])


def run_lockstep(context, shape, *more):
    found = measured_training(context, LANGUAGE_CONFIG, overrides_of(shape, *more))
    return {**found, "tokens_per_second": shape["batch"] * SEQUENCE / found["step_seconds"]}


def language_peer(context, python, mode, shape=None):
    sizes = [] if shape is None else ["--sequence", SEQUENCE, *(["--bias"] if shape["bias"] else [])] + [
        word for key in ("batch", "layers", "width", "heads", "kv_heads", "ffn", "vocabulary")
        for word in ("--" + key.replace("_", "-"), shape[key])]
    return peer(context, python, "language", mode, "--warmup", 6, "--rounds", 4, "--steps", 5, *sizes, limit=300)


def utilization(context, python, shape, measured):
    """(The fraction of the matmul rate that the training reaches or None, the reason or ""): Lockstep's own figure,
    which is relative to the rate that it measures itself, otherwise relative to PyTorch's rate."""
    if measured["utilization"]:
        return measured["utilization"], ""
    if not python:
        return None, "the matmul rate is unknown without PyTorch"
    rate = context.figure("matmul rate", lambda: language_peer(context, python, "matmul"))
    if "problem" in rate:
        return None, f"the matmul rate is unknown: {rate['problem']}"
    return measured["tokens_per_second"] * flops_per_token(shape) / rate["flops_per_second"], ""


def measure(name, shape):
    def checked(context):
        python, version = harness.torch_python(context.args.python)
        first, again, good, problems = beside_pytorch(
            context, name, lambda: run_lockstep(context, shape),
            lambda python, mode: language_peer(context, python, mode, shape), ("compile", "graph"))
        mine = dict(first, tokens_per_second=(first["tokens_per_second"] + again["tokens_per_second"]) / 2)
        part, unknown = utilization(context, python, shape, mine)
        text = f"{mine['tokens_per_second']:,.0f} tokens/s, " + (
            f"{100 * part:.1f} % of the matmul rate" if part else unknown)
        if good:
            mode, best = max(good.items(), key=lambda side: side[1]["tokens_per_second"])
            text += (f"; PyTorch {best['torch']} {best['tokens_per_second']:,.0f} ({mode}): "
                     f"{mine['tokens_per_second'] / best['tokens_per_second']:.2f} times; memory "
                     f"{first['memory_bytes'] / best['memory_bytes']:.2f} times")
        text += f"; {100 * again['data_wait']:.1f} % of the time spent waiting for data{problems}"
        if "aim_tokens" in shape:
            if "H200" not in context.report["gpu"]["name"]:
                raise Skip(f"{text}; the aim of {shape['aim_tokens']:,} tokens/s is that of an H200")
            return mine["tokens_per_second"] >= shape["aim_tokens"], f"{text}; {shape['aim_tokens']:,} tokens/s required"
        if not part:
            raise Skip(text if python else f"{text}; {version}")
        return part >= shape["aim_utilization"], f"{text}; {100 * shape['aim_utilization']:.0f} % required"
    return checked


def activation_bytes(context, shape, kind):
    with harness.scratch() as folder:
        file = pathlib.Path(folder, "plan.json")
        context.output([context.binary, "plan", LANGUAGE_CONFIG, *overrides_of(shape, f"model.recompute={kind}"),
                        f"--json={file}"])
        return json.loads(file.read_text())["memory_bytes"]["activations"]


def recomputation(name, shape):
    """At least one kind must save enough memory at a small enough cost in time."""
    def checked(context):
        found = {kind: dict(bytes=activation_bytes(context, shape, kind), **context.figure(
            f"{name}: {kind}", lambda kind=kind: run_lockstep(context, shape, f"model.recompute={kind}")))
            for kind in RECOMPUTATION}
        none, texts, good = found["none"], [], False
        for kind in RECOMPUTATION[1:]:
            saved = 1 - found[kind]["bytes"] / none["bytes"]
            slower = found[kind]["step_seconds"] / none["step_seconds"] - 1
            good = good or (saved >= MIN_SAVED and slower < MAX_SLOWER)
            texts.append(f"{kind} saves {100 * saved:.0f} % of {none['bytes'] / 1e9:.1f} GB of activations and takes "
                         f"{100 * slower:.0f} % more time")
        return good, "; ".join(texts) + f"; {100 * MIN_SAVED:.0f} % for less than {100 * MAX_SLOWER:.0f} % required"
    return checked


def split(shape):
    def checked(context):
        return True, where_time_goes_text(where_time_goes(context, LANGUAGE_CONFIG, overrides_of(shape)))
    return checked


def lm_speed(context):
    return [item for name, shape in SHAPES.items() for title in [f"{name}, sequence 1,024, batch {shape['batch']}, bf16"]
            for item in (Item(title, measure(title, shape)), Item(f"{title}: recomputation", recomputation(f"{title}: recomputation", shape)),
                         Item(f"{title}: where the time goes", split(shape)))]
