"""The training of a configuration of a language model in PyTorch, with the model and the initial weights of transformers.

Prints events as RUN/metrics.jsonl has them: the loss of steps, and the validation loss after each epoch. Supports what
jobs/configs/gpt_small_shakespeare.yaml uses: windows of one stream (data.cross_documents), AdamW, clipping, a cosine
schedule with warm-up in steps. Needs h5py and PyYAML, too.
"""
import argparse
import json
import math
import pathlib

import h5py
import torch
import transformers
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def windows(path, length):
    """(n, length). Tokens at the end that do not fill a window are left out."""
    with h5py.File(ROOT / path) as file:
        tokens = torch.from_numpy(file["tokens"][:].astype("int64"))
    return tokens[:len(tokens) // length * length].view(-1, length)


def mean_loss(model, tokens):
    """The mean loss over the predictions of the windows. Each token predicts the next one."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def learning_rate(step, warmup, length, base, final):
    """As in src/train/schedule.h: linear warm-up, then cosine."""
    if step < warmup:
        return base * (step + 1) / warmup
    return final + (base - final) * (1 + math.cos(math.pi * (step - warmup) / (length - warmup))) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--log-steps", type=int, default=5)
    args = parser.parse_args()
    config = yaml.safe_load(args.config.read_text())
    data, train, optimizer, schedule = (config[group] for group in ("data", "train", "optimizer", "schedule"))
    epochs, batch = args.epochs or train["epochs"], train["global_batch"]

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    architecture = transformers.AutoConfig.from_pretrained(ROOT / config["model"]["config"])
    model = transformers.AutoModelForCausalLM.from_config(architecture, attn_implementation="sdpa")
    sets = {split: windows(data[split], data["sequence_length"]) for split in ("train", "validation")}
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": optimizer["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=optimizer["learning_rate"], betas=(0.9, optimizer["beta2"]), eps=1e-8)

    per_epoch = len(sets["train"]) // batch
    step = 0
    for _ in range(epochs):
        model.train()
        order = torch.randperm(len(sets["train"]))
        for i in range(per_epoch):
            rate = learning_rate(step, schedule["warmup_steps"], epochs * per_epoch, optimizer["learning_rate"],
                                 schedule["final_learning_rate"])
            for group in adamw.param_groups:
                group["lr"] = rate
            adamw.zero_grad()
            loss = mean_loss(model, sets["train"][order[i * batch:(i + 1) * batch]])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), train["clip_norm"])
            adamw.step()
            step += 1
            if step % args.log_steps == 0:
                print(json.dumps({"event": "step", "step": step, "loss": loss.item()}), flush=True)
        model.eval()
        with torch.no_grad():
            losses = [(len(part), mean_loss(model, part).item()) for part in sets["validation"].split(batch)]
        loss = sum(n * loss for n, loss in losses) / sum(n for n, _ in losses)
        print(json.dumps({"event": "evaluation", "step": step, "loss": loss}), flush=True)
    print(json.dumps({"event": "end", "torch": torch.__version__, "transformers": transformers.__version__}))


if __name__ == "__main__":
    main()
