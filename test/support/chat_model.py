"""A small base model that ends texts with <|endoftext|>, and what Lockstep makes of it with conversations whose answers
end with <|im_end|> (the template chatml): RUN/model of a whole model and of adapters, and the merged model. All have
memorised the answer to PROMPT, which is ANSWER.
"""

import json
import os
import pathlib
import subprocess

LOCKSTEP = os.path.abspath(os.environ.get("LOCKSTEP", "build/lockstep"))
BEGIN, END = 1024, 1025  # the ids of <|im_start|> and <|im_end|>; 0 is <|endoftext|>
ANSWER = "The king."
PROMPT = "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 1026, "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
          "tie_word_embeddings": True, "rope_theta": 10000.0, "initializer_range": 0.3, "bos_token_id": 0,
          "eos_token_id": 0}
KEYS = ["model.family=llama", "data.sequence_length=64", "data.pack=false", "train.global_batch=4",
        "optimizer.kind=adamw", "optimizer.learning_rate=1e-2", "schedule.kind=constant", "schedule.warmup_epochs=0",
        "checkpoint.every_epochs=0", "log.every_steps=1000", "log.progress=false", "log.tensorboard=false",
        "cpu.threads=1"]


def run(*arguments, status=0):
    done = subprocess.run([LOCKSTEP, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def read(path):
    return json.loads(pathlib.Path(path).read_text())


def write(path, content):
    pathlib.Path(path).write_text(json.dumps(content))


def make_base(work):
    """A directory as transformers writes it, with a tokenizer that has the tokens of ChatML."""
    (work / "text").mkdir()
    tokenizer = read("data/samples/tokenizer.json")
    for i, content in ((BEGIN, "<|im_start|>"), (END, "<|im_end|>")):
        tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=i, content=content))
    write(work / "text/tokenizer.json", tokenizer)
    write(work / "text/tokenizer_config.json", {"eos_token": "<|endoftext|>"})
    write(work / "config.json", CONFIG)
    run("data", "import", "text", "docs/design.md", work / "text.h5", "--tokenizer", work / "text")
    run("train", *KEYS, f"model.config={work}/config.json", f"data.train={work}/text.h5", f"run.directory={work}",
        "run.name=text-run", "train.max_steps=2", "data.pack=true")
    base = work / "text-run/model"
    write(base / "tokenizer_config.json",
          {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>",
           "pad_token": "<|endoftext|>", "model_max_length": 128})
    write(base / "special_tokens_map.json", {"eos_token": {"content": "<|endoftext|>", "lstrip": False}})
    write(base / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0})
    return base


def conversations(work, base, *options):
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": ANSWER}]
    (work / "chat.jsonl").write_text((json.dumps({"messages": messages}) + "\n") * 4)
    return run("data", "import", "chat", work / "chat.jsonl", work / "chat.h5", "--tokenizer", base, "--force",
               *(options or ("--template", "chatml")))


def train(work, base, name, *keys):
    return run("train", *KEYS, f"model.from={base}", f"data.train={work}/chat.h5", f"run.directory={work}",
               f"run.name={name}", *keys)


def make_models(work):
    """The base, and the runs `whole` and `lora`, which know the answer."""
    base = make_base(work)
    conversations(work, base)
    train(work, base, "whole", "train.epochs=60")
    train(work, base, "lora", "train.epochs=150", "model.lora.rank=8", "model.lora.alpha=64")
    run("checkpoint", "merge", base, work / "lora", work / "merged")
    return base
