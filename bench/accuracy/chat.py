"""Compares fine-tuning on conversations with the Trainer of transformers, or with TRL's SFTTrainer: the held-out loss, from
the same weights, with the same batches in the same order.

    python3 bench/accuracy/chat.py --data DIR --story DIR --smollm DIR --python PYTHON_WITH_TRANSFORMERS
    python3 bench/accuracy/chat.py --data DIR --smollm2 DIR --python PYTHON_WITH_TRL [--lora-rank 16]

Both train jobs/configs/smollm135m_chat.yaml at reduced size, in fp32 on the CPU: llama-story-0.6M (--story: its
directory), and a random model of the shape of SmolLM-135M with a few of its layers (--smollm: a folder with its
tokenizer). --data has messages_train.jsonl and messages_eval.jsonl. A seed is an order of the conversations: this script
writes them to a file in that order, and neither program shuffles. chat_peer.py reads the tokens and the answers from the
file that `lockstep data import chat` wrote, and packs conversations into windows itself. The loss of the first step shows
whether both have the same weights and the same batch. With --lora-rank N, both train adapters, which begin with the same
random numbers, those of PEFT. Takes one or two minutes per model and seed.

SmolLM2-135M-Instruct (--smollm2: the folder that data/get_model.sh wrote) is compared with SFTTrainer, which also trains
with micro-batches of another size and kernels for any processor: the difference of both is what rounding in fp32 does. Each
program has --threads threads of its own. Takes half an hour per seed.
"""
import json
import pathlib
import random
import statistics
import sys

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
from language import begin, draw, losses_of, side_by_side, theirs  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
CONFIG = harness.ROOT / "jobs/configs/smollm135m_chat.yaml"
SIDES = {"lockstep": "Lockstep", "trainer": "Trainer"}
QUESTION = "Write a function in Python that returns the sum of the even numbers in a list."
MODELS = {
    "story": {"title": "llama-story-0.6M", "template": FOLDER / "chat_story.jinja", "conversations": 400, "held_out": 60,
              "length": 512, "batch": 8, "accumulate": 2, "epochs": 3, "rate": 1e-3, "warmup": 10, "every": 10},
    "smollm": {"title": "SmolLM-135M, 2 of 30 layers, random weights", "template": "chatml", "conversations": 96,
               "held_out": 10, "length": 256, "batch": 4, "accumulate": 2, "epochs": 1, "rate": 1e-3, "warmup": 3,
               "every": 4},
    "smollm2": {"title": "SmolLM2-135M-Instruct", "conversations": 205, "held_out": 24, "length": 256, "batch": 8, "accumulate": 2,
                "epochs": 1, "rate": 1e-4, "warmup": 3, "every": 20},
}


def prepare(model, seed, args, directory):
    """Imports the conversations in the order of the seed. Returns the paths of both sets and of the model."""
    folder = pathlib.Path(directory) / f"{model}-{seed}"
    folder.mkdir()
    m = MODELS[model]
    train = (args.data / "messages_train.jsonl").read_text().splitlines()[:args.conversations or m["conversations"]]
    random.Random(seed).shuffle(train)
    held_out = (args.data / "messages_eval.jsonl").read_text().splitlines()[:m["held_out"]]
    weights = pathlib.Path(directory) / "smollm" if model == "smollm" else getattr(args, model)
    for name, lines in (("train", train), ("val", held_out)):
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        harness.run([args.binary, "data", "import", "chat", folder / f"{name}.jsonl", folder / f"{name}.h5", "--tokenizer",
                     args.smollm / "tokenizer.json" if model == "smollm" else weights,
                     *(["--template", m["template"]] if "template" in m else [])], "lockstep data import")
    files = {"train": str(folder / "train.h5"), "val": str(folder / "val.h5"), "model": str(weights)}
    if args.lora_rank:
        adapters = pathlib.Path(directory) / f"{model}-adapters"  # the same for all seeds
        files["adapters"] = str(adapters)
        if not adapters.exists():
            harness.run([args.python, FOLDER / "chat_peer.py", "--make-adapters", weights, adapters, args.lora_rank],
                        "making adapters")
    return files


