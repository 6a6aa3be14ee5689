# timeout: 600
"""`lockstep generate`: the same tokens as transformers (test/golden/make_generate_golden.py), in any batch and on any
number of ranks; sampling; conversations; invalid input.

LOCKSTEP is the program in its build folder.
"""

import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

LOCKSTEP = os.environ.get("LOCKSTEP", "build/lockstep")
MPIRUN = os.environ.get("MPIRUN", "mpirun")
GOLDEN = pathlib.Path("test/golden")
TOK512 = GOLDEN / "tokenizers" / "tok512.bin"
TWO_THREADS = "cpu.threads=2"
TEMPLATE = ["--chat-template", "bench/accuracy/chat_story.jinja"]  # uses no tokens that a small tokenizer lacks


def program(*arguments, ranks=1, text=None):
    command = [LOCKSTEP, "generate", *map(str, arguments)]
    if ranks > 1:
        command = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
    return subprocess.run(command, input=text, capture_output=True, text=True)


def generate(*arguments, ranks=1, text=None):
    done = program(*arguments, TWO_THREADS, ranks=ranks, text=text)
    assert done.returncode == 0, (arguments, done.returncode, done.stderr)
    return done.stdout


def objects(*arguments, **kwargs):
    return [json.loads(line) for line in generate(*arguments, "--json", **kwargs).splitlines()]


def flags(options):
    return [word for key, value in options.items() for word in (f"--{key}", str(value))]


class Models:
    """Paths of the models, each with its tokenizer."""

    def __init__(self, work):
        story = work / "story"
        story.mkdir()
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            (story / name).write_bytes((GOLDEN / "llama-story" / name).read_bytes())
        (story / "tokenizer.json").write_bytes(
            gzip.decompress((GOLDEN / "tokenizers" / "llama-story.json.gz").read_bytes()))
        checkpoint = work / "stories.h5"
        subprocess.run([LOCKSTEP, "checkpoint", "import", "--format", "llama2c",
                        GOLDEN / "stories260K" / "stories260K.bin", checkpoint], check=True, stdout=subprocess.DEVNULL)
        self.story = story
        self.arguments = {"llama-story": [story], "stories260K": [checkpoint, "--tokenizer", TOK512]}
        for name in ("qwen2", "llama", "mistral", "smollm3", "gemma3"):
            self.arguments[name] = [GOLDEN / "generate" / name, "--tokenizer", TOK512]


def same_as_transformers(models, work):
    cases = json.loads((GOLDEN / "generate" / "expected.json").read_text())["cases"]
    groups = {}
    for case in cases:
        groups.setdefault((case["model"], json.dumps(case["options"])), []).append(case)
    n = 0
    for (model, options), group in groups.items():
        prompts = work / "prompts.txt"
        prompts.write_text("\ufeff" + "".join(case["prompt"] + "\n" for case in group), encoding="utf-8")  # a byte order mark
        for batch in (1, 8):
            lines = objects(*models.arguments[model], "--prompts", prompts, "--batch", batch,
                            *flags(json.loads(options)))
            for case in group:
                for expected in case["tokens"]:
                    found = lines.pop(0)
                    assert found["prompt"] == case["prompt"]
                    assert found["tokens"] == expected, (model, options, case["prompt"], found["tokens"], expected)
                    assert len(found["logprobs"]) == len(expected)
                    for a, b in zip(found["logprobs"], case.get("logprobs", found["logprobs"])):
                        assert abs(a - b) < 2e-4, (model, options, a, b)
                    n += 1
            assert not lines
    assert n > 140, n


def known_story(models):
    ids = json.loads((GOLDEN / "stories260K" / "expected_greedy_ids.json").read_text())
    ids = ids["greedy_ids_including_bos"]
    arguments = [*models.arguments["stories260K"], "--prompts", "-", "--max-new-tokens", 200, "--ignore-end"]
    found = objects(*arguments, text="\n")[0]  # an empty prompt: only the token that begins a text
    assert found["tokens"] == ids[1:201], found["tokens"]
    assert generate(*arguments, text="\n") == found["text"] + "\n"
    stopped = objects(*arguments, "--stop", "never said", "--stop", ".", text="\n")[0]
    assert "." in found["text"] and stopped["text"] == found["text"].split(".")[0], stopped["text"]


