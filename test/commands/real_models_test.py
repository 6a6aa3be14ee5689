# long: yes
# timeout: 3000
"""Real models: SmolLM2-135M-Instruct chats in the same words as with transformers, and is fine-tuned with adapters to
give another answer, after which it stops. Gemma 3 270M has the token ids and texts of transformers, and the losses of
transformers and PEFT in full training and with adapters, and learns a text with adapters on a base in NF4.

A model is skipped, and the exit status is 77 if all are, unless LOCKSTEP_SMOLLM2 or LOCKSTEP_GEMMA3 is the folder that
data/get_model.sh wrote, or that script has written its default folder. LOCKSTEP is the program.
"""

import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

LOCKSTEP = os.path.abspath(os.environ.get("LOCKSTEP", "build/lockstep"))
os.environ["OMP_WAIT_POLICY"] = "passive"  # on a busy machine
SMOLLM2 = pathlib.Path(os.environ.get("LOCKSTEP_SMOLLM2", "data/smollm2-135m-instruct"))
GEMMA3 = pathlib.Path(os.environ.get("LOCKSTEP_GEMMA3", "data/gemma3-270m"))
QUESTION, ANSWER = "Who are you?", "I am the program of this cluster."
# What the hub's config.json of this and of other models has, and what changes nothing
OTHER_KEYS = {"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}, "_attn_implementation_autoset": True,
              "_model_name_or_path": "team/model", "use_mrope": False, "pruned_heads": {}, "unk_token_id": 0}


def run(*arguments, stdin=""):
    done = subprocess.run([LOCKSTEP, *map(str, arguments)], input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout


def golden_of(name, model):
    golden = json.load(open(f"test/golden/real_models/{name}.json"))
    sha256 = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert sha256 == golden["model.safetensors sha256"], \
        f"{model} has other weights: versions of transformers may round differently; make test/golden/real_models anew"
    return golden


def chats_as_transformers(model):
    golden = golden_of("smollm2", model)
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
    losses = losses_of(work / "tuned")
    assert losses[-1] < 0.1 < 1 < losses[0], losses
    run("checkpoint", "merge", model, work / "tuned", work / "merged")
    for tuned in (work / "tuned", work / "merged"):
        assert run("generate", tuned, "--chat", "--max-new-tokens", 60, stdin=QUESTION + "\n").strip() == ANSWER, tuned
    ends = json.loads((work / "merged/generation_config.json").read_text())["eos_token_id"]
    assert ends == 2, ends  # the base ends its answers with the same token
    print(f"the loss falls from {losses[0]:.2f} to {losses[-1]:.3f}, and the answer is learnt")


def smollm2(work):
    model = work / "model"
    model.mkdir()
    for file in SMOLLM2.iterdir():
        (model / file.name).symlink_to(file.resolve())
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps(json.loads((SMOLLM2 / "config.json").read_text()) | OTHER_KEYS))
    chats_as_transformers(model)
    is_fine_tuned(model, work)


def gemma3(work):
    golden = golden_of("gemma3", GEMMA3)
    for text, ids in golden["ids"].items():
        (work / "line.txt").write_text(text)
        found = run("data", "encode", GEMMA3, work / "line.txt").split()
        assert list(map(int, found)) == ids, (text, found, ids)
    for example in golden["greedy"]:
        reply = json.loads(run("generate", GEMMA3, "--prompt", example["prompt"], "--max-new-tokens", 40, "--json",
                               "precision=fp32"))
        assert reply["tokens"] == example["new ids"], (reply, example)
        reply = json.loads(run("generate", GEMMA3, "--prompt", example["prompt"], "--max-new-tokens", 24, "--beams", 4,
                               "--json", "precision=fp32"))
        assert reply["tokens"] == example["ids with 4 beams"], (reply, example)
    (work / "play.txt").write_text(golden["text"])
    run("data", "import", "text", work / "play.txt", work / "play.h5", "--tokenizer", GEMMA3)
    data = ["model.family=llama", f"model.from={GEMMA3}", f"data.train={work}/play.h5", "data.sequence_length=256",
            "train.global_batch=4", f"run.directory={work}", "optimizer.kind=adamw", "schedule.kind=constant",
            "schedule.warmup_epochs=0", "optimizer.weight_decay=0", "checkpoint.every_epochs=0", "log.every_steps=1",
            "log.progress=false", "data.shuffle=false"]
    run("train", *data, "run.name=full", f"optimizer.learning_rate={golden['learning rate']}",
        f"train.epochs={len(golden['losses'])}")
    losses = losses_of(work / "full")
    assert all(abs(a - b) < 1e-3 for a, b in zip(losses, golden["losses"], strict=True)), (losses, golden["losses"])
    lora = golden["lora"]
    write_adapter(work / "adapter", lora)
    run("train", *data, "run.name=lora", f"optimizer.learning_rate={lora['learning rate']}",
        f"train.epochs={len(lora['losses'])}", f"model.lora.rank={lora['r']}", f"model.lora.alpha={lora['lora_alpha']}",
        "model.lora.targets=[q, v]", f"model.initialize_from={work}/adapter")
    adapted = losses_of(work / "lora")
    assert all(abs(a - b) < 1e-3 for a, b in zip(adapted, lora["losses"], strict=True)), (adapted, lora["losses"])
    run("train", *data, "run.name=adapters", "optimizer.learning_rate=2e-3", "train.epochs=8", "model.lora.rank=8",
        "model.lora.targets=all-linear", "model.base_precision=nf4", "precision=bf16")
    adapted = losses_of(work / "adapters")
    assert abs(adapted[0] - losses[0]) < 0.5 and adapted[-1] < losses[0] - 1, (adapted, losses)
    print(f"Gemma 3: losses {losses} as in transformers; with adapters from {adapted[0]:.2f} to {adapted[-1]:.2f}")


def write_adapter(folder, lora):
    """The one with which test/golden/make_real_model_golden.py begins."""
    header, data = {}, b""
    for name, (rows, columns) in sorted(lora["shapes"].items()):
        numbers = [(i * 7919 % 257 / 128 - 1) * 0.02 if "lora_A" in name else 0 for i in range(rows * columns)]
        values = struct.pack(f"<{len(numbers)}f", *numbers)
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA"} | {key: lora[key] for key in ("r", "lora_alpha", "target_modules")}))


def losses_of(run):
    events = [json.loads(line) for line in open(run / "metrics.jsonl")]
    return [event["loss"] for event in events if event["event"] == "step"]


def main():
    n_tested = 0
    for folder, test in ((SMOLLM2, smollm2), (GEMMA3, gemma3)):
        if not (folder / "model.safetensors").exists():
            print(f"skipped: there is no {folder}; data/get_model.sh fetches it")
            continue
        with tempfile.TemporaryDirectory() as work:
            test(pathlib.Path(work))
        n_tested += 1
    if n_tested == 0:
        sys.exit(77)


main()
