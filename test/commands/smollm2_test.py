# long: yes
# timeout: 1200
"""A real model: SmolLM2-135M-Instruct chats in the same words as with transformers, and is fine-tuned with adapters to
give another answer, after which it stops.

Exit status 77 (skipped) unless LOCKSTEP_SMOLLM2 is the folder that data/get_smollm2.sh wrote, or that script has written
its default folder. LOCKSTEP is the program.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

LOCKSTEP = os.path.abspath(os.environ.get("LOCKSTEP", "build/lockstep"))
os.environ["OMP_WAIT_POLICY"] = "passive"  # on a busy machine
MODEL = pathlib.Path(os.environ.get("LOCKSTEP_SMOLLM2", "data/smollm2-135m-instruct"))
QUESTION, ANSWER = "Who are you?", "I am the program of this cluster."
# What the hub's config.json of this and of other models has, and what changes nothing
OTHER_KEYS = {"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}, "_attn_implementation_autoset": True,
              "_model_name_or_path": "team/model", "use_mrope": False, "pruned_heads": {}, "unk_token_id": 0}


def run(*arguments, stdin=""):
    done = subprocess.run([LOCKSTEP, *map(str, arguments)], input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout


def chats_as_transformers(model):
    golden = json.load(open("test/golden/smollm2.json"))
    sha256 = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert sha256 == golden["model.safetensors sha256"], \
        f"{model} has other weights: versions of transformers may round differently; make test/golden/smollm2.json anew"
    for example in golden["greedy"]:
        text = run("generate", model, "--chat", "--max-new-tokens", 40, "precision=fp32", stdin=example["prompt"] + "\n")
        assert text.strip() == example["text"].removesuffix("<|im_end|>"), (text, example)
    print(f"{len(golden['greedy'])} answers are the same")


def is_fine_tuned(model, work):
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    (work / "chat.jsonl").write_text((json.dumps({"messages": messages}) + "\n") * 4)
    run("data", "import", "chat", work / "chat.jsonl", work / "chat.h5", "--tokenizer", model)
    run("train", "model.family=llama", f"model.from={model}", f"data.train={work}/chat.h5", f"run.directory={work}",
        "run.name=tuned", "data.sequence_length=64", "data.pack=false", "train.global_batch=4", "train.epochs=16",
        "model.lora.rank=8", "model.lora.targets=all-linear", "optimizer.kind=adamw", "optimizer.learning_rate=2e-3",
        "schedule.kind=constant", "schedule.warmup_epochs=0", "checkpoint.every_epochs=0", "log.every_steps=1",
        "log.progress=false")
    steps = [json.loads(line) for line in open(work / "tuned/metrics.jsonl")]
    losses = [event["loss"] for event in steps if event["event"] == "step"]
    assert losses[-1] < 0.1 < 1 < losses[0], losses
    run("checkpoint", "merge", model, work / "tuned", work / "merged")
    for tuned in (work / "tuned", work / "merged"):
        assert run("generate", tuned, "--chat", "--max-new-tokens", 60, stdin=QUESTION + "\n").strip() == ANSWER, tuned
    ends = json.loads((work / "merged/generation_config.json").read_text())["eos_token_id"]
    assert ends == 2, ends  # the base ends its answers with the same token
    print(f"the loss falls from {losses[0]:.2f} to {losses[-1]:.3f}, and the answer is learnt")


def main():
    if not (MODEL / "model.safetensors").exists():
        print(f"skipped: there is no {MODEL}; data/get_smollm2.sh fetches it")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        model = work / "model"
        model.mkdir()
        for file in MODEL.iterdir():
            (model / file.name).symlink_to(file.resolve())
        (model / "config.json").unlink()
        (model / "config.json").write_text(json.dumps(json.loads((MODEL / "config.json").read_text()) | OTHER_KEYS))
        chats_as_transformers(model)
        is_fine_tuned(model, work)


main()
