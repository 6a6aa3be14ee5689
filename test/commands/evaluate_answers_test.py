# timeout: 120
"""`lockstep evaluate` on conversations: a model that has memorised its answers gives them, greedily and with beams, on
any number of ranks; the scores in the file are the reported ones, and ROUGE is computed from the words; --loss-only.

LOCKSTEP is the program in its build folder.
"""

import json
import os
import pathlib
import re
import subprocess
import tempfile

LOCKSTEP = os.environ.get("LOCKSTEP", "build/lockstep")
MPIRUN = os.environ.get("MPIRUN", "mpirun")
if os.geteuid() == 0:
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

# The template of the set ends turns with the tokenizer's only special token.
TEMPLATE = "{% for m in messages %}{{ m['role'] }}\n{{ m['content'] }}<|endoftext|>{% endfor %}" \
           "{% if add_generation_prompt %}assistant\n{% endif %}"
CONVERSATIONS = [
    [("user", "Who?"), ("assistant", "The king.")],
    [("user", "How many?"), ("assistant", "Two and two.\n#### 4")],
    [("user", "Why?"), ("assistant", "Because."), ("user", "Where?"), ("assistant", "In Rome,\nmy lord.")],
    [("system", "Be brief."), ("user", "When?"), ("assistant", "Now.")],
    [("user", "How much?"), ("assistant", "It is #### 1,200")],
]
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
          "tie_word_embeddings": True, "rope_theta": 10000.0, "eos_token_id": 1}  # not the one that ends the answers


def program(*arguments, ranks=1):
    command = [LOCKSTEP, *map(str, arguments)]
    if ranks > 1:
        command = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
    return subprocess.run(command, capture_output=True, text=True)


def run(*arguments, ranks=1):
    done = program(*arguments, ranks=ranks)
    assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def prepare(work):
    (work / "template.jinja").write_text(TEMPLATE)
    (work / "config.json").write_text(json.dumps(CONFIG))
    (work / "chat.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": r, "content": c} for r, c in messages]}) + "\n" for messages in CONVERSATIONS))
    run("data", "import", "chat", work / "chat.jsonl", work / "chat.h5", "--tokenizer", "data/samples/tokenizer.json",
        "--template", work / "template.jinja")
    run("train", "model.family=llama", f"model.config={work}/config.json", f"data.train={work}/chat.h5",
        f"data.validation={work}/chat.h5", "data.sequence_length=64", "data.pack=false", "train.global_batch=5",
        "train.epochs=120", "optimizer.kind=adamw", "optimizer.learning_rate=1e-2", "schedule.kind=constant",
        "evaluation.every_epochs=60", "checkpoint.every_epochs=0", "log.progress=false", "log.tensorboard=false",
        f"run.directory={work}", "run.name=run", "cpu.threads=1", 'evaluation.generate=["Who?", "When?"]',
        "evaluation.generate_tokens=16")
    return work / "run"


def knows_its_answers(model, work):
    expected = [messages[-1][1] for messages in CONVERSATIONS]
    files = []
    for ranks, options in ((1, []), (2, []), (3, []), (1, ["--batch", 1]), (1, ["--beams", 3])):
        files.append(work / f"answers-{len(files)}.jsonl")
        done = run("evaluate", model, "--answers", files[-1], "--max-new-tokens", 24, *options, "--json",
                   "cpu.threads=1", ranks=ranks)
        result = json.loads(done.stdout)
        answers = result["answers"]
        assert result["loss"] < 0.3 and result["tokens"] > 20, result
        assert answers["conversations"] == 5 and answers["left_out"] == 0, answers
        for key in ("rouge1", "rougeL", "exact_match", "final_number_match", "final_number_match_flexible"):
            assert answers[key] == 1, (key, answers)
        assert answers["rouge2"] == 4 / 5, answers  # an answer of one word has no bigram
        assert answers["final_numbers"] == 2, answers
        lines = lines_of(files[-1])
        assert [line["answer"] for line in lines] == [line["reference"] for line in lines] == expected, lines
        assert lines[2]["prompt"] == "user\nWhy?<|endoftext|>assistant\nBecause.<|endoftext|>" \
            "user\nWhere?<|endoftext|>assistant\n", lines[2]
    # The keys tell which settings the answers depend on: the beams, but not the ranks or the batch.
    keys = [{line.pop("key") for line in lines} for lines in map(lines_of, files)]
    assert keys[0] == keys[1] == keys[2] == keys[3] != keys[4] and len(keys[0]) == 1, keys
    assert len({re.sub(r',"key":"\w+"', "", file.read_text()) for file in files}) == 1
    samples = lines_of(model / "metrics.jsonl")
    samples = [event["samples"] for event in samples if event["event"] == "samples"][-1]
    assert samples == [{"prompt": "Who?", "text": "The king."}, {"prompt": "When?", "text": samples[1]["text"]}], samples


