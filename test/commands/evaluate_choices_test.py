# timeout: 120
"""`lockstep evaluate --choices`: the same log probabilities and accuracies as lm-evaluation-harness
(test/golden/make_choices_golden.py) in the forms of HellaSwag, ARC and PIQA and in our own, on any number of ranks;
invalid input.

LOCKSTEP is the program in its build folder.
"""

import gzip
import json
import os
import pathlib
import re
import subprocess
import tempfile

LOCKSTEP = os.environ.get("LOCKSTEP", "build/lockstep")
MPIRUN = os.environ.get("MPIRUN", "mpirun")
GOLDEN = pathlib.Path("test/golden")
CHOICES = GOLDEN / "choices"
EXPECTED = json.loads((CHOICES / "expected.json").read_text())


def program(*arguments, ranks=1):
    command = [LOCKSTEP, "evaluate", *map(str, arguments), "cpu.threads=1"]
    if ranks > 1:
        command = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
    return subprocess.run(command, capture_output=True, text=True)


def evaluate(*arguments, ranks=1):
    done = program(*arguments, ranks=ranks)
    assert done.returncode == 0, (arguments, done.returncode, done.stderr)
    return done.stdout


def model_in(work):
    model = work / "story"
    model.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (model / name).write_bytes((GOLDEN / "llama-story" / name).read_bytes())
    (model / "tokenizer.json").write_bytes(
        gzip.decompress((GOLDEN / "tokenizers" / "llama-story.json.gz").read_bytes()))
    (model / "tokenizer_config.json").write_text(json.dumps(EXPECTED["tokenizer_config"]))
    return model


def as_the_harness(model, work):
    answers = work / "answers.jsonl"
    for name in ("hellaswag", "arc", "piqa", "plain"):
        expected = EXPECTED[name]
        result = json.loads(evaluate(model, "--choices", CHOICES / f"{name}.jsonl", f"--answers={answers}", "--json"))
        lines = [json.loads(line) for line in answers.read_text().splitlines()]
        assert len(lines) == result["questions"] == len(expected["log_likelihoods"])
        for line, values in zip(lines, expected["log_likelihoods"]):
            for a, b in zip(line["log_likelihoods"], values, strict=True):
                assert abs(a - b) < 1e-4, (name, line, values)
        for key, theirs in (("acc", "acc"), ("acc_stderr", "acc_stderr"), ("acc_norm", "acc_bytes"),
                            ("acc_norm_characters", "acc_norm")):
            assert abs(result[key] - expected[theirs]) < 1e-12, (name, key, result[key], expected[theirs])
        assert abs(sum(line["acc"] for line in lines) / len(lines) - result["acc"]) < 1e-12
        assert abs(sum(line["acc_norm"] for line in lines) / len(lines) - result["acc_norm"]) < 1e-12


def on_any_number_of_ranks(model, work):
    files = []
    for ranks in (1, 2, 3):
        files.append(work / f"ranks-{ranks}.jsonl")
        text = evaluate(model, "precision=bf16", "--choices", CHOICES / "plain.jsonl", "--answers", files[-1], ranks=ranks)
        assert re.search(r"acc 0\.\d{4} ± 0\.\d{4}, acc_norm .* of 6 questions", text), text
    assert len({file.read_bytes() for file in files}) == 1
    one = json.loads(evaluate(model, "--choices", CHOICES / "plain.jsonl", "evaluation.max_samples=1", "--json"))
    assert one["questions"] == 1 and one["acc_stderr"] is None, one


def reads_other_forms(model, work):
    """ARC in the format of the original files, and HellaSwag with its context in one field."""
    rows = [json.loads(line) for line in (CHOICES / "arc.jsonl").read_text().splitlines()]
    nested = work / "nested.jsonl"
    nested.write_text("\n".join(json.dumps(
        {"question": {"stem": row["question"],
                      "choices": [{"text": t, "label": l} for t, l in zip(row["choices"]["text"], row["choices"]["label"])]},
         "answerKey": row["answerKey"]}) for row in rows))
    keys = ("acc", "acc_norm", "questions")
    found = json.loads(evaluate(model, "--choices", nested, "--json"))
    expected = json.loads(evaluate(model, "--choices", CHOICES / "arc.jsonl", "--json"))
    assert [found[key] for key in keys] == [expected[key] for key in keys]
    one = work / "one.jsonl"
    one.write_text('{"activity_label": "A", "ctx": "The dog", "endings": ["ran.", "[x] sat."], "label": 1}\n')
    answers = work / "one-answers.jsonl"
    evaluate(model, "--choices", one, "--answers", answers)
    line = json.loads(answers.read_text())
    assert line["context"] == "A: The dog" and line["choices"] == ["ran.", " sat."] and line["answer"] == 1, line


def refuses(model, work):
    def file(text):
        path = work / f"bad-{len(list(work.iterdir()))}.jsonl"
        path.write_text(text)
        return path

    plain = CHOICES / "plain.jsonl"
    question = '{"context": "a", "choices": ["b", "c"], "answer": %s}'
    cases = [
        ([model, "--choices", work / "nothing"], 1, "nothing"),
        ([model, "--choices", work], 1, "folder"),
        ([model, "--choices", file("\n\n")], 1, "has no questions"),
        ([model, "--choices", file(question % 0 + "\n\n{")], 1, "line 3 of"),
        ([model, "--choices", file("[]")], 1, 'line 1 of .*expected {"context": TEXT'),
        ([model, "--choices", file("{}")], 1, 'there is no "context"'),
        ([model, "--choices", file(question % 2)], 1, "answer: expected the number of the right choice, 0 to 1, found 2"),
        ([model, "--choices", file(question % '"x"')], 1, 'found "x"'),
        ([model, "--choices", file('{"context": 1, "choices": ["b"], "answer": 0}')], 1, "context: expected a text, found 1"),
        ([model, "--choices", file('{"context": "", "choices": [], "answer": 0}')], 1, "choices: expected a list of texts"),
        ([model, "--choices", file('{"question": "q", "choices": {"text": ["a"], "label": ["A"]}, "answerKey": "B"}')], 1,
         'answerKey is "B"'),
        ([model, "--choices", file('{"context": "She went to the park and", "choices": ["park"], "answer": 0}')], 1,
         "choice 0: the choice adds no token"),
        ([model, "--choices", file(json.dumps({"context": "a", "choices": ["x " * 600], "answer": 0}))], 1,
         "the context of the model has 512"),
        ([model, "--answers", work / "a.jsonl"], 2, "set data.validation=FILE"),
        ([model, "--choices", plain, "--answers", plain], 2, "plain.jsonl"),
        ([model, "--choices", plain, "--confusion", work / "a.svg"], 2, "--confusion"),
        (["--choices", plain], 2, "expected a model"),
        ([GOLDEN / "generate" / "qwen2", "--choices", plain], 1, "has no tokenizer: name one with --tokenizer"),
    ]
    for arguments, status, pattern in cases:
        done = program(*arguments)
        assert done.returncode == status and done.stdout == "", (arguments, done.returncode, done.stderr)
        assert re.search(pattern, done.stderr), (arguments, pattern, done.stderr)


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        model = model_in(work)
        as_the_harness(model, work)
        on_any_number_of_ranks(model, work)
        reads_other_forms(model, work)
        refuses(model, work)


if __name__ == "__main__":
    main()
