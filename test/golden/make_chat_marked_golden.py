#!/usr/bin/env python3
"""Makes chat_marked.json: the ids of conversations with tools and reasoning, and the tokens that {% generation %} marks in
templates, as apply_chat_template() of transformers gives them with return_assistant_tokens_mask, for test/text.

The answers of a case with "inferred" are also those of the template without {% generation %}. Strings such as "#12" stand
for the texts of tokenizers/texts.json.gz. Of the ids, the file contains only their number and a hash.
"""
import gzip
import json
import random

from make_chat_golden import FOLDER, HERE, fnv, ranges, tokenizer_of
import tokenizers
import transformers

PER_TEMPLATE = 24
G, END = "{% generation %}", "{% endgeneration %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
LLAMA3 = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]
TOOL_TURNS = (
    "{% if tools %}{{ '<|im_start|>system\n# Tools' }}{% for tool in tools %}{{ '\n' ~ (tool | tojson) }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}"
    "{% if m.reasoning_content is defined and m.reasoning_content is string %}{{ '<think>\n' + m.reasoning_content.strip('\n') + "
    "'\n</think>\n\n' }}{% endif %}{% if m.content %}{{ m.content }}{% endif %}{% if m.tool_calls %}{% for call in m.tool_calls %}"
    "{% if (loop.first and m.content) or not loop.first %}{{ '\n' }}{% endif %}{% if call.function %}{% set call = call.function %}"
    "{% endif %}{{ '<tool_call>\n{\"name\": \"' ~ call.name ~ '\", \"arguments\": ' }}{% if call.arguments is string %}"
    "{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}{{ '}\n</tool_call>' }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% elif m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + m.content + "
    "'\n</tool_response><|im_end|>\n' }}{% else %}{{ '<|im_start|>' + m.role + ('=' + m.name if m.name is defined else '') + '\n' + "
    "m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}" + PROMPT)


def chatml(answer):
    return ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}" + answer +
            "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}" + PROMPT)


# name: tokenizer, added tokens, kind of conversation, whether the answers are also found without marks, template
TEMPLATES = {
    "with its end token": ("smollm", [], "plain", True, chatml(G + "{{ m.content + '<|im_end|>' }}" + END)),
    "content only": ("qwen2", [], "plain", False, chatml(G + "{{ m.content }}" + END + "{{ '<|im_end|>' }}")),
    "part of it": ("smollm", [], "plain", False, chatml(G + "{{ m.content[:7] }}" + END + "{{ m.content[7:] + '<|im_end|>' }}")),
    "two blocks": ("smollm", [], "plain", False,
                   chatml(G + "{{ m.content[:3] }}" + END + G + "{{ m.content[3:9] }}" + END + "{{ m.content[9:] }}" + G +
                          "{{ '<|im_end|>' }}" + END)),
    "a scope": ("smollm", [], "plain", False,
                chatml("{% set x = 'outside' %}" + G + "{% set x = m.content %}{{ x ~ loop.index }}" + END + "{{ x + '<|im_end|>' }}")),
    "only the last": ("smollm", [], "plain", False,
                      chatml("{% if loop.revindex < 3 %}" + G + "{{ m.content }}" + END +
                             "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>' }}")),
    "as JSON": ("smollm", [], "plain", True, chatml(G + "{{ m.content | tojson + '<|im_end|>' }}" + END)),
    "Llama 2": ("gpt2", ["<s>", "</s>"], "plain", True,
                "{% for m in messages %}{% if m.role == 'assistant' %}" + G + "{{ ' ' + m.content.strip() + ' </s>' }}" + END +
                "{% else %}{{ '<s>[INST] ' + m.content.strip() + ' [/INST]' }}{% endif %}{% endfor %}"),
    "Mistral": ("smollm", ["<s>", "</s>", "[INST]", "[/INST]"], "plain", True,
                "{{ '<s>' }}{% for m in messages %}{% if m.role == 'assistant' %}" + G + "{{ ' ' + m.content + '</s>' }}" + END +
                "{% else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}{% endfor %}"),
    "no end token": ("smollm", [], "plain", True,
                     "{% for m in messages %}{% if m.role == 'assistant' %}{{ 'Answer:\n' }}" + G + "{{ m.content }}" + END +
                     "{{ '\n' }}{% else %}{{ 'Question:\n' + m.content + '\n' }}{% endif %}{% endfor %}"
                     "{% if add_generation_prompt %}{{ 'Answer:\n' }}{% endif %}"),
    "turns begin with tokens": ("qwen2", ["<|user|>", "<|assistant|>"], "plain", True,
                                "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\n' }}" + G +
                                "{{ m.content }}" + END + "{% else %}{{ '<|user|>\n' + m.content }}{% endif %}{% endfor %}"
                                "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"),
    "tools": ("qwen2", ["<tool_call>", "</tool_call>"], "tools", True, TOOL_TURNS),
    "tools, without added tokens": ("smollm", [], "tools", True, TOOL_TURNS),
    "Llama 3.1": ("smollm", LLAMA3, "calls", True,
                  "{{ bos_token }}{% if tools is not none %}{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}{% for t in tools %}"
                  "{{ t | tojson(indent=4) }}{{ '\n\n' }}{% endfor %}{{ '<|eot_id|>' }}{% endif %}{% for m in messages %}"
                  "{{ '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\n\n' }}"
                  "{% if m.role == 'assistant' %}" + G +
                  "{% if 'tool_calls' in m %}{% set call = m.tool_calls[0].function %}{{ '{\"name\": \"' + call.name + '\", ' }}"
                  "{{ '\"parameters\": ' }}{{ call.arguments | tojson }}{{ '}' }}{% else %}{{ m.content | trim }}{% endif %}"
                  "{{ '<|eot_id|>' }}" + END + "{% else %}{{ m.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"),
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a “place”", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "enum": []}, "days": {"type": "integer", "default": 1.5}},
    "required": ["place"], "strict": True, "example": {}}}}, {"type": "function", "function": {"name": "now"}}]