def scores_what_is_wrong(model, work):
    """The answers to other questions are wrong, and the reported means are those of the lines."""
    other = [[("user", "Who?"), ("assistant", "Kings of the sea.")], [("user", "How many?"), ("assistant", "#### 5")],
             [("user", "word " * 80), ("assistant", "left out")]]
    (work / "other.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": r, "content": c} for r, c in messages]}) + "\n" for messages in other))
    run("data", "import", "chat", work / "other.jsonl", work / "other.h5", "--tokenizer", "data/samples/tokenizer.json",
        "--template", work / "template.jinja")
    found = {}
    for stem in ([], ["--stem"]):
        done = run("evaluate", model, f"data.validation={work}/other.h5", "--answers", work / "wrong.jsonl", "--json",
                   "cpu.threads=1", *stem)
        answers, lines = json.loads(done.stdout)["answers"], lines_of(work / "wrong.jsonl")
        for key in ("rouge1", "rouge2", "rougeL", "exact_match"):
            assert abs(answers[key] - sum(line[key] for line in lines) / 2) < 1e-12, (key, answers, lines)
        assert answers["conversations"] == 2 and answers["left_out"] == 1, answers
        assert "1 conversation is left out" in done.stderr, done.stderr
        assert answers["exact_match"] == 0 and answers["final_number_match"] == 0, answers
        assert answers["stemmed"] == bool(stem)
        found[bool(stem)] = lines[0]
    # "the king" against "kings of the sea": one word in common of 2 and 4, and two stems
    assert abs(found[False]["rouge1"] - 1 / 3) < 1e-9 and abs(found[True]["rouge1"] - 2 / 3) < 1e-9, found
    assert abs(found[True]["rougeL"] - 1 / 3) < 1e-9, found


def a_reference_ends_before_its_end_token(model, work):
    """Also if that token is an ordinary one, here the model's eos_token_id "!", which is not left out of the text."""
    (work / "bare.jinja").write_text(TEMPLATE.replace("<|endoftext|>", ""))
    (work / "bare.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": answer}]}) + "\n"
        for answer in ("The king !", "The ! king")))
    run("data", "import", "chat", work / "bare.jsonl", work / "bare.h5", "--tokenizer", "data/samples/tokenizer.json",
        "--template", work / "bare.jinja")
    run("evaluate", model, f"data.validation={work}/bare.h5", "--answers", work / "bare-answers.jsonl", "cpu.threads=1")
    references = [line["reference"].strip() for line in lines_of(work / "bare-answers.jsonl")]
    assert references == ["The king", "The ! king"], references


def leaves_answers_out(model, work):
    loss = json.loads(run("evaluate", model, "--loss-only", "--json", "cpu.threads=1").stdout)
    both = json.loads(run("evaluate", model, "--json", "--max-new-tokens", 2, "cpu.threads=1").stdout)
    assert "answers" not in loss and both["answers"]["exact_match"] < 1
    assert [loss[key] for key in ("loss", "perplexity", "tokens")] == [both[key] for key in ("loss", "perplexity", "tokens")]
    one = json.loads(run("evaluate", model, "--json", "evaluation.max_samples=1", "cpu.threads=1").stdout)
    assert one["answers"]["conversations"] == 1, one
    text = run("evaluate", model, "data.validation=data/samples/shakespeare_test.h5", "evaluation.max_samples=4", "cpu.threads=1")
    assert "has no answers, so" in text.stdout + text.stderr and "is evaluated for its loss only" in text.stdout + text.stderr
    directory = [model / "model", f"data.validation={work}/chat.h5", "data.pack=false", "--loss-only", "--json"]
    named = json.loads(run("evaluate", *directory, "model.family=llama", "cpu.threads=1").stdout)
    assert named["tokens"] == loss["tokens"] and abs(named["loss"] - loss["loss"]) < 1e-3, (named, loss)
    cases = [
        (["model.family=resnet"], "contains a llama, but model.family is resnet"),
        (["--loss-only", "--beams", 2], "--loss-only generates no answers, and --beams"),
        (["--answers", work / "x.jsonl", "data.validation=data/samples/shakespeare_test.h5"], "has no answers: leave it out"),
        (["--beams", 0], "beams"),
        (["--beams", 64, "--batch", 1024], "--batch"),
        (["--answers", work / "chat.h5"], "chat.h5"),
        (["--loss-only", "--choices", "test/golden/choices/plain.jsonl"], "leave out --loss-only"),
        (["--stem", "--choices", "test/golden/choices/plain.jsonl"], "leave out --stem"),
        (["--tokenizer", "data/samples/tokenizer.json"], "--choices FILE"),
    ]
    for arguments, pattern in cases:
        done = program("evaluate", model, *arguments, "evaluation.max_samples=4", "cpu.threads=1")
        expected = 0 if arguments[:1] == ["--beams"] and "--batch" in arguments else 1 if "resnet" in str(arguments[0]) else 2
        assert done.returncode == expected, (arguments, done.returncode, done.stderr)
        assert expected == 0 or re.search(pattern, done.stderr), (arguments, pattern, done.stderr)


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        model = prepare(work)
        knows_its_answers(model, work)
        scores_what_is_wrong(model, work)
        a_reference_ends_before_its_end_token(model, work)
        leaves_answers_out(model, work)


if __name__ == "__main__":
    main()
