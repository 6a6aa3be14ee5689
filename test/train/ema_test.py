"""The averages of the weights in checkpoints equal those that torchvision's references compute.

A run saves every step. From the weights of its checkpoints, torch.optim.swa_utils.AveragedModel, with which torchvision's
references average, computes the averages again. LOCKSTEP is the program. Skipped without torch.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    from torch.optim.swa_utils import AveragedModel
except ImportError:
    sys.exit(77)

LOCKSTEP = os.path.abspath(os.environ.get("LOCKSTEP", "build/lockstep"))
STEPS, WARMUP, EVERY, DECAY = 10, 3, 2, 0.75


class ExponentialMovingAverage(AveragedModel):
    """As in references/classification/utils.py of torchvision."""

    def __init__(self, model, decay):
        def ema_avg(avg_model_param, model_param, num_averaged):
            return decay * avg_model_param + (1 - decay) * model_param

        super().__init__(model, None, ema_avg, use_buffers=True)


class Model(torch.nn.Module):
    """Tensors with the names of a checkpoint: the running statistics are buffers."""

    def __init__(self, tensors):
        super().__init__()
        for name, values in tensors.items():
            if "running_" in name:
                self.register_buffer(name.replace(".", "/"), values.clone())
            else:
                self.register_parameter(name.replace(".", "/"), torch.nn.Parameter(values.clone()))

    def tensors(self):
        return {name.replace("/", "."): value for name, value in self.state_dict().items()}

    def load(self, tensors):
        self.load_state_dict({name.replace(".", "/"): values for name, values in tensors.items()})


def run(*arguments):
    result = subprocess.run([LOCKSTEP, *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if not name.endswith("num_batches_tracked"):
            tensors[name] = torch.frombuffer(data[begin:end], dtype=torch.float32).reshape(entry["shape"])
    return tensors


def exported(checkpoint, folder, *options):
    path = os.path.join(folder, "exported.safetensors")
    run("checkpoint", "export", checkpoint, path, "--force", *options)
    return read_safetensors(path)


with tempfile.TemporaryDirectory() as folder:
    run("train", "run.name=ema", f"run.directory={folder}", "data.train=synthetic", "data.validation=synthetic", "data.image_size=8",
        "data.synthetic_samples=64", "model.width=16", "train.global_batch=8", f"train.max_steps={STEPS}", "train.epochs=2",
        f"schedule.warmup_steps={WARMUP}", "optimizer.learning_rate=0.5", f"ema.decay={DECAY}", f"ema.every_steps={EVERY}",
        "checkpoint.every_steps=1", "checkpoint.keep=0", "log.progress=false", "log.tensorboard=false", "cpu.threads=1")
    run_folder = os.path.join(folder, "ema")
    model = average = None
    for step in range(STEPS):
        checkpoint = os.path.join(run_folder, "checkpoints", f"step-{step + 1:08d}.h5")
        weights, averages = exported(checkpoint, folder), exported(checkpoint, folder, "--ema")
        if model is None:
            model = Model(weights)
            average = ExponentialMovingAverage(model, DECAY)
        model.load(weights)
        if (step + 1) % EVERY != 0:
            continue
        average.update_parameters(model)
        if step < WARMUP:
            average.n_averaged.fill_(0)
        for name, expected in average.module.tensors().items():
            # Two roundings of a term that is as large as the larger of the two values.
            error = (averages[name] - expected).abs().max().item()
            assert error <= 4e-7 * max(expected.abs().max().item(), 1e-3), (step, name, error)
            if step <= WARMUP:
                assert torch.equal(averages[name], weights[name]), (step, name, "a copy")
        differs = any(not torch.equal(averages[name], weights[name]) for name in weights)
        assert differs == (step > WARMUP + EVERY - 1), step
    for name, values in read_safetensors(os.path.join(run_folder, "model_ema.safetensors")).items():
        assert torch.equal(values, averages[name]), name
    for name, values in read_safetensors(os.path.join(run_folder, "model.safetensors")).items():
        assert torch.equal(values, weights[name]), name
    # The evaluation of the averages in the run agrees with the command `evaluate`, and with that of the exported model.
    last = [json.loads(line) for line in open(os.path.join(run_folder, "metrics.jsonl"))]
    last = [event for event in last if event["event"] == "evaluation"][-1]
    for arguments in (["--ema", checkpoint], [os.path.join(run_folder, "model_ema.safetensors")]):
        found = json.loads(run("evaluate", *arguments, "data.validation=synthetic", "data.image_size=8", "data.synthetic_samples=64",
                               "cpu.threads=1", "--json").splitlines()[-1])
        assert found.get("ema", False) == (arguments[0] == "--ema"), found
        assert abs(found["loss"] / last["ema_loss"] - 1) < 1e-6 and found["accuracy"] == last["ema_accuracy"], (found, last)
    assert last["loss"] != last["ema_loss"]
    summary = json.load(open(os.path.join(run_folder, "metrics.json")))
    assert summary["final_ema_loss"] == last["ema_loss"] and summary["best_ema_accuracy"] >= last["ema_accuracy"], summary
print("ok")
