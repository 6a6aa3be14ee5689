#!/usr/bin/env python3
"""Makes generate/: what Hugging Face's transformers generates, greedily and with beams, for `lockstep generate`.

    make_generate_golden.py LOCKSTEP      (the program, which encodes prompts and converts stories260K)

generate/ has a model with random weights of each architecture that decodes differently; generate/expected.json has, for each case,
the arguments of `lockstep generate`, the ids of the reply and, for greedy decoding, their log probabilities. Its
conversations are those of llama-story, whose tokenizer strips the leading space of a text.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import (AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM)

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "generate"
TOK512 = HERE / "tokenizers" / "tok512.bin"
PROMPTS = {
    "llama-story": ["Once upon a time, there was a little girl named Lily.", "The dog", "One day, Tom and his friend"],
    "stories260K": ["Once upon a time", "Lily likes cats and dogs. She asked her mom", "The"],
    "qwen2": ["Once upon a time", "one two three four five six seven", "a"],
    "llama": ["Once upon a time", "one two three four five six seven", "a"],
    "mistral": ["Once upon a time, there was a little girl named Lily.", "a"],
    "smollm3": ["Once upon a time", "one two three four five six seven"],
    "gemma3": ["Once upon a time, there was a little girl named Lily.", "a"],
}


def random_models():
    torch.manual_seed(5)
    sizes = dict(vocab_size=512, hidden_size=48, intermediate_size=112, num_hidden_layers=2, max_position_embeddings=128,
                 bos_token_id=1, eos_token_id=2)
    qwen2 = Qwen2ForCausalLM(Qwen2Config(num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True,
                                         use_sliding_window=False, **sizes))
    llama = LlamaForCausalLM(LlamaConfig(num_attention_heads=3, num_key_value_heads=3, tie_word_embeddings=False,
                                         rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, **sizes))
    def randomize(*models):
        for model in models:
            for name, p in model.named_parameters():  # larger than at the start of training, so that tokens differ
                torch.nn.init.normal_(p, 1.0 if "norm" in name and model.config.model_type != "gemma3_text" else 0.0, 0.2)
            model.bfloat16()  # as they are stored; they are used in fp32

    randomize(qwen2, llama)
    tiny = sizes | dict(hidden_size=24, intermediate_size=40, num_attention_heads=3, num_key_value_heads=1, head_dim=8)
    mistral = MistralForCausalLM(MistralConfig(sliding_window=9, **tiny))
    smollm3 = SmolLM3ForCausalLM(SmolLM3Config(no_rope_layers=[1, 0], pad_token_id=None, **tiny))
    randomize(mistral, smollm3)
    gemma3 = Gemma3ForCausalLM(Gemma3TextConfig(sliding_window=9, query_pre_attn_scalar=12, pad_token_id=None,
                                                layer_types=["sliding_attention", "full_attention"], **tiny))
    randomize(gemma3)
    return {"qwen2": qwen2, "llama": llama, "mistral": mistral, "smollm3": smollm3, "gemma3": gemma3}


def encode(lockstep, tokenizer, text):
    out = subprocess.run([lockstep, "data", "encode", tokenizer, "-"], input=text + "\n", text=True, check=True,
                         capture_output=True).stdout
    return [int(word) for word in out.split()]


OPTIONS = [
    ({}, {"max_new_tokens": 40}),
    ({"repetition-penalty": 1.3}, {"max_new_tokens": 40, "repetition_penalty": 1.3}),
    ({"beams": 2}, {"max_new_tokens": 24, "num_beams": 2}),
    ({"beams": 4, "n": 3}, {"max_new_tokens": 30, "num_beams": 4, "num_return_sequences": 3}),
    ({"beams": 3, "length-penalty": 2.5, "n": 2},
     {"max_new_tokens": 30, "num_beams": 3, "length_penalty": 2.5, "num_return_sequences": 2}),
    ({"beams": 3, "length-penalty": -1, "repetition-penalty": 1.2},
     {"max_new_tokens": 30, "num_beams": 3, "length_penalty": -1.0, "repetition_penalty": 1.2}),
]


def expected(model, ids, options):
    end = model.config.eos_token_id
    end = end if isinstance(end, list) else [end]
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), do_sample=False, eos_token_id=end, pad_token_id=0,
                             return_dict_in_generate=True, output_logits=True, **options)
    replies = []
    for sequence in out.sequences.tolist():
        tokens = sequence[len(ids):]
        for i, token in enumerate(tokens):
            if token in end:
                tokens = tokens[: i + 1]
                break
        replies.append(tokens)
    logprobs = None
    if "num_beams" not in options:
        logprobs = [round(torch.log_softmax(logits[0].double(), -1)[token].item(), 6)
                    for logits, token in zip(out.logits, replies[0])]
    return replies, logprobs


CHAT_TEMPLATE = ("<|start_story|>{% for m in messages %}{% if m.role == 'user' %}User: {{ m.content }}\nAnswer:{% else %}"
                 " {{ m.content }}<|end_story|>\n{% endif %}{% endfor %}")


def conversations(model, tokenizer_file):
    content = json.loads(pathlib.Path(tokenizer_file).read_text())
    for token in content["added_tokens"]:
        token["normalized"] = False  # as in tokenizers of chat models
    pathlib.Path(tokenizer_file).write_text(json.dumps(content))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)
    out = []
    for messages, new_tokens, ignores_end in ((["Once upon a time", "And then?", "The end"], 40, False),
                                              (["The end", "Once upon a time"], 125, True)):
        history, replies = [], []
        for message in messages:
            history.append({"role": "user", "content": message})
            ids = tokenizer.apply_chat_template(history, chat_template=CHAT_TEMPLATE, return_dict=False)
            reply = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=new_tokens, pad_token_id=0,
                                   eos_token_id=None if ignores_end else 2)[0][len(ids):]
            replies.append(tokenizer.decode(reply, skip_special_tokens=True, clean_up_tokenization_spaces=False))
            history.append({"role": "assistant", "content": replies[-1]})
        out.append({"template": CHAT_TEMPLATE, "messages": messages, "max_new_tokens": new_tokens,
                    "ignores_end": ignores_end, "replies": replies})
    return out


def main():
    lockstep = sys.argv[1]
    OUT.mkdir(exist_ok=True)
    models = random_models()
    for name, model in models.items():
        model.eval()
        model.generation_config.eos_token_id = 2
        model.save_pretrained(OUT / name)
        (OUT / name / "generation_config.json").unlink(missing_ok=True)
        models[name] = AutoModelForCausalLM.from_pretrained(OUT / name, dtype=torch.float32).eval()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = f"{folder}/stories.h5"
        subprocess.run([lockstep, "checkpoint", "import", "--format", "llama2c", HERE / "stories260K" / "stories260K.bin", checkpoint],
                       check=True)
        subprocess.run([lockstep, "checkpoint", "export", checkpoint, f"{folder}/stories"], check=True)
        models["stories260K"] = AutoModelForCausalLM.from_pretrained(f"{folder}/stories", dtype=torch.float32).eval()
        models["llama-story"] = AutoModelForCausalLM.from_pretrained(HERE / "llama-story", dtype=torch.float32).eval()
        tokenizer = {name: TOK512 for name in models}
        tokenizer["llama-story"] = f"{folder}/story-tokenizer.json"
        import gzip
        golden = json.loads(gzip.decompress((HERE / "tokenizers" / "llama-story.json.gz").read_bytes()))
        pathlib.Path(tokenizer["llama-story"]).write_text(json.dumps(golden.get("tokenizer", golden)))
        cases = []
        for name, prompts in PROMPTS.items():
            for prompt in prompts:
                ids = encode(lockstep, tokenizer[name], prompt)
                for flags, options in OPTIONS:
                    replies, logprobs = expected(models[name], ids, options)
                    case = {"model": name, "prompt": prompt, "options": {"max-new-tokens": options["max_new_tokens"], **flags},
                            "tokens": replies}
                    if logprobs:
                        case["logprobs"] = logprobs
                    cases.append(case)
        chats = json.dumps(conversations(models["llama-story"], tokenizer["llama-story"]), indent=1)
    lines = ",\n".join(json.dumps(case) for case in cases)
    (OUT / "expected.json").write_text(f'{{"transformers": "{transformers.__version__}", "cases": [\n{lines}\n],\n'
                                       f'"conversations": {chats}}}\n')


if __name__ == "__main__":
    main()