def a_batch_is_like_one_by_one(models, work):
    """In bf16, where summing in another order would soon give another text; prompts of several chunks."""
    prompts = work / "many.txt"
    lines = [("Lily and Tom went to the park. " * (1 + i * 3))[:1400] for i in range(11)] + ["A", "é 😀 ß", "One"]
    prompts.write_text("".join(line + "\n" for line in lines))
    for precision in ("bf16", "fp32"):
        arguments = [models.story, f"precision={precision}", "--max-new-tokens", 24, "--ignore-end"]
        for more in (["--temperature", 1, "--top-k", 40, "--n", 2, "--seed", 3], ["--beams", 3], []):
            alone = [line for prompt in lines[:1] for line in objects(*arguments, *more, "--prompt", prompt)]
            first = None
            for batch in (1, 5, 16):
                found = objects(*arguments, *more, "--prompts", prompts, "--batch", batch)
                first = first or found
                assert found == first, (precision, more, batch)
            assert first[: len(alone)] == alone
            assert [o["prompt"] for o in first[:: len(alone)]] == lines
            for ranks in (2, 3):
                assert objects(*arguments, *more, "--prompts", prompts, ranks=ranks) == first, (precision, more, ranks)
    text = generate(*arguments, "--prompts", prompts, ranks=2)
    assert text == generate(*arguments, "--prompts", prompts)
    headers = re.findall(r"^==> (.*) <==$", text, re.M)
    assert len(headers) == len(lines) and headers[-1] == "One", headers
    assert generate(*arguments, "--prompts", "-", text="A\r\nOne\n") == generate(
        *arguments, "--prompts", "-", text="A\nOne")


def draws(models):
    arguments = [models.story, "--prompt", "One day", "--max-new-tokens", 12, "--temperature", 1]
    one, again, other = (objects(*arguments, "--n", 6, "--seed", seed) for seed in (1, 1, 2))
    assert one == again and one != other
    assert [o["reply"] for o in one] == list(range(6))
    assert len({tuple(o["tokens"]) for o in one}) > 3
    assert objects(*arguments)[0]["tokens"] == one[0]["tokens"]
    greedy = objects(models.story, "--prompt", "One day", "--max-new-tokens", 12)
    assert objects(*arguments, "--top-k", 1)[0]["tokens"] == greedy[0]["tokens"]
    assert objects(models.story, "--prompt", "One day", "--max-new-tokens", 12, "--top-p", 0.0)[0] == greedy[0]


def writes_files(models, work):
    target = work / "out.jsonl"
    arguments = [models.story, "--prompt", "The dog", "--max-new-tokens", 5]
    assert generate(*arguments, f"--json={target}") == ""
    assert json.loads(target.read_text()) == objects(*arguments)[0]
    before = target.read_bytes()
    assert program(models.story, "--prompt", "x " * 3000, f"--json={target}").returncode == 2
    assert target.read_bytes() == before


def converses(models, work):
    arguments = [models.story, "--chat", *TEMPLATE, "--max-new-tokens", 20, "--ignore-end"]
    two = generate(*arguments, text="Hello\n\nAnd then?\n").splitlines()
    again = generate(*arguments, "--system", "Be brief.", text="Hello\n").splitlines()
    assert generate(*arguments, text="Hello\n").splitlines()[0] == two[0]
    assert len(two) >= 2 and again != two[: len(again)], (two, again)
    # A conversation that is longer than the context continues.
    long = generate(models.story, "--chat", *TEMPLATE, "--max-new-tokens", 60, "--ignore-end",
                    text="Once upon a time there was a dog.\n" * 12)
    assert "no longer fit" in long
    # A message that is refused leaves the conversation as it was.
    refused = generate(*arguments, text="Hello\n" + "x " * 4000 + "\nAnd then?\n")
    message = next(line for line in refused.splitlines() if "longer than the context" in line)
    assert refused.replace(message + "\n", "") == generate(*arguments, text="Hello\nAnd then?\n"), refused
    endless = work / "endless.jinja"
    endless.write_text("{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}")
    done = program(models.story, "--chat", "--chat-template", endless, text="Hello\n")
    assert done.returncode == 2 and "endless.jinja" in done.stderr and "batch" not in done.stderr, done.stderr


