"""Fine-tunes a language model on conversations that `lockstep data import chat` wrote, with the Trainer of transformers or
with TRL's SFTTrainer (of the setting "sft").

    chat_peer.py SETTINGS           (JSON; chat.py makes it)
    chat_peer.py --make DIRECTORY   makes a random model of the shape of SmolLM-135M with 2 of its 30 layers

Prints events as RUN/metrics.jsonl has them: the loss of steps, and the held-out loss. The windows are those of
src/data/text_set.h, in the order of the file; attention does not cross conversations. Needs h5py and accelerate,
and peft for adapters.
"""
import functools
import json
import resource
import sys
import tempfile
import time

import h5py
import torch
import transformers

sys.path.insert(0, sys.path[0] + "/..")
import torch_peer  # noqa: E402

IGNORED = -100
OPEN_WINDOWS = 64


def conversations(path):
    """[(tokens, counted)]: whether each token counts towards the loss."""
    with h5py.File(path) as file:
        tokens = torch.from_numpy(file["tokens"][:].astype("int64"))
        counted = torch.zeros(len(tokens), dtype=torch.bool)
        for begin, end in file["answers"][:]:
            counted[int(begin):int(end)] = True
        ends = [int(position) for position in file["documents"][:]]
    return [(tokens[begin:end], counted[begin:end]) for begin, end in zip(ends, ends[1:])]


def first_fit(kept, length):
    """The indices of the conversations in each window."""
    windows, opened = [], []
    for number, (tokens, _) in enumerate(kept):
        place = next((w for w in opened if w[0] >= len(tokens)), None)
        if place is None:
            if len(opened) == OPEN_WINDOWS:
                windows.append(opened.pop(0)[1])
            place = [length, []]
            opened.append(place)
        place[0] -= len(tokens)
        place[1].append(number)
    return windows + [documents for _, documents in opened]


def windows_of(path, length):
    """[{input_ids, labels, document, position_ids}], each of `length` tokens."""
    kept = [(tokens[:length], counted[:length]) for tokens, counted in conversations(path) if counted[1:length].any()]
    out = []
    for documents in first_fit(kept, length):
        window = {"input_ids": torch.zeros(length, dtype=torch.long), "labels": torch.full((length,), IGNORED),
                  "document": torch.full((length,), -1), "position_ids": torch.zeros(length, dtype=torch.long)}
        at = 0
        for number in documents:
            tokens, counted = kept[number]
            part = slice(at, at + len(tokens))
            window["input_ids"][part] = tokens
            window["labels"][part] = torch.where(counted, tokens, IGNORED)
            window["labels"][at] = IGNORED  # nothing predicts the first token
            window["document"][part] = number
            window["position_ids"][part] = torch.arange(len(tokens))
            at += len(tokens)
        window["position_ids"][at:] = torch.arange(length - at)
        out.append(window)
    return out


def collate(windows):
    batch = {name: torch.stack([window[name] for window in windows]) for name in windows[0]}
    document = batch.pop("document")
    length = document.shape[1]
    sees = (document[:, :, None] == document[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril()
    batch["attention_mask"] = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)[:, None]
    return batch


def held_out_loss(model, windows, batch):
    """The mean loss over the predictions of all windows."""
    total, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for begin in range(0, len(windows), batch):
            inputs = collate(windows[begin:begin + batch])
            labels = inputs.pop("labels")[:, 1:]
            logits = model(**inputs, use_cache=False).logits[:, :-1]
            total += torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1),
                                                       ignore_index=IGNORED, reduction="sum").item()
            count += int((labels != IGNORED).sum())
    model.train()
    return total / count


def in_order(trainer):
    """A trainer that neither shuffles nor evaluates: the batches are those of the other program."""

    class InOrder(trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return InOrder


class Events(transformers.TrainerCallback):
    def __init__(self, model, windows, every, batch):
        self.model, self.windows, self.every, self.batch = model, windows, every, batch

    def on_step_begin(self, *_, **kwargs):
        self.begin = time.perf_counter()

    def on_log(self, _, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            torch_peer.output(event="step", step=state.global_step, loss=logs["loss"], step_seconds=self.seconds,
                              memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    def on_step_end(self, _, state, control, **kwargs):
        self.seconds = time.perf_counter() - self.begin
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            loss = held_out_loss(self.model, self.windows, self.batch)
            torch_peer.output(event="evaluation", step=state.global_step, loss=loss)


def make(directory):
    torch.manual_seed(1)
    torch_peer.smollm(layers=2, initializer_range=0.041666666666666664).save_pretrained(directory)


def make_adapters(base, directory, rank):
    """Adapters with PEFT's random numbers, so that both programs begin with the same ones."""
    import peft
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    peft.get_peft_model(model, config).save_pretrained(directory)


def main():
    if sys.argv[1] == "--make":
        return make(sys.argv[2])
    if sys.argv[1] == "--make-adapters":
        return make_adapters(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    s = json.loads(sys.argv[1])
    torch.set_num_threads(s["threads"])
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(s["model"], dtype=torch.float32, attn_implementation="sdpa")
    model.get_input_embeddings().padding_idx = None  # otherwise, a token that also ends answers would not be trained
    if s["lora_rank"]:
        import peft
        model = peft.PeftModel.from_pretrained(model, s["adapters"], is_trainable=True)
    train, held_out = (windows_of(s[name], s["length"]) for name in ("train", "val"))
    predictions = sum(int((window["labels"][1:] != IGNORED).sum()) for window in train)
    print(f"{len(train)} and {len(held_out)} windows, {predictions} predictions", file=sys.stderr)
    micro = s["batch"] // s["accumulate"]
    steps = s["epochs"] * (len(train) // s["batch"])
    trained = [p for p in model.parameters() if p.requires_grad]
    adamw = torch_peer.adamw(trained, s["rate"], s["weight_decay"], s["beta2"])
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adamw, lambda step: torch_peer.learning_rate(min(step, steps - 1), s["warmup"], steps, s["rate"], s["final_rate"]) / s["rate"])
    torch_peer.output(event="evaluation", step=0, loss=held_out_loss(model, held_out, micro))
    with tempfile.TemporaryDirectory() as directory:
        whole = train[:len(train) // s["batch"] * s["batch"]]  # A step must not reach into the next epoch.
        trainer, options = transformers.Trainer, transformers.TrainingArguments
        if s["sft"]:
            import datasets
            import trl
            whole = datasets.Dataset.from_list([{name: values.tolist() for name, values in window.items()} for window in whole])
            whole = whole.with_format("torch")
            trainer, options = trl.SFTTrainer, functools.partial(trl.SFTConfig, bf16=False, dataset_kwargs={"skip_prepare_dataset": True})
        arguments = options(
            output_dir=directory, use_cpu=True, max_steps=steps, per_device_train_batch_size=micro,
            gradient_accumulation_steps=s["accumulate"], max_grad_norm=s["clip_norm"], logging_steps=1, save_strategy="no",
            report_to=[], dataloader_drop_last=True, remove_unused_columns=False, disable_tqdm=True)
        in_order(trainer)(model=model, args=arguments, train_dataset=whole, data_collator=collate,
                          optimizers=(adamw, schedule), callbacks=[Events(model, held_out, s["every"], micro)]).train()


if __name__ == "__main__":
    main()
