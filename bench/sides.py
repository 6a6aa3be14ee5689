"""The two sides that peers/run.py and peers/startup.py compare, each one function that runs it once, and the figures of
rounds, which peers/language.py and scripts of macro/ use too."""
import json
import signal
import socket
import statistics
import subprocess
import time

import harness

WORKS = {"resnet18": dict(depth=18, stem="cifar", image_size=32, batch=32),
         "resnet50": dict(depth=50, stem="imagenet", image_size=64, batch=16)}


def overrides_of(args):
    """The overrides that turn harness.RESNET_CONFIG into the requested work."""
    work = WORKS[args.work]
    return [*harness.SYNTHETIC, f"data.image_size={work['image_size']}", f"model.depth={work['depth']}",
            f"model.stem={work['stem']}", f"precision={args.precision}", f"train.batch_per_rank={batch(args)}"]


def figures(steps, args):
    """Of the steps that `lockstep train` reported."""
    counted = steps[args.warmup:]
    return {"median_step_seconds": harness.median(counted, "step_seconds"), "memory_bytes": steps[-1]["memory_bytes"],
            "exposed_communication_seconds": harness.median(counted, "exposed_communication_seconds"),
            "data_wait_seconds": harness.median(counted, "data_wait_seconds"),
            "step_seconds": [step["step_seconds"] for step in steps]}


def ours(directory, args, **options):
    """Runs the normal `lockstep train`, with loader, crop, flip and metrics."""
    steps, launched = harness.train_steps(args, [*overrides_of(args), f"train.max_steps={args.steps}"], directory, **options)
    found = figures(steps, args)
    return {**found, "samples_per_second": args.ranks * batch(args) / found["median_step_seconds"],
            # Step 1 is reported when step 2 has run, since the loss is read one step late.
            "launch_to_first_step_seconds": steps[0]["time_unix"] - steps[1]["step_seconds"] - launched}


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


def start_ranks(command, ranks, threads):
    """Runs a script with PyTorch once per rank, for torch.distributed. Returns the JSON that rank 0 prints last."""
    global limited
    while True:
        environment = dict(harness.environment(threads), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(free_port()), **(LIMITED if limited else {}))
        started = [subprocess.Popen(list(map(str, command)), env=dict(environment, RANK=str(rank)),
                                    stdout=subprocess.PIPE, text=True) for rank in range(ranks)]
        outputs = [rank.communicate()[0] for rank in started]
        if not limited and any(rank.returncode == -signal.SIGILL for rank in started):
            limited = True
            continue
        if any(rank.returncode for rank in started):
            harness.stop("PyTorch failed; its output is above")
        return json.loads(outputs[0].strip().splitlines()[-1])


def run_ranks(python, kind, options, args, ranks=None, threads=None):
    """The same with peers/peer.py."""
    threads = threads or args.threads
    return start_ranks([python, harness.ROOT / "bench/peers/peer.py", kind, "--steps", args.steps, "--warmup", args.warmup,
                        "--threads", threads, *options], ranks or args.ranks, threads)


def theirs(python, side, args):
    """`side`: a layout, or "LAYOUT, compiled"."""
    layout, _, compiled = side.partition(", ")
    work = WORKS[args.work]
    return run_ranks(python, "resnet", ["--launched", time.time(), "--layout", layout, *(["--compile"] if compiled else []),
                                        "--depth", work["depth"], "--stem", work["stem"], "--image-size", work["image_size"],
                                        "--precision", args.precision, "--batch", batch(args)], args)


def shortest(rounds, args):
    """The shortest step of all rounds, which other users of the machine disturbed least."""
    return min(min(r["step_seconds"][args.warmup:]) for r in rounds)


def speeds(rounds, args):
    """The cells of a table that all comparisons have: the time of a step, its spread, and the shortest one."""
    seconds = [r["median_step_seconds"] for r in rounds]
    digits = 3 if statistics.median(seconds) < 1 else 2
    return [f"{statistics.median(seconds):.{digits}f}", f"{100 * harness.spread(seconds):.1f} %",
            f"{shortest(rounds, args):.{digits}f}"]


def speed_text(ours, other, args):
    """How many times as fast a step is than in the other rounds, in each round and by the shortest steps."""
    _, least, most = harness.ratios(*([r["median_step_seconds"] for r in rounds] for rounds in (other, ours)))
    return f"in single rounds {least:.2f} to {most:.2f}; by the shortest step of each side {shortest(other, args) / shortest(ours, args):.2f}"


def parser(description, steps, **options):
    made = harness.parser(description, python="torch and torchvision", ranks=2, threads=1, steps=steps, warmup=3, **options)
    made.add_argument("--work", choices=WORKS, default="resnet18", help="ResNet-18 at 32x32, or ResNet-50 at 64x64")
    made.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    made.add_argument("--batch", type=int, default=0, help="samples per rank; 0: 32 for ResNet-18, 16 for ResNet-50")
    return made
