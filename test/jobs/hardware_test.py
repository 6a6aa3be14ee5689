"""The hardware files for language models: each model of their table fits into the GPUs, in the memory that it states."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path[:0] = ["bench", "bench/gpu"]
from recipes import MODELS  # noqa: E402

LOCKSTEP = os.path.abspath(os.environ.get("LOCKSTEP", "build/lockstep"))
FOLDER = pathlib.Path("jobs/configs/hardware")


def plan(*arguments):
    return subprocess.run([LOCKSTEP, "plan", *map(str, arguments)], capture_output=True, text=True)


def planned(work, *arguments):
    done = plan(*arguments, f"--json={work}/plan.json")
    assert done.returncode == 0, (arguments, done.stderr)
    return json.loads((work / "plan.json").read_text())


def of_device(memory):
    return memory["total_on_device"] / 2**30


def test_table(work):
    """The rows of the table, in the order of its columns."""
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in open(FOLDER / "README.md")
            if re.match(r"\| (file \| tokens|`\w+_llm`)", line)]
    models, rows = rows[0][3:], rows[1:]
    assert {row[0].strip("`") for row in rows} == {path.stem for path in FOLDER.glob("*_llm.yaml")}, rows
    for name, tokens, batch, *memories in rows:
        file = FOLDER / f"{name.strip('`')}.yaml"
        ranks, device = re.match(r"(\d)x_(\w+?)(?:_full)?_llm", file.stem).groups()
        for model, stated in zip(models, memories, strict=True):
            if stated == "-":
                continue
            found = planned(work, "model.family=llama", "optimizer.kind=adamw", "data.train=synthetic", "data.validation=synthetic",
                            "data.synthetic_samples=512", file, f"model.config={work / model}.json", "--ranks", ranks, "--device", device)
            assert found["fits"], (file, model, found)
            assert f"{found['batch_per_rank']} x {found['accumulate']}" == batch, (file, batch, found)
            assert f"{of_device(found['memory_bytes']):.1f}" == stated, (file, model, stated, of_device(found["memory_bytes"]))
            assert found["precision"] == ("fp16" if device == "t4" else "bf16"), (file, found["precision"])
            frozen = found["parameters"] - found["trained_parameters"]  # of a base beside adapters
            assert (found["parameters"] if "_full_" in file.stem else frozen) == MODELS[model][1], (model, found)
    print(f"{len(rows)} files fit")


def test_whole_models(work):
    """Training all parameters: a copy on the host takes no memory of the GPU."""
    common = ["model.family=llama", "optimizer.kind=adamw", "data.train=synthetic", "data.validation="]
    small = planned(work, *common, "model.config=qwen2-0.5b", "data.sequence_length=512", "train.batch_per_rank=1",
                    "train.accumulate=8", "--ranks", 2, "--device", "t4")
    memory = small["memory_bytes"]
    assert small["fits"] and small["batch_that_fits"] >= 1 and of_device(memory) < 9.5, small
    assert memory["total_on_host"] == memory["checkpoint"] + memory["loader"] + memory["node_buffers"], memory
    assert memory["total_on_host"] + memory["total_on_device"] == memory["total"], memory
    large = planned(work, *common, f"model.config={work}/Qwen2.5-7B.json", "data.sequence_length=1024", "train.batch_per_rank=1",
                    "model.recompute=block", "train.shard=optimizer", "--ranks", 8, "--device", "h100")
    assert large["fits"] and 50 < of_device(large["memory_bytes"]) < 60, large
    print("7 billion parameters fit into 8 H100 with shards of the optimizer")


def test_families():
    for file in FOLDER.glob("*.yaml"):
        other = "model.family=resnet" if file.stem.endswith("_llm") else "model.family=llama"
        done = plan("data.train=synthetic", other, file)
        assert done.returncode == 2 and "hardware file is for models of the family" in done.stderr, (file, done.stderr)
    print("files for other families are refused")


def main():
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for model, (config, _) in MODELS.items():
            (work / f"{model}.json").write_text(json.dumps(config))
        test_families()
        if "has no CUDA backend" in plan("data.train=synthetic", "--device", "h200").stderr:
            print("skipped: plans for GPUs need a build with CUDA")
            sys.exit(77)
        os.environ.pop("LOCKSTEP_AUTO_PRECISION", None)
        test_table(work)
        test_whole_models(work)


main()
