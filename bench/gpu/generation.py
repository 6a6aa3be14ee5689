"""The checks of the part generate: text of language models on the GPU."""
import gzip
import json
import pathlib
import re

import harness
import parts
from context import LANGUAGE_CONFIG, QUIET, Failure, Item, Skip, tail
from speed import copy_rate

# The tests of the ops that only text generation uses, and of those that read a single token.
OPS = ("cached_attention_test", "matmul_test", "rms_norm_test", "rotary_test", "sample_test")
GOLDEN = harness.ROOT / "test/golden"
TOK512 = GOLDEN / "tokenizers/tok512.bin"
MODELS = ("llama-story", "stories260K", "qwen2", "llama")
# In types in which sums are rounded, the tokens of a reply may differ, so equal replies are required only in fp32.
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# The parameters, and the part of the rate of a copy at which decoding must read the weights. The predicted parts are higher
# (model.py); barriers between the stages of a step limit the small model.
PRESETS = {"Qwen2.5-0.5B": ("qwen2-0.5b", 494_032_768, 0.7), "SmolLM-135M": ("smollm-135m", 134_515_008, 0.25)}
PROMPT_TOKENS, NEW_TOKENS = 512, 256


def generate(context, *arguments):
    return context.output([context.binary, "generate", *arguments, "device=cuda"])


def model(context, folder, name):
    """The arguments that name a golden model and its tokenizer."""
    if name == "llama-story":
        story = pathlib.Path(folder, "story")
        story.mkdir(exist_ok=True)
        for file in ("config.json", "generation_config.json", "model.safetensors"):
            (story / file).write_bytes((GOLDEN / "llama-story" / file).read_bytes())
        packed = (GOLDEN / "tokenizers/llama-story.json.gz").read_bytes()
        (story / "tokenizer.json").write_bytes(gzip.decompress(packed))
        return [story]
    if name == "stories260K":
        file = pathlib.Path(folder, "stories.h5")
        if not file.exists():
            context.output([context.binary, "checkpoint", "import", "--format", "llama2c",
                            GOLDEN / "stories260K/stories260K.bin", file])
        return [file, "--tokenizer", TOK512]
    return [GOLDEN / "generate" / name, "--tokenizer", TOK512]


def replies(context, folder, arguments, prompts, *options):
    file, target = pathlib.Path(folder, "prompts.txt"), pathlib.Path(folder, "replies.jsonl")
    file.write_text("".join(prompt + "\n" for prompt in prompts))
    generate(context, *arguments, "--prompts", file, f"--json={target}", *options)
    return [json.loads(line)["tokens"] for line in target.read_text().splitlines()]


def as_transformers(name):
    def work(context):
        cases = [case for case in json.loads((GOLDEN / "generate/expected.json").read_text())["cases"] if case["model"] == name]
        groups = {}
        for case in cases:
            groups.setdefault(json.dumps(case["options"]), []).append(case)
        n = 0
        with harness.scratch() as folder:
            arguments = model(context, folder, name)
            for options, group in groups.items():
                flags = [word for key, value in json.loads(options).items() for word in (f"--{key}", str(value))]
                expected = [tokens for case in group for tokens in case["tokens"]]
                found = replies(context, folder, arguments, [case["prompt"] for case in group], *flags, "precision=fp32")
                if found != expected:
                    wrong = next(i for i, (a, b) in enumerate(zip(found, expected)) if a != b)
                    return False, f"{options}: reply {wrong} is {found[wrong]}; expected {expected[wrong]}"
                n += len(expected)
        return True, f"{n} replies have the tokens of transformers"
    return work


def any_batch(precision):
    def work(context):
        prompts = [("Lily and Tom went to the park. " * (1 + 3 * i))[:1400] for i in range(9)] + ["A", "One"]
        options = ["--max-new-tokens", 24, "--ignore-end", f"precision={precision}"]
        with harness.scratch() as folder:
            arguments = model(context, folder, "llama-story")
            alone, together = (replies(context, folder, arguments, prompts, *options, "--batch", n) for n in (1, 8))
        same = sum(a == b for a, b in zip(alone, together))
        text = f"{same} of {len(prompts)} replies are the same with 1 and with 8 prompts at a time"
        return same == len(prompts) or precision != "fp32", text
    return work


def with_and_without_graph(precision):
    """A captured step of decoding runs its stages in one launch, and an uncaptured one each in its own."""
    def work(context):
        with harness.scratch() as folder:
            arguments = model(context, folder, "llama-story")
            found = [replies(context, folder, arguments, ["Lily went to", "One day"], "--max-new-tokens", 64, "--temperature", 1, "--batch", n,
                             f"precision={precision}", f"cuda.graph={graph}") for n in (1, 2) for graph in ("true", "false")]
        return found[0] == found[1] and found[2] == found[3], f"the tokens are {found[0]}, then {found[1:]}"
    return work


def speed(name, preset, parameters, least):
    """Weights after one training step, since only their size matters."""
    def work(context):
        with harness.scratch() as folder:
            context.train(folder, "random", [
                *harness.SYNTHETIC, "data.synthetic_samples=4", "device=cuda", "data.sequence_length=32", "train.global_batch=1",
                "train.max_steps=1", "schedule.warmup_steps=0", "precision=bf16", f"model.config={preset}"],
                config=LANGUAGE_CONFIG, base=QUIET)
            file = pathlib.Path(folder, "prompt.txt")
            harness.write_prompt(file, PROMPT_TOKENS)
            output = generate(context, pathlib.Path(folder, "random/model"), "--tokenizer", TOK512, "--prompts", file,
                              "--ignore-end", "--max-new-tokens", NEW_TOKENS, "--speed", f"--json={folder}/out", "precision=bf16")
        found = re.search(harness.PREFILL, output)
        if not found:
            raise Failure(f"--speed printed no figures: {tail(output)}")
        n_prompt, prefill, n_new, decode = map(float, found.groups())
        read = 2 * parameters * n_new / decode
        text = f"decoding {n_new / decode:,.0f} tokens/s, {read * 1e-9:,.0f} GB/s of weights; prefill {n_prompt / prefill:,.0f} tokens/s"
        python, version = harness.torch_python(context.args.python)
        rate = context.figure("copy rate", lambda: copy_rate(context, python)) if python else None
        if not rate:
            raise Skip(f"{text}; the bandwidth of the memory is unknown: {version if not python else 'it was not measured'}")
        return read >= least * rate, f"{text}; {100 * read / rate:.0f} % of the {rate * 1e-9:,.0f} GB/s of a copy, {100 * least:.0f} % required"
    return work


def generation(context):
    items = parts.op_items(context, OPS)
    items += [Item(f"{name}, fp32, compared with transformers", as_transformers(name)) for name in MODELS]
    items += [Item(f"{precision}: a reply does not depend on the other prompts", any_batch(precision)) for precision in PRECISIONS]
    items += [Item(f"{precision}: captured and uncaptured steps draw the same tokens", with_and_without_graph(precision))
              for precision in PRECISIONS]
    return items + [Item(f"{name}, bf16: speed of one reply", speed(name, *sizes)) for name, sizes in PRESETS.items()]
