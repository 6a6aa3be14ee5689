"""The two sides that run.py and startup.py compare, each one function that runs it once, and the figures of rounds, which
language.py uses too."""
import json
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

CONFIG = "jobs/configs/resnet18_cifar10.yaml"
WORKS = {"resnet18": dict(depth=18, stem="cifar", image_size=32, batch=32),
         "resnet50": dict(depth=50, stem="imagenet", image_size=64, batch=16)}


def overrides_of(args):
    """The overrides that turn CONFIG into the requested work."""
    work = WORKS[args.work]
    return ["data.train=synthetic", "data.validation=", f"data.image_size={work['image_size']}",
            f"model.depth={work['depth']}", f"model.stem={work['stem']}", f"precision={args.precision}",
            f"train.batch_per_rank={batch(args)}"]


def ours(binary, directory, args):
    """Runs the normal `lockstep train`, with loader, crop, flip and metrics. Only the checkpoint of the last step is written."""
    overrides = [*overrides_of(args), f"train.max_steps={args.steps}", "log.every_steps=1", "checkpoint.every_epochs=0"]
    lines, launched = harness.train(binary, args.ranks, args.threads, CONFIG, overrides, directory)
    steps = harness.steps(lines)
    seconds = [s["step_seconds"] for s in steps]
    median = statistics.median(seconds[args.warmup:])
    return {
        "median_step_seconds": median,
        "samples_per_second": args.ranks * batch(args) / median,
        "memory_bytes": steps[-1]["memory_bytes"],
        # Step 1 is reported when step 2 has run, since the loss is read one step late.
        "launch_to_first_step_seconds": steps[0]["time_unix"] - seconds[1] - launched,
        "exposed_communication_seconds": statistics.median(s["exposed_communication_seconds"] for s in steps),
        "data_wait_seconds": statistics.median(s["data_wait_seconds"] for s in steps),
        "step_seconds": seconds,
    }


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def batch(args):
    return args.batch or WORKS[args.work]["batch"]


# If a virtual machine shows AMX but not everything that belongs to it, PyTorch's oneDNN ends with an illegal instruction.
# The next lower instruction set is the best that it can use there.
LIMITED = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
limited = False


def run_ranks(command, ranks, threads):
    """Runs the command once per rank, for torch.distributed. Returns the JSON that rank 0 prints last."""
    global limited
    while True:
        environment = dict(harness.environment(threads), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(free_port()), **(LIMITED if limited else {}))
        started = [subprocess.Popen(command, env=dict(environment, RANK=str(rank)), stdout=subprocess.PIPE, text=True)
                   for rank in range(ranks)]
        outputs = [rank.communicate()[0] for rank in started]
        if not limited and any(rank.returncode == -signal.SIGILL for rank in started):
            limited = True
            continue
        if any(rank.returncode for rank in started):
            harness.stop("PyTorch failed; its output is above")
        return json.loads(outputs[0].strip().splitlines()[-1])


def theirs(python, side, args):
    """`side`: a layout, or "LAYOUT, compiled"."""
    layout, _, compiled = side.partition(", ")
    work = WORKS[args.work]
    return run_ranks([python, str(pathlib.Path(__file__).parent / "peer.py"), "--launched", str(time.time()),
                      "--layout", layout, *(["--compile"] if compiled else []), "--depth", str(work["depth"]),
                      "--stem", work["stem"], "--image-size", str(work["image_size"]), "--precision", args.precision,
                      "--batch", str(batch(args)), "--steps", str(args.steps), "--warmup", str(args.warmup),
                      "--threads", str(args.threads)], args.ranks, args.threads)


def median(rounds, key):
    return statistics.median(r[key] for r in rounds)


def shortest(rounds, args):
    """The shortest step of all rounds, which other users of the machine disturbed least."""
    return min(min(r["step_seconds"][args.warmup:]) for r in rounds)


def add_arguments(parser, steps):
    parser.add_argument("--build", default="build", help="folder with the program lockstep")
    parser.add_argument("--python", default="python3", help="interpreter with torch and torchvision")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of a rank")
    parser.add_argument("--work", choices=WORKS, default="resnet18", help="ResNet-18 at 32x32, or ResNet-50 at 64x64")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch", type=int, default=0, help="samples per rank; 0: 32 for ResNet-18, 16 for ResNet-50")
    parser.add_argument("--steps", type=int, default=steps, help="steps of a round")
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not counted")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the result files")
