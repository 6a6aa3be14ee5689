# timeout: 120
"""Evaluations that answer conversations while a model is trained (evaluation.answers): the scores are those of `lockstep
evaluate` for the same checkpoint, on any number of ranks, of weights, averages and adapters; they choose the best
checkpoint; answers that exist are read again; and a signal that interrupts them loses nothing.

LOCKSTEP is the program.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

LOCKSTEP = os.environ.get("LOCKSTEP", "build/lockstep")
MPIRUN = os.environ.get("MPIRUN", "mpirun")
if os.geteuid() == 0:
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

TEMPLATE = "{% for m in messages %}{{ m['role'] }}\n{{ m['content'] }}<|endoftext|>{% endfor %}" \
           "{% if add_generation_prompt %}assistant\n{% endif %}"
CONVERSATIONS = [("Who?", "The king."), ("How many?", "Two and two.\n#### 4"), ("Where?", "In Rome,\nmy lord."),
                 ("When?", "Now."), ("How much?", "It is #### 1,200"), ("Why?", "Because of the sea.")]
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 32, "intermediate_size": 48,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
          "tie_word_embeddings": True, "rope_theta": 10000.0, "eos_token_id": 0}
SCORES = ("rouge_l", "exact_match")


def program(*arguments, ranks=1):
    command = [LOCKSTEP, *map(str, arguments)]
    if ranks > 1:
        command = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
    return command


def run(*arguments, ranks=1, status=0):
    done = subprocess.run(program(*arguments, ranks=ranks), capture_output=True, text=True)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def keys(work, name, *more):
    return ["train", "model.family=llama", f"model.config={work}/config.json", f"data.train={work}/chat.h5",
            f"data.validation={work}/chat.h5", "data.sequence_length=64", "data.pack=false", "train.global_batch=6",
            "train.micro_batches=2", "reproducible=true", "precision=fp32",
            "train.epochs=60", "optimizer.kind=adamw",
            "optimizer.learning_rate=1e-2", "schedule.kind=constant", "evaluation.every_epochs=20",
            "evaluation.answers=5", "evaluation.answer_tokens=16", "checkpoint.every_epochs=0", "checkpoint.keep=9",
            "checkpoint.best=rouge_l", "log.progress=false", "log.tensorboard=false", f"run.directory={work}",
            f"run.name={name}", "cpu.threads=1", *more]


def evaluations(path):
    events = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return {event["step"]: event for event in events if event["event"] == "evaluation"}


def scores(event, prefix=""):
    return [event[prefix + key] for key in SCORES]


def evaluated(*arguments, ranks=1):
    result = json.loads(run("evaluate", *arguments, "--json", "cpu.threads=1", ranks=ranks).stdout)
    return result["answers"], [result["answers"][key] for key in ("rougeL", "exact_match")]


def elsewhere(work, checkpoint, path):
    """A copy, for which there are no answers to read."""
    copy = work / "copies" / f"{path.name}-{checkpoint.name}"
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(checkpoint.resolve(), copy)
    return ["--checkpoint", copy, path / "config.yaml"]


def measures_what_evaluate_does(work):
    path = work / "one"
    run(*keys(work, "one", "log.tensorboard=true", "model.license=mit", "checkpoint.every_epochs=20"))
    found = evaluations(path)
    assert list(found) == [20, 40, 60], found
    assert scores(found[60])[0] > scores(found[20])[0], found
    for step in (20, 60):
        answers = work / f"answers-{step}.jsonl"
        checkpoint = path / f"checkpoints/step-{step:08}.h5"
        for ranks, is_read in ((1, False), (2, True)):  # the second time from the file of --answers
            result, measured = evaluated(*elsewhere(work, checkpoint, path), "--answers", answers, ranks=ranks)
            assert measured == scores(found[step]), (step, ranks, measured, found[step])
            assert is_read == ("read_from" in result), result
            assert answers.read_bytes() == (path / f"answers/step-{step:08}.jsonl").read_bytes()
    best = max(found, key=lambda step: (found[step]["rouge_l"], -step))
    assert (path / "checkpoints/best").resolve().stem == f"step-{best:08}", (best, found)
    summary = json.loads((path / "metrics.json").read_text())
    assert summary["final_rouge_l"] == found[60]["rouge_l"], summary
    assert summary["best_exact_match"] == max(event["exact_match"] for event in found.values()), summary
    events = b"".join(file.read_bytes() for file in (path / "tensorboard").iterdir())
    assert b"validation/rouge_l" in events and b"validation/exact_match" in events
    assert "rouge_l" in (path / "model/README.md").read_text()
    log = (path / "log.txt").read_text()
    assert "evaluation after step 60 | loss" in log and "| rouge_l " in log, log


def is_the_same_on_two_ranks(work):
    run(*keys(work, "two", "train.shard=optimizer"), ranks=2)
    one, two = evaluations(work / "one"), evaluations(work / "two")
    assert [scores(event) for event in one.values()] == [scores(event) for event in two.values()], (one, two)
    name = "answers/step-00000040.jsonl"
    assert (work / "one" / name).read_bytes() == (work / "two" / name).read_bytes()


def reads_known_answers(work):
    path = work / "one"
    latest = path / "checkpoints/latest"
    known = path / "answers/step-00000060.jsonl"
    result, measured = evaluated(latest)
    assert result["read_from"] == str(known) and measured == scores(evaluations(path)[60]), result
    assert result["new_tokens"] > 0 and result["max_new_tokens"] == 16, result
    for other in (["--max-new-tokens", 15], ["--beams", 2], ["evaluation.answers=4"], ["precision=bf16"]):
        assert "read_from" not in evaluated(latest, *other)[0], other
    assert "read_from" in evaluated(latest, "--stem")[0]  # the same answers, scored in another way
    content = known.read_bytes()
    for damaged in (content[:-20], content.splitlines(keepends=True)[0],
                    (path / "answers/step-00000020.jsonl").read_bytes(), b"[1]\n" * 5):
        known.write_bytes(damaged)
        result, again = evaluated(latest)
        assert "read_from" not in result and again == measured, (damaged, result)
    known.write_bytes(content)


def measures_averages_and_adapters(work):
    more = ["train.epochs=20", "evaluation.every_epochs=0"]
    run(*keys(work, "ema", *more, "ema.decay=0.5", "checkpoint.best=ema_rouge_l", "evaluation.beams=3"))
    event = evaluations(work / "ema")[20]
    latest = work / "ema/checkpoints/latest"
    for option, prefix in ((["--ema"], "ema_"), ([], "")):
        result, measured = evaluated(*option, *elsewhere(work, latest, work / "ema"))
        assert measured == scores(event, prefix) and result["beams"] == 3, (prefix, result, event)
        assert "read_from" in evaluated(*option, latest)[0], prefix
    # The base has the answers by heart. Adapters that have been trained to forget them answer differently.
    (work / "forget.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "No one."}]})
        + "\n" for question, _ in CONVERSATIONS))
    run("data", "import", "chat", work / "forget.jsonl", work / "forget.h5", "--tokenizer",
        "data/samples/tokenizer.json", "--template", work / "template.jinja")
    base = evaluated(work / "one/checkpoints/latest")[1]
    # Algorithms that the training has timed have no effect on the answers.
    for name, extra in (("lora", []), ("nf4", ["model.base_precision=nf4", "precision=bf16", "reproducible=false"])):
        run(*keys(work, name, *more, "model.config=", f"model.from={work}/one/model", "model.lora.rank=4",
                  f"data.train={work}/forget.h5", *extra))
        event, latest = evaluations(work / name)[20], work / name / "checkpoints/latest"
        result, measured = evaluated(*elsewhere(work, latest, work / name))
        assert measured == scores(event) != base, (name, measured, event, base)
        assert "read_from" not in result and "read_from" in evaluated(latest)[0], (name, result)


def stops_between_answers(work):
    """The evaluation is interrupted after its loss, repeated by the next start, and then has the same result."""
    more = ["train.epochs=2", "evaluation.every_epochs=1", "log.every_steps=1"]
    path = work / "stopped"
    long = ["evaluation.answer_tokens=448", "evaluation.beams=16"]  # takes about a second
    process = subprocess.Popen(program(*keys(work, "stopped", *more, *long), ranks=2), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    metrics = path / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and '"event":"step"' in metrics.read_text()):
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(timeout=60) == 75
    assert (path / "status").read_text().strip() == "stopped"
    assert not evaluations(path) and not (path / "answers").exists()
    assert "the evaluation after step 1 was interrupted" in (path / "log.txt").read_text()
    run(*keys(work, "stopped", *more))
    run(*keys(work, "whole", *more))
    assert [scores(event) for event in evaluations(path).values()] == \
        [scores(event) for event in evaluations(work / "whole").values()] != []


def refuses(work):
    plain = "data.validation=data/samples/shakespeare_test.h5"
    cases = [([plain], "has none: make a set of conversations"), (["data.validation=synthetic"], "has none"),
             (["data.validation=", "checkpoint.best=auto"], "evaluation.answers=5 answers the conversations of"),
             (["evaluation.answers=0"], 'expected one of auto | loss | perplexity, found "rouge_l"; rouge_l and exact'),
             (["checkpoint.best=ema_rouge_l"], "needs ema.decay"), (["evaluation.beams=65"], "evaluation.beams"),
             (["model.family=resnet", "model.config=", "data.pack=true"], "language models")]
    for more, message in cases:
        done = run(*keys(work, "refused", *more), status=2)
        assert message in done.stderr, (more, done.stderr)
        assert not (work / "refused").exists(), more
    memory = [json.loads(run("plan", *keys(work, "plan", *more)[1:], "--json").stdout)["memory_bytes"]["activations"]
              for more in (["data.sequence_length=16"], ["data.sequence_length=16", "evaluation.answers=0",
                                                        "checkpoint.best=auto"])]
    assert memory[0] > memory[1], memory  # the decoder is planned, with its cache


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "template.jinja").write_text(TEMPLATE)
        (work / "config.json").write_text(json.dumps(CONFIG))
        (work / "chat.jsonl").write_text("".join(
            json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})
            + "\n" for question, answer in CONVERSATIONS))
        run("data", "import", "chat", work / "chat.jsonl", work / "chat.h5", "--tokenizer",
            "data/samples/tokenizer.json", "--template", work / "template.jinja")
        measures_what_evaluate_does(work)
        is_the_same_on_two_ranks(work)
        reads_known_answers(work)
        measures_averages_and_adapters(work)
        stops_between_answers(work)
        refuses(work)


if __name__ == "__main__":
    main()
