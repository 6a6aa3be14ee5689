"""What only a GPU shows, in parts of less than eight minutes each, into one report: RESULTS/GPU.md and .json.

    python3 bench/gpu/check.py PART [PART ...]      or: make gpu-check PART=ops

  ops        every op's tests, which run on the device where there is one
  training   ten steps of ResNet-18 and 50 against PyTorch's fp64 ones; a step recorded and not: the same bits
  ranks      2, 4 and 8 NCCL ranks on the one GPU against one; the same bits on any number of ranks (NCCL_HOME: NCCL 2.30)
  speed      beside PyTorch on the same GPU
  sanitizer  compute-sanitizer's memcheck and racecheck on the kernels' tests

What was done with the same commit is kept: started again, a part goes on with what is missing or failed.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

PART_SECONDS = 450  # nothing new is begun after that
NOT_RUN = "not run"
NETWORKS = ("resnet18_32", "resnet50_64")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# What is timed: the smallest ratio to PyTorch's best that we hold ourselves to.
SPEEDS = {
    "ResNet-50, 224x224, batch 256, fp16": dict(depth=50, stem="imagenet", image_size=224, batch=256, precision="fp16", least=1.5),
    "ResNet-50, 224x224, batch 256, bf16": dict(depth=50, stem="imagenet", image_size=224, batch=256, precision="bf16", least=1.2),
    "ResNet-18, 32x32, batch 512, fp16": dict(depth=18, stem="cifar", image_size=32, batch=512, precision="fp16", least=1.5),
    "ResNet-18, 32x32, batch 512, bf16": dict(depth=18, stem="cifar", image_size=32, batch=512, precision="bf16", least=1.5),
}
SMALL = ["data.train=synthetic", "data.validation=", "data.image_size=32", "data.synthetic_samples=512", "device=cuda",
         "train.global_batch=64", "train.max_steps=8", "log.every_steps=1", "checkpoint.every_epochs=0", "log.progress=false",
         "log.tensorboard=false"]
CONFIG = "jobs/configs/resnet18_cifar10.yaml"


class Item:
    """One thing to check: `work(context)` returns (passed, figures or a sentence); it raises Skip with a reason."""

    def __init__(self, name, work):
        self.name, self.work = name, work


class Skip(Exception):
    pass


class Context:
    def __init__(self, args):
        self.args = args
        self.build = pathlib.Path(args.build).resolve()
        self.binary = self.build / "lockstep"
        self.deadline = time.monotonic() + PART_SECONDS

    def run(self, command, limit=400, **environment):
        """Status and output of a command; 124 where it took longer than what is left."""
        left = max(10, min(limit, self.deadline + 25 - time.monotonic()))
        print("  $", " ".join(map(str, command)), flush=True)
        try:
            done = subprocess.run([str(c) for c in command], cwd=harness.ROOT, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=left,
                                  env=dict(harness.environment(4), **environment))
        except subprocess.TimeoutExpired as late:
            output = late.stdout or b""
            return 124, output.decode(errors="replace") if isinstance(output, bytes) else output
        return done.returncode, done.stdout

    def train(self, folder, name, overrides, ranks=1, **environment):
        launch = harness.mpirun(ranks) if ranks > 1 else []
        return self.run([*launch, self.binary, "train", CONFIG, *SMALL, *overrides, f"run.directory={folder}",
                         f"run.name={name}"], **environment)


def tail(output):
    return "\n".join(output.strip().splitlines()[-6:])


def test_item(program, *options, **environment):
    def work(context):
        status, output = context.run([context.build / program, "--gtest_brief=1", *options], **environment)
        ran = re.search(r"\[==========\] (\d+) tests?", output)
        if status == 0 and ran and int(ran.group(1)) == 0:
            raise Skip("no such test")
        return status == 0, f"{ran.group(1)} tests" if status == 0 and ran else tail(output)
    return work


def kernel_tests(context):
    return sorted(p.relative_to(context.build) for p in (context.build / "test/kernels").glob("*_test"))


def ops(context):
    return [Item(test.name, test_item(test, LOCKSTEP_TEST_DEVICE="cuda")) for test in kernel_tests(context)]


def same_bits(first, second):
    """Both train to a checkpoint; all bytes of all tensors are equal."""
    def work(context):
        with harness.scratch() as folder:
            for name, (overrides, ranks, environment) in (("a", first), ("b", second)):
                status, output = context.train(folder, name, overrides, ranks, **environment)
                if status:
                    return False, tail(output)
            files = [next(pathlib.Path(folder, name, "checkpoints").glob("step-*.h5")) for name in ("a", "b")]
            status, output = context.run([context.binary, "checkpoint", "diff", *files])
            return status == 0, "the same bits" if status == 0 else tail(output)
    return work


def training(context):
    items = [Item(f"{network}, {precision}, as PyTorch's fp64",
                  test_item("test/train/golden_test", f"--gtest_filter=*{network}_{precision}", LOCKSTEP_TEST_DEVICE="cuda"))
             for network in NETWORKS for precision in PRECISIONS]
    fixed = ["reproducible=true"]
    items += [Item(f"{precision}: a recorded step gives the bits of one that is not",
                   same_bits((fixed + [f"precision={precision}"], 1, {}),
                             (fixed + [f"precision={precision}", "cuda.graph=false"], 1, {})))
              for precision in PRECISIONS]
    return items


def nccl(work):
    def checked(context):
        home = os.environ.get("NCCL_HOME", "")
        if not home:
            raise Skip("NCCL_HOME names no NCCL 2.30 or newer, which several ranks on one GPU need")
        return work(context)
    return checked


SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def ranks(context):
    def agree(n):
        def work(context):
            status, output = context.run([*harness.mpirun(n), context.build / "test/train/ranks_test"],
                                         LOCKSTEP_TEST_DEVICE="cuda", **SHARED_GPU)
            return status == 0, tail(output)
        return nccl(work)
    tree = ["reproducible=true", "train.micro_batches=8", "precision=fp16"]
    items = [Item(f"{n} ranks agree with one", agree(n)) for n in (2, 4, 8)]
    return items + [Item(f"train.micro_batches: {n} ranks give the bits of one",
                         nccl(same_bits((tree, 1, {}), (tree, n, SHARED_GPU)))) for n in (2, 4, 8)]


def ours(context, work):
    overrides = ["data.train=synthetic", "data.validation=", f"data.image_size={work['image_size']}", "device=cuda",
                 f"data.synthetic_samples={2 * work['batch']}", f"model.depth={work['depth']}",
                 f"model.classes={1000 if work['stem'] == 'imagenet' else 10}", f"model.stem={work['stem']}",
                 f"precision={work['precision']}", f"train.global_batch={work['batch']}", "train.epochs=20",
                 "train.max_steps=40", "log.every_steps=1", "checkpoint.every_epochs=0", "data.augment=[]"]
    with harness.scratch() as folder:
        status, output = context.run([context.binary, "train", CONFIG, *overrides, f"run.directory={folder}", "run.name=speed",
                                      "log.progress=false", "log.tensorboard=false"])
        if status:
            return None, tail(output)
        lines = [json.loads(line) for line in pathlib.Path(folder, "speed/metrics.jsonl").read_text().splitlines()]
        seconds = sorted(line["step_seconds"] for line in harness.steps(lines)[10:])
        return {"samples_per_second": work["batch"] / seconds[len(seconds) // 2],
                "memory_bytes": harness.steps(lines)[-1]["memory_bytes"]}, ""


def speed(context):
    def measure(work):
        def checked(context):
            python, version = harness.torch_python(context.args.python)
            mine, why = ours(context, work)
            if mine is None:
                return False, why
            if not python:
                return False, f"ours {mine['samples_per_second']:.0f} images/s; {version}"
            theirs = {}
            for mode in ("eager", "compile", "graph"):
                status, output = context.run(
                    [python, pathlib.Path(__file__).parent / "peer.py", "--mode", mode, "--depth", work["depth"], "--stem",
                     work["stem"], "--image-size", work["image_size"], "--precision", work["precision"], "--batch",
                     work["batch"]], limit=200)
                if status == 0:
                    theirs[mode] = json.loads(output.strip().splitlines()[-1])
            if not theirs:
                return False, f"ours {mine['samples_per_second']:.0f} images/s; PyTorch failed: {tail(output)}"
            again, _ = ours(context, work)  # after the others: clocks and temperature have moved
            figure = max(x["samples_per_second"] for x in (mine, again or mine))
            mode, best = max(theirs.items(), key=lambda side: side[1]["samples_per_second"])
            ratio = figure / best["samples_per_second"]
            return ratio >= work["least"], (f"{figure:.0f} images/s, PyTorch {best['torch']} {best['samples_per_second']:.0f} "
                                            f"({mode}): {ratio:.2f} times, {work['least']} wanted; memory "
                                            f"{mine['memory_bytes'] / best['memory_bytes']:.2f} times")
        return checked
    return [Item(name, measure(work)) for name, work in SPEEDS.items()]


def sanitizer(context):
    def check(tool, test):
        def work(context):
            program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
            if not pathlib.Path(program).exists():
                raise Skip("compute-sanitizer is not installed")
            status, output = context.run([program, "--tool", tool, "--error-exitcode", "9", context.build / test,
                                          "--gtest_brief=1"], LOCKSTEP_TEST_DEVICE="cuda")
            summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY.*)", output)
            return status == 0, summary[-1] if summary else tail(output)
        return work
    return [Item(f"{tool}: {test.name}", check(tool, test)) for tool in ("memcheck", "racecheck")
            for test in kernel_tests(context)]


PARTS = {"ops": ops, "training": training, "ranks": ranks, "speed": speed, "sanitizer": sanitizer}


def gpu(context):
    """What `lockstep gpu-info` says of device 0."""
    done = subprocess.run([context.binary, "gpu-info", "--json"], capture_output=True, text=True, cwd=harness.ROOT)
    try:
        return json.loads(done.stdout)["devices"][0]
    except (ValueError, KeyError, IndexError):
        harness.stop("this machine has no GPU that Lockstep can use: " + (done.stderr or done.stdout).strip())


def write(report, folder):
    name = re.sub(r"[^a-z0-9]+", "-", report["gpu"]["name"].lower()).strip("-")
    lines = []
    for part in PARTS:
        found = report["parts"].get(part, {})
        counts = [sum(r["status"] == s for r in found.values()) for s in ("passed", "failed", NOT_RUN)]
        lines += [f"## {part}: {counts[0]} passed, {counts[1]} failed, {counts[2]} not run" if found else f"## {part}: {NOT_RUN}",
                  ""]
        if found:
            lines += [harness.table(["", "", "seconds", ""], [[item, r["status"], f"{r['seconds']:.0f}",
                                                             r["text"].replace("\n", "<br>")] for item, r in found.items()])]
    device = report["gpu"]
    text = f"{device['name']}, {device.get('memory_bytes', 0) / 2**30:.0f} GiB. Made by `make gpu-check`.\n\n" + "\n".join(lines)
    harness.write_results(name, f"On {device['name']}", text, report, folder)


def run_part(part, context, report):
    done = report["parts"].setdefault(part, {})
    for item in PARTS[part](context):
        if done.get(item.name, {}).get("status") == "passed":
            continue
        if time.monotonic() > context.deadline:
            print(f"{part}: {PART_SECONDS} s are over; the same command goes on from here")
            return False
        print(f"{part}: {item.name}", flush=True)
        begin = time.monotonic()
        try:
            passed, text = item.work(context)
            status = "passed" if passed else "failed"
        except Skip as reason:
            status, text = NOT_RUN, str(reason)
        done[item.name] = {"status": status, "seconds": time.monotonic() - begin, "text": text}
        print(f"  {status}: {text}", flush=True)
        write_json(report, context)
    return True


def state_file(context):
    return pathlib.Path(context.args.results) / ".gpu-check.json"


def write_json(report, context):
    state_file(context).parent.mkdir(parents=True, exist_ok=True)
    state_file(context).write_text(json.dumps(report))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", metavar="PART", choices=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--build", default="build", help="folder with the program and its tests")
    parser.add_argument("--python", default=os.environ.get("PYTHON", "python3"), help="interpreter with torch, for `speed`")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the report")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run")
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    args = parser.parse_args()
    context = Context(args)
    if not context.binary.exists():
        harness.stop(f"{context.binary} is missing; `make` builds it, or --build names the folder")
    if args.dry_run:
        for part in args.parts:
            for item in PARTS[part](context):
                print(f"{part}: {item.name}")
        return
    report = {"gpu": gpu(context), "machine": harness.machine(), "version": harness.version(context.binary), "parts": {}}
    if state_file(context).exists() and not args.fresh:
        before = json.loads(state_file(context).read_text())
        if before["version"]["commit"] == report["version"]["commit"] and before["gpu"]["name"] == report["gpu"]["name"]:
            report["parts"] = before["parts"]
    finished = True
    for part in args.parts:
        context.deadline = time.monotonic() + PART_SECONDS
        finished &= run_part(part, context, report)
    write(report, args.results)
    failed = [item for part in args.parts for item, r in report["parts"][part].items() if r["status"] == "failed"]
    sys.exit(1 if failed or not finished else 0)


if __name__ == "__main__":
    main()
