# long: yes
# timeout: 300
"""transformers, with PEFT for adapters, generates from the directories that training on conversations writes, as the
model card says, and stops after the answer.

Exit status 77 (skipped) without transformers and torch; adapters are skipped without peft. LOCKSTEP is the program.
"""

import os
import pathlib
import re
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
sys.path.insert(0, "test/support")
import chat_model
from chat_model import ANSWER, END


def reply(model, directory, **options):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer.apply_chat_template([{"role": "user", "content": "Who?"}], add_generation_prompt=True,
                                           return_tensors="pt", return_dict=True)
    assert tokenizer.decode(inputs["input_ids"][0]) == chat_model.PROMPT
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=40, do_sample=False, **options)[0]
    return ids[inputs["input_ids"].shape[1]:].tolist(), tokenizer


def check_reply(model, directory, **options):
    ids, tokenizer = reply(model, directory, **options)
    assert ids[-1] == END and len(ids) < 40, (directory, ids)
    assert tokenizer.decode(ids, skip_special_tokens=True) == ANSWER, (directory, tokenizer.decode(ids))
    assert tokenizer.eos_token == "<|im_end|>", tokenizer
    print(f"{directory.parent.name}/{directory.name}: stops after {len(ids)} tokens")


def example_of(card):
    """The code of a model card, for its directory."""
    code = "\n".join(line[4:] for line in re.search(r"\n((?:    .*\n)+)", card.read_text()).group(1).splitlines())
    return code.replace("DIRECTORY", str(card.parent)).replace("Hello", "Who?").replace("print(", "found = (")


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        chat_model.make_models(work)
        directories = [work / "whole/model", work / "merged"]
        for directory in directories:
            check_reply(AutoModelForCausalLM.from_pretrained(directory).eval(), directory)
        try:
            import peft  # noqa: F401
            directories.append(work / "lora/model")
        except ImportError as missing:
            print(f"adapters are skipped: {missing}")
        for directory in directories:
            names = {}
            exec(example_of(directory / "README.md"), names)
            assert names["found"].endswith(f"assistant\n{ANSWER}<|im_end|>"), (directory, names["found"])


main()
