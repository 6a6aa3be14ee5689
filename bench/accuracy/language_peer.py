"""The training of a configuration of a language model in PyTorch, with the model and the initial weights of transformers.

Prints events as RUN/metrics.jsonl has them: the loss of steps, and the validation loss after each epoch. Supports what
jobs/configs/gpt_small_shakespeare.yaml uses: windows of one stream (data.cross_documents), AdamW, clipping, a cosine
schedule with warm-up in steps. Needs h5py and PyYAML, too.
"""
import pathlib
import sys

import h5py
import torch
import transformers
import yaml

sys.path.insert(0, sys.path[0] + "/..")
import torch_peer  # noqa: E402

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


def main():
    parser = torch_peer.parser(__doc__, seed=None, threads=2, log_steps=5)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--epochs", type=int)
    args = parser.parse_args()
    config = yaml.safe_load(args.config.read_text())
    data, train, optimizer, schedule = (config[group] for group in ("data", "train", "optimizer", "schedule"))
    epochs, batch = args.epochs or train["epochs"], train["global_batch"]

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    architecture = transformers.AutoConfig.from_pretrained(ROOT / config["model"]["config"])
    model = transformers.AutoModelForCausalLM.from_config(architecture, attn_implementation="sdpa")
    sets = {split: windows(data[split], data["sequence_length"]) for split in ("train", "validation")}
    adamw = torch_peer.adamw(list(model.parameters()), optimizer["learning_rate"], optimizer["weight_decay"], optimizer["beta2"])

    per_epoch = len(sets["train"]) // batch
    step = 0
    for _ in range(epochs):
        model.train()
        order = torch.randperm(len(sets["train"]))
        for i in range(per_epoch):
            rate = torch_peer.learning_rate(step, schedule["warmup_steps"], epochs * per_epoch, optimizer["learning_rate"],
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
                torch_peer.output(event="step", step=step, loss=loss.item())
        model.eval()
        with torch.no_grad():
            losses = [(len(part), mean_loss(model, part).item()) for part in sets["validation"].split(batch)]
        loss = sum(n * loss for n, loss in losses) / sum(n for n, _ in losses)
        torch_peer.output(event="evaluation", step=step, loss=loss)


if __name__ == "__main__":
    main()
