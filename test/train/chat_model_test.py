# timeout: 120
"""A model that was trained on conversations ends its answers: the token that ends them is an end token in all files that
are published, of a whole model, of adapters and of a merged model, and `generate` stops there. If no loss counts that
token, import and training say so.

LOCKSTEP is the program.
"""

import json
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, "test/support")
import chat_model
from chat_model import ANSWER, END, PROMPT, read, run, write


def stops(model, *options):
    text = run("generate", model, "--prompt", PROMPT, "--max-new-tokens", 24, "--json", "cpu.threads=1", *options)
    reply = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    return reply["text"] == ANSWER and len(reply["tokens"]) < 24


def check_files(model, is_whole=True):
    """What transformers reads: both end tokens, that of answers first, and the template."""
    if is_whole:
        assert read(model / "config.json")["eos_token_id"] == [END, 0], model
    generation = read(model / "generation_config.json")
    assert generation["eos_token_id"] == [END, 0] and generation["pad_token_id"] == 0, (model, generation)
    tokenizer = read(model / "tokenizer_config.json")
    assert tokenizer["eos_token"] == "<|im_end|>" and tokenizer["pad_token"] == "<|endoftext|>", (model, tokenizer)
    assert read(model / "special_tokens_map.json")["eos_token"] == "<|im_end|>", model
    assert "<|im_end|>" in (model / "chat_template.jinja").read_text()
    card = (model / "README.md").read_text()
    assert "| end of an answer | <\\|im_end\\|>, token 1025" in card.replace("\\<", "<").replace("\\>", ">"), card
    assert is_whole == ("GenerationConfig" not in card), card


def publishes(work, base):
    whole, lora = work / "whole", work / "lora"
    check_files(whole / "model")
    check_files(lora / "model", is_whole=False)
    check_files(work / "merged")
    for model in (whole, whole / "model", whole / "checkpoints/latest", lora, work / "merged"):
        assert stops(model), model
    assert not stops(whole, "--ignore-end")
    # From the files of the base, from a PEFT directory, and from a run that has not written its model.
    run("checkpoint", "export", whole / "checkpoints/latest", work / "exported", "--files", base)
    check_files(work / "exported")
    run("checkpoint", "merge", base, lora / "model", work / "merged-peft")
    check_files(work / "merged-peft")
    for name in ("whole", "lora"):
        shutil.move(work / name / "model", work / f"{name}-model")
    run("checkpoint", "export", whole / "checkpoints/latest", work / "early")
    check_files(work / "early")
    run("checkpoint", "export", lora / "checkpoints/latest", work / "early-lora")
    check_files(work / "early-lora", is_whole=False)
    run("checkpoint", "merge", base, lora, work / "early-merged")
    check_files(work / "early-merged")
    assert stops(whole)
    # A published model is trained further without change.
    chat_model.train(work, work / "early", "further", "train.max_steps=1")
    check_files(work / "further/model")


def keeps_the_end_of_texts(work, base):
    """A template that uses eos_token depends on it, so that it must not change."""
    (work / "own.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content | tojson }}<|im_end|>\n{% endfor %}{{ eos_token }}"
        "{% if add_generation_prompt %}assistant: {% endif %}")
    chat_model.conversations(work, base, "--template", work / "own.jinja")
    chat_model.train(work, base, "own", "train.max_steps=1")
    model = work / "own/model"
    assert read(model / "generation_config.json")["eos_token_id"] == [END, 0]
    assert read(model / "tokenizer_config.json")["eos_token"] == "<|endoftext|>"
    # Data without answers change nothing.
    chat_model.run("train", *chat_model.KEYS, f"model.from={base}", f"data.train={work}/text.h5",
                   f"run.directory={work}", "run.name=plain", "train.max_steps=1", "data.pack=true")
    for name in ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert read(work / "plain/model" / name) == read(base / name), name
    assert read(work / "plain/model/config.json")["eos_token_id"] == 0


def warns_without_end(work, base):
    warnings = ("no answer includes its end token <|im_end|>", "includes its end token <|im_end|> within")
    assert warnings[0] not in chat_model.conversations(work, base)
    assert warnings[1] not in chat_model.train(work, base, "ends", "train.max_steps=1")
    text = run("data", "show", work / "chat.h5", "--json")
    sample = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    cut = sample["answers"][0][1] - 1  # leaves out the end token only
    assert warnings[1] in chat_model.train(work, base, "short", "train.max_steps=1", f"data.sequence_length={cut}")
    assert warnings[0] in chat_model.conversations(work, base, "--template", "chatml", "--max-tokens", cut)
    assert warnings[1] in chat_model.train(work, base, "cut", "train.max_steps=1")
    (work / "endless.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                                        "{% if add_generation_prompt %}assistant: {% endif %}")
    assert "without a token of its own" in chat_model.conversations(work, base, "--template", work / "endless.jinja")
    text = chat_model.train(work, base, "endless", "train.max_steps=1")
    assert "no token of its own after an answer" in text, text
    assert read(work / "endless/model/generation_config.json")["eos_token_id"] == 0


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        base = chat_model.make_models(work)
        publishes(work, base)
        keeps_the_end_of_texts(work, base)
        warns_without_end(work, base)


main()