def settings(model, files, args):
    m = MODELS[model]
    return {**files, "length": m["length"], "batch": m["batch"], "accumulate": m["accumulate"],
            "epochs": args.epochs or m["epochs"], "rate": args.rate or m["rate"], "final_rate": (args.rate or m["rate"]) / 10,
            "warmup": m["warmup"], "every": m["every"], "weight_decay": 0.01, "beta2": 0.95, "clip_norm": 1.0,
            "lora_rank": args.lora_rank, "threads": args.threads, "sft": model == "smollm2"}


def ours(s, args, directory):
    overrides = ["device=cpu", "precision=fp32", f"model.from={s['model']}", f"data.train={s['train']}",
                 f"data.validation={s['val']}", f"data.sequence_length={s['length']}", "data.shuffle=false",
                 f"train.global_batch={s['batch']}", f"train.accumulate={s['accumulate']}", f"train.epochs={s['epochs']}",
                 f"optimizer.learning_rate={s['rate']}", f"schedule.final_learning_rate={s['final_rate']}",
                 f"schedule.warmup_steps={s['warmup']}", "evaluation.every_epochs=0", f"evaluation.every_steps={s['every']}",
                 "checkpoint.every_epochs=0", f"evaluation.batch_per_rank={s['batch'] // s['accumulate']}"]
    if s["lora_rank"]:
        overrides += [f"model.lora.rank={s['lora_rank']}", f"model.lora.alpha={2 * s['lora_rank']}",
                      f"model.initialize_from={s['adapters']}"]
    look = (lambda run: args.answers.append(answer(run, args))) if s["sft"] else None
    return harness.train(args.binary, 1, s["threads"], CONFIG, overrides, directory, look=look)[0]


def answer(model, args):
    return harness.run([args.binary, "generate", model, "--chat", "--max-new-tokens", "80", "precision=fp32"],
                       "lockstep generate", input=QUESTION + "\n").strip()


def compare(runs, seeds):
    """The held-out loss after the last step: for each seed, means, spread of the Trainer, maximum difference."""
    last = {side: [runs[side][str(seed)]["evaluation"][-1][1] for seed in seeds] for side in SIDES}
    first = runs["trainer"][str(seeds[0])]["evaluation"][0][1]
    return {"first": first, "last": last, "means": {side: statistics.mean(values) for side, values in last.items()},
            "first_step": max(abs(runs["lockstep"][str(seed)]["step"][0][1] - runs["trainer"][str(seed)]["step"][0][1])
                              for seed in seeds),
            "spread": max(last["trainer"]) - min(last["trainer"]),
            "steps": {side: max(abs(a - b) for seed in seeds for (_, a), (_, b) in
                                zip(runs[side][str(seed)]["step"], runs["trainer"][str(seed)]["step"]))
                      for side in runs if side != "trainer"},
            "difference": max(abs(a - b) for a, b in zip(last["lockstep"], last["trainer"]))}


def report(results, args):
    text = f"smollm135m_chat.yaml at reduced size, fp32, {args.threads} thread(s)"
    text += f", LoRA of rank {args.lora_rank}" if args.lora_rank else ""
    text += ". Held-out loss per token of the answers, after the last step.\n\n"
    rows = []
    for model, result in results.items():
        for seed, runs in result["runs"]["lockstep"].items():
            rows.append([MODELS[model]["title"], seed, runs["evaluation"][-1][0],
                         *(f"{result['runs'][side][seed]['evaluation'][-1][1]:.4f}" for side in SIDES)])
    text += harness.table(["model", "seed (order)", "steps", *SIDES.values()], rows) + "\n"
    for model, result in results.items():
        c = result["comparison"]
        text += (f"{MODELS[model]['title']}: before the first step, the loss is {c['first']:.3f}. Over the seeds, the last one of "
                 f"the Trainer has a spread of {c['spread']:.4f}. The greatest difference between both programs "
                 f"with the same seed is {c['difference']:.5f}; in the loss of the first step it is {c['first_step']:.5f}.\n")
        if model == "smollm2":
            text += report_sft(result, args)
    return text


