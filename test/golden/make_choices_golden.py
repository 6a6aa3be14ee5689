#!/usr/bin/env python3
"""Makes choices/: what lm-evaluation-harness (the package lm_eval) computes for multiple-choice questions with the
model llama-story, for `lockstep evaluate --choices`.

    make_choices_golden.py

choices/NAME.jsonl has questions in the format of each data set. choices/expected.json has the log probabilities of the
choices of each question, and acc, acc_norm (by characters) and acc_bytes of each whole file. The tasks are those of
the harness, with these files in place of the data sets. The model's tokenizer_config.json is in expected.json, too.
"""
import gzip
import json
import pathlib
import shutil
import tempfile

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "choices"

HELLASWAG = [
    ("Playing", "A girl is seen playing with a red ball in the park.", "she", 2,
     ["eats the whole park for dinner.", "sleeps on the moon.", "throws the ball to her friend.", "is a car."]),
    ("Baking", "[header] How to bake a cake [title] Mix the flour and the sugar. [step] Use a big bowl.", "THEN", 0,
     ["put it in the oven [substeps] and wait.", "[title] Go to bed. [step] Sleep.", "paint it blue.", "sell the oven."]),
    ("Running", "  The boy ran  fast.", "", 1, ["He is a tree.", "He was happy and he laughed.", "Käse, Käse!", "[x]No."]),
    ("Reading", "A man opens a book [not closed and reads.", "éva", 3, ["he flies.", "He\nsleeps.", "it rains.", "he smiles."]),
]
ARC = [
    ("Which of these animals can fly?", ["dog", "bird", "cat", "fish"], ["A", "B", "C", "D"], "B"),
    ("What do plants need to grow?", ["stones", "sunlight and water", "a phone"], ["1", "2", "3"], "2"),
    ("The sun is", ["a star", "a café in Zürich", "東京"], ["A", "B", "C"], "A"),
    ("Where does Lily play?", ["She plays in the park with her friends every day", "no"], ["A", "B"], "B"),
]
PIQA = [
    ("How do I open a box?", "Lift the lid.", "Eat the lid and then sleep in the box for a year.", 0),
    ("Keep milk cold", "put it in the fridge", "put it in the sun", 0),
    ("Clean a cup", "break it", "wash it with water", 1),
]
LONG = "Once upon a time, there was a little dog. " * 80
PLAIN = [
    ("Tom and Lily", ["park", "table", "zoo.", "aeiou"], 0),
    ("Tom and Lily ", ["park", "table"], 0),
    ("The dog said:\n", ["Woof!", "I am a dog and I like to play.", "ß"], 1),
    ("", ["Once upon a time", "One day", "xyz"], 0),
    (LONG, ["The dog was happy.", "The cat was sad."], 1),
    ("It is", ["über", "uber", "😀😀", "ok"], 0),
]
TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|start_story|>",
                    "eos_token": "<|end_story|>"}
TASKS = {
    "hellaswag": "hellaswag/hellaswag.yaml",
    "arc": "arc/arc_easy.yaml",
    "piqa": "piqa/piqa.yaml",
    "plain": None,
}


def rows():
    return {
        "hellaswag": [{"ind": i, "activity_label": label, "ctx_a": a, "ctx_b": b, "ctx": f"{a} {b}", "endings": endings,
                       "label": str(answer)} for i, (label, a, b, answer, endings) in enumerate(HELLASWAG)],
        "arc": [{"id": f"q{i}", "question": q, "choices": {"text": t, "label": l}, "answerKey": k}
                for i, (q, t, l, k) in enumerate(ARC)],
        "piqa": [{"goal": g, "sol1": a, "sol2": b, "label": label} for g, a, b, label in PIQA],
        "plain": [{"context": c, "choices": choices, "answer": answer} for c, choices, answer in PLAIN],
    }


def task(name, folder):
    """The harness's own task, applied to our file."""
    source = pathlib.Path(lm_eval.__file__).parent / "tasks"
    lines = [f"task: lockstep_{name}"]
    if TASKS[name]:
        file = source / TASKS[name]
        for helper in file.parent.glob("*.py"):
            shutil.copy(helper, folder / helper.name)
        skipped = ("tag:", "  - multiple_choice", "  - ai2_arc", "task:", "dataset_", "training_", "validation_", "test_",
                   "  - metric", "    aggregation", "    higher", "metric_list", "should_", "doc_to_decon")
        lines += [line for line in file.read_text().splitlines() if not line.startswith(skipped)
                  and not (line.startswith("- ") and "_" in line)]
    else:
        lines += ["output_type: multiple_choice", "doc_to_text: context", "doc_to_choice: choices",
                  "doc_to_target: answer"]
    lines += ["dataset_path: json", f"dataset_kwargs: {{data_files: {{test: {OUT / name}.jsonl}}}}", "test_split: test",
              "metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]"]
    (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n")


def main():
    OUT.mkdir(exist_ok=True)
    for name, objects in rows().items():
        (OUT / f"{name}.jsonl").write_text("".join(json.dumps(o, ensure_ascii=False) + "\n" for o in objects))
    with tempfile.TemporaryDirectory() as work:
        model, tasks = pathlib.Path(work) / "model", pathlib.Path(work) / "tasks"
        tasks.mkdir()
        shutil.copytree(HERE / "llama-story", model)
        (model / "tokenizer.json").write_bytes(gzip.decompress((HERE / "tokenizers" / "llama-story.json.gz").read_bytes()))
        (model / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
        for name in TASKS:
            task(name, tasks)
        hf = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=4)
        results = lm_eval.simple_evaluate(model=hf, tasks=[f"lockstep_{name}" for name in TASKS], log_samples=True,
                                          task_manager=TaskManager(include_path=str(tasks)), bootstrap_iters=10)
    expected = {"lm_eval": lm_eval.__version__, "tokenizer_config": TOKENIZER_CONFIG}
    for name in TASKS:
        samples = sorted(results["samples"][f"lockstep_{name}"], key=lambda s: s["doc_id"])
        scores = results["results"][f"lockstep_{name}"]
        expected[name] = {
            **{metric: scores[f"{metric},none"] for metric in ("acc", "acc_norm", "acc_bytes")},
            "acc_stderr": scores["acc_stderr,none"],
            "log_likelihoods": [[round(float(r[0][0]), 5) for r in s["resps"]] for s in samples],
        }
    (OUT / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