def conversation(draw, kind, short):
    """Messages in which "#12" stands for a text."""
    text = lambda: f"#{draw.choice(short)}"
    if kind == "plain":
        return [{"role": role, "content": text()} for _ in range(draw.choice([1, 1, 2, 3])) for role in ("user", "assistant")]
    out = []
    for _ in range(draw.choice([1, 2, 3])):
        out.append({"role": "user", "content": text()})
        if draw.random() < 0.2:
            out[-1]["name"] = "Jo"
        if draw.random() < 0.6:
            # Arguments in the order of the data, and as a string, as some services give them
            arguments = draw.choice([{"place": text(), "days": 2, "at": [1.0, 1e-7, True, None]}, {}, {"z": {"b": 1, "a": text()}}])
            if draw.random() < 0.2:
                arguments = '{"place": "Rome"}'
            calls = [{"type": "function", "id": "abcdefghi", "function": {"name": "get_weather", "arguments": arguments}}]
            if draw.random() < 0.3:
                calls.append({"function": {"name": "now", "arguments": {}}})
            out.append({"role": "assistant", "content": draw.choice(["", text()]), "tool_calls": calls})
            if draw.random() < 0.3:
                out[-1]["content"] = None
            out.append({"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": text()})
        out.append({"role": "assistant", "content": text()})
        if kind == "tools" and draw.random() < 0.4:
            out[-1][draw.choice(["reasoning_content", "thinking", "reasoning"])] = text()
    return out


def expand(value, texts):
    if isinstance(value, str):
        return texts[int(value[1:])] if value.startswith("#") else value
    if isinstance(value, list):
        return [expand(item, texts) for item in value]
    return {key: expand(item, texts) for key, item in value.items()} if isinstance(value, dict) else value


def tokenizer_for(name, added):
    if name != "llama-story":
        return tokenizer_of(name, added)
    content = gzip.decompress((FOLDER / "llama-story.json.gz").read_bytes()).decode()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(content))


def cases(per_template=PER_TEMPLATE, seed=7):
    texts = json.loads(gzip.decompress((FOLDER / "texts.json.gz").read_bytes()))["texts"]
    short = [i for i, text in enumerate(texts) if 0 < len(text) < 1000 and not text.startswith("#")]
    draw = random.Random(seed)
    out = []
    for name, (tokenizer_name, added, kind, inferred, template) in TEMPLATES.items():
        tokenizer = tokenizer_for(tokenizer_name, added)
        tokenizer.bos_token = "<|begin_of_text|>" if "<|begin_of_text|>" in added else None
        found = []
        for _ in range(per_template):
            messages = conversation(draw, kind, short)
            tools = TOOLS if kind != "plain" and draw.random() < 0.5 else None
            encoded = tokenizer.apply_chat_template(expand(messages, texts), tools=tools, chat_template=template, tokenize=True,
                                                    return_dict=True, return_assistant_tokens_mask=True)
            found.append({"messages": messages, "n_ids": len(encoded["input_ids"]), "hash": fnv(encoded["input_ids"]),
                          "answers": ranges(encoded["assistant_masks"])})
            if tools:
                found[-1]["tools"] = True
        out.append({"name": name, "tokenizer": tokenizer_name, "added_tokens": added, "inferred": inferred,
                    "template": template, "conversations": found})
    return out


def main():
    out = {"transformers": transformers.__version__, "tools": TOOLS, "cases": cases()}
    lines = json.dumps(out, separators=(",", ":"), ensure_ascii=False).replace('{"messages"', '\n{"messages"')
    (HERE / "chat_marked.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