def report_sft(result, args):
    m, runs, c = MODELS["smollm2"], result["runs"], result["comparison"]["steps"]
    seconds = {side: statistics.median(runs[side][str(args.seeds[0])]["step_seconds"]) for side in SIDES}
    text = (f"The greatest difference of any step's loss from that of SFTTrainer: {c['lockstep']:.6f} in Lockstep, and {c['again']:.6f} "
            f"in SFTTrainer with micro-batches of {m['batch']} windows and kernels for any processor.\n\n")
    tokens = m["batch"] * m["length"]
    text += harness.table(["", "median step, s", "tokens/s", "peak memory, GB"], [
        [{"trainer": "SFTTrainer"}.get(side, title), f"{seconds[side]:.2f}", f"{tokens / seconds[side]:.0f}",
         f"{max(runs[side][str(args.seeds[0])]['memory_bytes']) / 1e9:.2f}"] for side, title in SIDES.items()])
    before, *after = result["answers"]
    quoted = lambda answer: "\n".join("> " + line for line in answer.splitlines())
    return text + f"\n{QUESTION}\n\nBefore:\n\n{quoted(before)}\n\nAfter the last step:\n\n{quoted(after[0])}\n"


def main():
    parser = harness.parser(__doc__, name="", python="torch, transformers and h5py (and peft for LoRA)", threads=1)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with messages_train.jsonl and messages_eval.jsonl")
    parser.add_argument("--story", type=pathlib.Path, help="the directory of llama-story-0.6M")
    parser.add_argument("--smollm", type=pathlib.Path, help="a folder with the tokenizer.json of SmolLM")
    parser.add_argument("--smollm2", type=pathlib.Path, help="the folder that data/get_model.sh wrote; compares with SFTTrainer")
    parser.add_argument("--conversations", type=int, help="to train on; default: 400 and 96")
    parser.add_argument("--rate", type=float, help="the learning rate; default: 1e-3")
    parser.add_argument("--lora-rank", type=int, default=0, help="train adapters of this rank, with alpha twice as great")
    parser.add_argument("--add", action="store_true", help="keep what the result file has of the other model")
    args = begin(parser, lambda args: "torch, transformers, accelerate, h5py" + (", peft" if args.lora_rank else "") +
                 (", trl" if args.smollm2 else ""))
    models = [name for name in MODELS if getattr(args, name)]
    if not models:
        harness.stop("give --story, --smollm or --smollm2")
    name = args.name or ("sft" if args.smollm2 else "chat") + ("_lora" if args.lora_rank else "")
    earlier = pathlib.Path(args.results) / f"{name}.json"
    results = json.loads(earlier.read_text())["results"] if args.add and earlier.exists() else {}
    with harness.scratch() as directory:
        if "smollm" in models:
            harness.run([args.python, FOLDER / "chat_peer.py", "--make", pathlib.Path(directory) / "smollm"], "making a model")
        for model in models:
            runs = {side: {} for side in [*SIDES, *(["again"] if model == "smollm2" else [])]}
            args.answers = [answer(args.smollm2, args)] if model == "smollm2" else []
            for seed in args.seeds:
                s = settings(model, prepare(model, seed, args, directory), args)
                found = side_by_side(lambda: ours(s, args, directory), lambda: theirs("chat_peer.py", [json.dumps(s)], args))
                for side, losses in zip(SIDES, found):
                    runs[side][str(seed)] = losses
                if "again" in runs:
                    whole = [json.dumps(s | {"accumulate": 1})]
                    runs["again"][str(seed)] = losses_of(theirs("chat_peer.py", whole, args, ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE"))
            results[model] = {"settings": MODELS[model] | {"template": pathlib.Path(MODELS[model].get("template", "")).name},
                              "runs": runs, "comparison": compare(runs, args.seeds), "answers": args.answers}
    peer = "SFTTrainer of TRL" if args.smollm2 else "Trainer of transformers"
    harness.finish(args, f"Fine-tuning on conversations compared with the {peer}", report(results, args), name,
                   results=results)
    draw(args, results[models[0]]["runs"], SIDES, f"Fine-tuning {MODELS[models[0]]['title']} on conversations")


if __name__ == "__main__":
    main()
