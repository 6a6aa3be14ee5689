#!/usr/bin/env python3
"""Makes chat.json: the ids of conversations and the positions of their answers, as apply_chat_template() of
transformers gives them with return_assistant_tokens_mask, for test/text.

The messages are the texts of tokenizers/texts.json.gz; a conversation is a list of roles and indices of texts. For the
mask, {% generation %} is put into the templates around what the assistant says and the token that ends it. Of the ids,
the file contains only their number and a hash (FNV-1a of 64 bits over little-endian int32).
"""
import gzip
import json
import pathlib
import random
import struct

import tokenizers
import transformers

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "tokenizers"
PER_TEMPLATE = 120
LLAMA3_TOKENS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
# The tokenizer, the name of a template in chat_templates.json, and what is marked in it.
CASES = [
    ("smollm", "SmolLM2",
     ("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
      "{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + "
      "'<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}")),
    ("qwen2", "Qwen2",
     ("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
      "{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + "
      "'<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}")),
    ("qwen2", "Qwen2 of a fine-tune",
     ("{{ content + '<|im_end|>' + '\n' }}",
      "{% generation %}{{ content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}")),
    ("smollm", "Llama 3",
     ("{{ content }}{% endfor %}",
      "{% if message['role'] == 'assistant' %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% generation %}"
      "{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}{{ content }}{% endif %}{% endfor %}")),
]


def tokenizer_of(name, extra):
    """As in test/text/golden.h."""
    data = json.loads((FOLDER / f"{name}.json").read_text())
    model = data["model"]
    merges = gzip.decompress((FOLDER / f"{name}.merges.gz").read_bytes()).decode().splitlines()
    tokens = model.pop("head") + [merge.replace(" ", "") for merge in merges]
    tokens += model.pop("tail")
    model["vocab"] = {token: i for i, token in enumerate(tokens)}
    model["merges"] = merges
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens(extra)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|begin_of_text|>" if extra else None)


def conversation(draw, n_texts):
    roles = ["system"] if draw.random() < 0.3 else []
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        roles += ["user", "assistant"]
    if draw.random() < 0.1:
        roles.append("user")
    return [[role, draw.randrange(n_texts)] for role in roles]


def fnv(ids):
    value = 0xCBF29CE484222325
    for byte in b"".join(struct.pack("<i", i) for i in ids):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def ranges(mask):
    out = []
    for i, inside in enumerate(mask):
        if inside and (i == 0 or not mask[i - 1]):
            out.append([i, i + 1])
        elif inside:
            out[-1][1] = i + 1
    return out


def main():
    texts = json.loads(gzip.decompress((FOLDER / "texts.json.gz").read_bytes()))["texts"]
    short = [i for i, text in enumerate(texts) if len(text) < 2000]
    templates = json.loads((HERE / "chat_templates.json").read_text())["templates"]
    draw = random.Random(11)
    cases = []
    for tokenizer_name, template_name, (before, after) in CASES:
        template = templates[template_name]
        assert template.count(before) == 1, template_name
        extra = LLAMA3_TOKENS if template_name == "Llama 3" else []
        tokenizer = tokenizer_of(tokenizer_name, extra)
        found = []
        for _ in range(PER_TEMPLATE):
            roles = [[role, short[i]] for role, i in conversation(draw, len(short))]
            messages = [{"role": role, "content": texts[i]} for role, i in roles]
            plain = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=True)["input_ids"]
            marked = tokenizer.apply_chat_template(messages, chat_template=template.replace(before, after), tokenize=True,
                                                   return_dict=True, return_assistant_tokens_mask=True)
            assert plain == marked["input_ids"], template_name
            found.append({"messages": roles, "n_ids": len(plain), "hash": fnv(plain), "answers": ranges(marked["assistant_masks"])})
        cases.append({"tokenizer": tokenizer_name, "template": template_name, "added_tokens": extra, "conversations": found})
    out = {"transformers": transformers.__version__, "cases": cases}
    lines = json.dumps(out, separators=(",", ":")).replace('{"messages"', '\n{"messages"')
    (HERE / "chat.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