def converses_like_transformers(models, work):
    """A tokenizer that strips the leading space of a text: the history contains the replies decoded on their own."""
    tokenizer = json.loads((models.story / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["normalized"] = False
    (work / "tokenizer.json").write_text(json.dumps(tokenizer))
    for case in json.loads((GOLDEN / "generate" / "expected.json").read_text())["conversations"]:
        template = work / "story.jinja"
        template.write_text(case["template"])
        found = generate(models.story, "--chat", "--tokenizer", work / "tokenizer.json", "--chat-template", template,
                         "--max-new-tokens", case["max_new_tokens"], *["--ignore-end"] * case["ignores_end"],
                         text="\n".join(case["messages"]) + "\n")
        assert found == "".join(reply + "\n" for reply in case["replies"]), (found, case["replies"])


def stops_a_reply(models):
    command = [LOCKSTEP, "generate", models.arguments["stories260K"][0], "--tokenizer", TOK512, "--chat",
               *TEMPLATE, "--ignore-end", "--max-new-tokens", "100000", "cpu.threads=1"]
    with subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"Hi\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.stdin.write(b"Go on\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.stdin.close()
        process.stdout.read()
        assert process.wait() == 0, process.returncode


def cpu_seconds(pid):
    """Of a process and its descendants."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))


def writes_complete_replies_when_stopped(models, work):
    prompts, target = work / "stopped.txt", work / "stopped.jsonl"
    prompts.write_text("Once upon a time\n" * 20000)
    command = [LOCKSTEP, "generate", *models.arguments["stories260K"], "--prompts", prompts, "--batch", 1, "--ignore-end",
               "--max-new-tokens", 8, f"--json={target}", "cpu.threads=1"]
    for ranks in (1, 2):
        launch = [] if ranks == 1 else [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        with subprocess.Popen(list(map(str, launch + command)), stderr=subprocess.PIPE, text=True) as process:
            while cpu_seconds(process.pid) < 3 * ranks:  # the start takes less
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM if ranks == 1 else signal.SIGUSR2)  # mpirun passes it on
            error = process.stderr.read()
        assert process.returncode == 75 and "stopped" in error, (process.returncode, error)
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        assert 0 < len(lines) < 20000 and all(len(line["tokens"]) == 8 for line in lines), len(lines)


def refuses(models, work):
    resnet = work / "resnet.h5"
    subprocess.run([LOCKSTEP, "train", "model.family=resnet", "model.depth=18", "data.train=synthetic", "data.image_size=8",
                    "data.synthetic_samples=8", "train.global_batch=4", "train.max_steps=1", "data.validation=",
                    f"run.directory={work}", "run.name=resnet", "log.progress=false", "log.tensorboard=false"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    resnet = work / "resnet"
    empty = work / "empty.txt"
    empty.write_text("")
    story, bare = models.story, GOLDEN / "generate" / "qwen2"
    prompt = ["--prompt", "x"]
    cases = [
        ([story], "--prompt TEXT, --prompts FILE and --chat, found none"),
        ([story, *prompt, "--chat"], "found several"),
        ([*prompt], "MODEL"),
        ([bare, *prompt], "has no tokenizer: name one with --tokenizer"),
        ([bare, *prompt, "--tokenizer", story], "2048 tokens, but .* has 512"),
        ([story, *prompt, "--tokenizer", work / "nothing"], "nothing"),
        ([resnet, *prompt], "is a resnet: `lockstep predict`"),
        ([work / "nothing", *prompt], "does not exist"),
        ([story, bare, *prompt], "one model"),
        ([TWO_THREADS, *prompt], "expected a model"),
        ([story, "--prompt", "word " * 700], "the prompt has [0-9]+ tokens, but the context of the model has 512"),
        ([story, "--prompts", work / "nothing.txt"], "nothing.txt"),
        ([story, "--prompts", work], "folder"),
        ([story, "--prompts", empty], "empty"),
        ([story, *prompt, "--temperature", "-1"], "temperature.*0 to 1000"),
        ([story, *prompt, "--temperature", "warm"], "temperature"),
        ([story, *prompt, "--beams", "0"], "beams.*1 to 64"),
        ([story, *prompt, "--beams", "65"], "beams.*1 to 64"),
        ([story, *prompt, "--n", "0"], "--n"),
        ([story, *prompt, "--n", "3"], "the same reply 3 times: give --temperature 1"),
        ([story, *prompt, "--n", "3", "--beams", "2"], "give --beams 3"),
        ([story, *prompt, "--beams", "2", "--temperature", "1"], "cannot be combined"),
        ([story, *prompt, "--top-k", "5", "--temperature", "0"], "above 0"),
        ([story, *prompt, "--top-p", "1.5"], "top-p.*0 to 1"),
        ([story, *prompt, "--length-penalty", "2"], "--beams 2 or more"),
        ([story, *prompt, "--max-new-tokens", "0"], "max-new-tokens"),
        ([story, *prompt, "--batch", "1024", "--beams", "2", "--prompts", empty], "several"),
        ([story, *prompt, "--system", "x"], "add --chat"),
        ([story, "--chat", "--n", "2", "--temperature", "1"], "--chat has one reply"),
        ([story, "--chat"], "no chat template in tokenizer_config.json or chat_template.jinja beside it: name one with --chat-template"),
        ([story, "--chat", "--chat-template", work / "nothing"], "nothing"),
        ([story, *prompt, "--colour"], "--colour"),
        ([story, *prompt, "model.depht=1"], "depht"),
        ([story, *prompt, "data.trian=x"], "trian"),
        ([story, *prompt, "model.base_precision=nf4"], "has no effect, because .* describes its own model"),
        ([story, *prompt, "--json=" + str(work / "no" / "folder.json")], "cannot write .*folder.json: there is no folder"),
        ([story, *prompt, f"--json={story / 'config.json'}"], "is an input of this command"),
        ([story, *prompt, f"--json={story / 'model.safetensors'}"], "is an input of this command"),
        ([bare, *prompt, "--tokenizer", TOK512, f"--json={TOK512}"], "is an input of this command"),
        *(([story, *prompt, option, "nan"], "expected a number, found nan")
          for option in ("--temperature", "--top-p", "--min-p", "--repetition-penalty", "--length-penalty")),
        ([story, "--chat", "--chat-template", "chatml"], "<.im_start.>, which is not one token of the tokenizer"),
        ([story, "--chat", *TEMPLATE, "--system", "word " * 700], "--system has [0-9]+ tokens"),
    ]
    for arguments, pattern in cases:
        done = program(*arguments)
        assert done.returncode in (1, 2), (arguments, done.returncode, done.stderr)
        assert re.search(pattern, done.stderr), (arguments, pattern, done.stderr)
        assert done.stdout == "", (arguments, done.stdout)
    done = program(story, "--chat", "--chat-template", "chatml", ranks=2)
    assert done.returncode != 0 and "--chat is a conversation with one process" in done.stderr, done.stderr


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        models = Models(work)
        for test in (lambda: same_as_transformers(models, work), lambda: known_story(models),
                     lambda: a_batch_is_like_one_by_one(models, work), lambda: draws(models),
                     lambda: writes_files(models, work), lambda: converses(models, work),
                     lambda: converses_like_transformers(models, work), lambda: stops_a_reply(models),
                     lambda: writes_complete_replies_when_stopped(models, work),
                     lambda: refuses(models, work)):
            begin = time.time()
            test()
            print(f"{time.time() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
