"""What only a GPU shows, in parts of less than eight minutes each, into one report: RESULTS/GPU.md and .json.

    python3 bench/gpu/check.py PART [PART ...]      or: make gpu-check PART=ops

  ops        every op's tests, which run on the device where there is one
  training   ten steps of ResNet-18 and 50 against PyTorch's fp64 ones; a step recorded and not: the same bits
  ranks      2, 4 and 8 NCCL ranks on the one GPU against one; the same bits on any number of ranks (NCCL_HOME: NCCL 2.30)
  speed      beside PyTorch on the same GPU; the share of each class of work in a step, and the bytes/s that it moves
  sanitizer  compute-sanitizer's memcheck and racecheck on the kernels' tests

What passed with the same commit is kept in the report: started again, a part goes on with what is missing, then with what
failed. Exit status 0: nothing failed, and what could not be run here stands as not run, with the reason; 1: something failed;
75: the time was over, and the same command goes on.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

PART_SECONDS = 450  # nothing new is begun after that ...
GRACE = 1.04        # ... and what runs is ended after so many times as long
PASSED, FAILED, NOT_RUN, CUT_SHORT = "passed", "failed", "not run", "cut short"
EXIT_NOT_OVER = 75
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
# Tests of kernels that use no device.
ON_THE_HOST = ("algorithms_test", "conv2d_layouts_test", "cuda_normalization_test", "cuda_on_host_test",
               "normalization_test", "nvml_test", "nvtx_test", "simd_test")


class Item:
    """One thing to check: `work(context)` returns (passed, figures or a sentence)."""

    def __init__(self, name, work):
        self.name, self.work = name, work


class Skip(Exception):
    """It cannot be run here, and why."""


class Failure(Exception):
    """What was wrong."""


class CutShort(Exception):
    """The part's time was over while it ran."""


class Context:
    def __init__(self, args):
        self.args = args
        self.build = pathlib.Path(args.build).resolve()
        self.binary = self.build / "lockstep"
        run = harness.ROOT.parent / "run"  # of a bundle (scripts/bundle.sh): with its libraries and its mpirun
        self.launcher = [str(run)] if os.access(run, os.X_OK) and (harness.ROOT.parent / "openmpi").exists() else []
        self.results = pathlib.Path(args.results).resolve()
        self.report = {"parts": {}, "figures": {}}
        self.begin_part()

    def begin_part(self):
        self.begin = time.monotonic()

    def seconds(self):
        return time.monotonic() - self.begin

    def run(self, command, limit=400, launcher=None, **environment):
        """Status and output of a command; a failure where it took longer than `limit` seconds."""
        command = [*(self.launcher if launcher is None else launcher), *command]
        left = GRACE * self.args.seconds - self.seconds()
        if left <= 0:
            raise CutShort
        print("  $", " ".join(map(str, command)), flush=True)
        # Of several GPUs one, and nothing is timed but for `speed`, which names a cache of its own.
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        settings = dict(harness.environment(4), CUDA_VISIBLE_DEVICES=gpu, LOCKSTEP_CACHE="none")
        settings.update(environment)
        # Not a pipe: a child that outlives the command would hold it open.
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            child = subprocess.Popen([str(c) for c in command], cwd=harness.ROOT, stdout=said, stderr=subprocess.STDOUT,
                                     stdin=subprocess.DEVNULL, env=settings, start_new_session=True)
            try:
                status = child.wait(min(limit, left))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end_group(child)
            said.seek(0)
            output = said.read()
        if status is None and left < limit:
            raise CutShort
        if status is None:
            raise Failure(f"it did not end within {limit} s: {tail(output)}")
        return status, output

    def train(self, folder, name, overrides, ranks=1, **environment):
        launch = harness.mpirun(ranks) if ranks > 1 else []
        return self.run([*launch, self.binary, "train", CONFIG, *SMALL, *overrides, f"run.directory={folder}",
                         f"run.name={name}"], **environment)

    def figure(self, key, measure):
        """What measure() returns, which is called once for a report: a part that was cut short goes on behind it."""
        figures = self.report["figures"]
        if key not in figures:
            figures[key] = measure()
            self.save()
        return figures[key]

    def forget_figures(self, prefix):
        self.report["figures"] = {k: v for k, v in self.report["figures"].items() if not k.startswith(prefix)}

    def name(self):
        gpu = re.sub("^nvidia ", "", self.report["gpu"]["name"].lower())
        return re.sub(r"[^a-z0-9]+", "-", gpu).strip("-")

    def save(self):
        """After each step: whatever ends this process, the next one goes on from here."""
        self.results.mkdir(parents=True, exist_ok=True)
        new = self.results / f".{self.name()}.json.new"
        new.write_text(json.dumps(self.report, indent=1) + "\n")
        new.replace(self.results / f"{self.name()}.json")

    def take_up(self):
        """What an earlier run with the same commit on the same GPU left."""
        try:
            before = json.loads((self.results / f"{self.name()}.json").read_text())
            if before["version"]["commit"] == self.report["version"]["commit"]:
                self.report["parts"], self.report["figures"] = before["parts"], before["figures"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # there is none


def end_group(child):
    """Ends a command and what it started: mpirun its ranks, torch.compile its compilers."""
    def tell(what):
        try:
            os.killpg(child.pid, what)
        except ProcessLookupError:
            pass
    if child.poll() is None:
        tell(signal.SIGTERM)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            pass
    tell(signal.SIGKILL)
    child.wait()


def tail(output):
    return "\n".join(output.strip().splitlines()[-6:])


def test_item(program, *options, **environment):
    """A test program; one that only skips tests was not run."""
    def work(context):
        status, output = context.run([context.build / program, "--gtest_brief=1", *options], **environment)
        n_passed, n_skipped = (int((re.findall(rf"\[  {what} *\] (\d+) test", output) or [0])[-1])
                               for what in ("PASSED", "SKIPPED"))
        if status:
            return False, tail(output)
        if n_passed == 0:
            raise Skip(tail(output))
        # golden_test: how far each step is from PyTorch's fp64 one, and PyTorch's own runs from each other
        apart = [float(ours) / float(theirs) for ours, theirs in re.findall(r"apart ([\d.e+-]+), PyTorch's ([\d.e+-]+)", output)]
        return True, (f"{n_passed} tests" + (f", {n_skipped} not for this device" if n_skipped else "") +
                      (f"; at most {max(apart):.2f} times PyTorch's own spread away" if apart else ""))
    return work


def kernel_tests(context):
    """{name: [program, option]} of each test of kernels, from the list of tests (scripts/list-tests.sh)."""
    listed = context.build / "test/list"
    rows = [line.split("\t") for line in listed.read_text().splitlines()] if listed.exists() else []
    tests = {pathlib.Path(row[0]).name: [f"test/{row[1]}", f"--gtest_filter={row[2]}"]
             for row in rows if row[0].startswith("kernels/") and row[9].endswith(".cpp")}
    if not tests:
        harness.stop(f"{listed} names no tests; `make tests` builds them, or --build names the folder")
    return {name: tests[name] for name in sorted(tests) if name not in ON_THE_HOST}


def ops(context):
    return [Item(name, test_item(*test, LOCKSTEP_TEST_DEVICE="cuda")) for name, test in kernel_tests(context).items()]


def same_bits(first, second):
    """Both train to a checkpoint; all bytes of all tensors are equal."""
    def work(context):
        with harness.scratch() as folder:
            for name, (overrides, ranks, environment) in (("a", first), ("b", second)):
                status, output = context.train(folder, name, overrides, ranks, **environment)
                if status:
                    return False, tail(output)
            files = [path for name in ("a", "b") for path in pathlib.Path(folder, name, "checkpoints").glob("step-*.h5")]
            if len(files) != 2:
                raise Failure(f"each of both trainings writes one checkpoint; found {len(files)}")
            status, output = context.run([context.binary, "checkpoint", "diff", *files])
            return status == 0, "the same bits" if status == 0 else tail(output)
    return work


def training(context):
    items = [Item(f"{network}, {precision}, as PyTorch's fp64",
                  test_item("test/train_test", f"--gtest_filter=*{network}_{precision}", LOCKSTEP_TEST_DEVICE="cuda"))
             for network in NETWORKS for precision in PRECISIONS]
    fixed = ["reproducible=true"]
    items += [Item(f"{precision}: a recorded step gives the bits of one that is not",
                   same_bits((fixed + [f"precision={precision}"], 1, {}),
                             (fixed + [f"precision={precision}", "cuda.graph=false"], 1, {})))
              for precision in PRECISIONS]
    return items


def nccl(work):
    def checked(context):
        if not os.environ.get("NCCL_HOME"):
            raise Skip("NCCL_HOME names no NCCL 2.30 or newer, which several ranks on one GPU need")
        found = re.match(r"NCCL (\d+)\.(\d+)", context.report["gpu"]["nccl"])
        if not found or tuple(map(int, found.groups())) < (2, 30):
            raise Skip(f"several ranks on one GPU need NCCL 2.30 or newer in NCCL_HOME: {context.report['gpu']['nccl']}")
        return work(context)
    return checked


SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def ranks(context):
    def agree(n):
        def work(context):
            status, output = context.run([*harness.mpirun(n), context.build / "test/train_test", "--gtest_filter=Ranks.*"],
                                         LOCKSTEP_TEST_DEVICE="cuda", **SHARED_GPU)
            return status == 0, tail(output)
        return nccl(work)
    tree = ["reproducible=true", "train.micro_batches=8", "precision=fp16"]
    items = [Item(f"{n} ranks agree with one", agree(n)) for n in (2, 4, 8)]
    return items + [Item(f"train.micro_batches: {n} ranks give the bits of one",
                         nccl(same_bits((tree, 1, {}), (tree, n, SHARED_GPU)))) for n in (2, 4, 8)]


def speed_overrides(work):
    return ["data.train=synthetic", "data.validation=", f"data.image_size={work['image_size']}", "device=cuda",
                 f"data.synthetic_samples={2 * work['batch']}", f"model.depth={work['depth']}",
                 f"model.classes={1000 if work['stem'] == 'imagenet' else 10}", f"model.stem={work['stem']}",
                 f"precision={work['precision']}", f"train.global_batch={work['batch']}", "train.epochs=20",
                 "train.max_steps=40", "log.every_steps=1", "checkpoint.every_epochs=0", "data.augment=[]",
                 "data.readers=8", "data.prefetch=8"]  # noise of 224 x 224 is slower to make than to train on


def timed_training(context, work, folder, *more):
    """With ways that are timed, which a cache of the build keeps."""
    status, output = context.run([context.binary, "train", CONFIG, *speed_overrides(work), f"run.directory={folder}",
                                  "run.name=speed", "log.progress=false", "log.tensorboard=false", *more],
                                 LOCKSTEP_CACHE=str(context.build / "gpu-check-cache"))
    if status:
        raise Failure(tail(output))


def ours(context, work):
    with harness.scratch() as folder:
        timed_training(context, work, folder)
        lines = [json.loads(line) for line in pathlib.Path(folder, "speed/metrics.jsonl").read_text().splitlines()]
    steps = harness.steps(lines)[10:]
    if len(steps) < 10:
        raise Failure(f"metrics.jsonl tells of {len(steps)} steps after the first 10; 30 were to be run")
    return {"samples_per_second": work["batch"] / statistics.median(step["step_seconds"] for step in steps),
            "memory_bytes": steps[-1]["memory_bytes"],
            "data_wait": sum(step["data_wait_seconds"] for step in steps) / sum(step["step_seconds"] for step in steps)}


def kind_of(name, description):
    """The class of a layer of `lockstep plan`, from its name and from how it runs."""
    last = name.split(".")[-1] if not name.endswith("downsample.1") else "bn"
    if description.startswith("conv2d"):
        return "convolutions with what is fused into them"
    if description.startswith("matmul"):
        return "linear"
    return "batch norm" if last.startswith("bn") else "pooling" if "pool" in last else last


def layers_of(plan):
    """{layer: (class, MB moved forward, MB moved backward, MB that fusion saves)} of what `lockstep plan` prints; 0: it
    does not say."""
    layers, told = {}, False
    for line in plan.splitlines():
        told = told or line.startswith("How each layer runs")
        found = re.match(r"  (\S+) +(\S.*)", line)
        if told and found:
            moved = re.search(r"moves ([\d.]+) MB forward, ([\d.]+) MB backward", found[2])
            forward, backward = map(float, moved.groups()) if moved else (0.0, 0.0)
            passes = re.search(r"\(by passes ([\d.]+) and ([\d.]+)\)", found[2])
            saved = sum(map(float, passes.groups())) - forward - backward if passes else 0.0
            layers[found[1]] = (kind_of(*found.groups()), forward, backward, saved)
    return layers


def device_spans(events):
    """{(category, name): median seconds} of the row `device`, of its later half."""
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    spans = {}
    for e in events:
        if e.get("ph") == "X" and rows.get((e["pid"], e["tid"])) == "device":
            spans.setdefault((e["cat"], e["name"]), []).append(e["dur"] * 1e-6)
    return {key: statistics.median(seconds[len(seconds) // 2:]) for key, seconds in spans.items()}


def peer(context, python, mode, *options, limit=240):
    """What bench/gpu/peer.py found with PyTorch, or {"problem": why it did not}."""
    try:
        status, output = context.run([python, pathlib.Path(__file__).parent / "peer.py", "--mode", mode, *options],
                                     limit=limit, launcher=[])
        return json.loads(output.strip().splitlines()[-1]) if status == 0 else {"problem": tail(output)}
    except (Failure, ValueError, IndexError) as problem:
        return {"problem": str(problem)}


def copy_rate(context, python):
    """Bytes/s that the device reads and writes when it copies; None where that fails."""
    return peer(context, python, "copy", limit=120).get("copy_bytes_per_second")


def where_time_goes(context, work):
    """Share of a step's time on the device by class of work, and the bytes/s of the convolutions' units."""
    with harness.scratch() as folder:
        timed_training(context, work, folder, "trace=true", "train.max_steps=24")
        events = json.loads(pathlib.Path(folder, "speed/trace.json").read_text())["traceEvents"]
    status, plan = context.run([context.binary, "plan", CONFIG, *speed_overrides(work)],
                               LOCKSTEP_CACHE=str(context.build / "gpu-check-cache"))
    if status:
        raise Failure(tail(plan))
    layers, spans = layers_of(plan), device_spans(events)
    if not spans:
        raise Failure("trace.json has no row `device`")
    shares, moved, moving = {}, 0.0, 0.0
    for (category, name), seconds in spans.items():
        kind, *megabytes, _ = layers.get(name, (name, 0.0, 0.0, 0.0))
        kind = f"{kind}, {category}" if name in layers else f"{category}: {name}"
        shares[kind] = shares.get(kind, 0.0) + seconds
        if megabytes[category == "backward"] > 0:
            moved += 1e6 * megabytes[category == "backward"]
            moving += seconds
    return {"seconds": shares, "bytes_per_second": moved / moving if moving else 0.0,
            "moved_megabytes": sum(forward + backward for _, forward, backward, _ in layers.values()),
            "saved_megabytes": sum(layer[3] for layer in layers.values())}


def theirs(context, python, mode, work):
    return peer(context, python, mode, "--depth", work["depth"], "--stem", work["stem"], "--image-size", work["image_size"],
                "--precision", work["precision"], "--batch", work["batch"])


def speed(context):
    def measure(name, work):
        def checked(context):
            python, version = harness.torch_python(context.args.python)
            # Ours before and after the others: clocks and temperature move.
            first = context.figure(f"{name}: ours, first", lambda: ours(context, work))
            if not python:
                raise Skip(f"ours {first['samples_per_second']:.0f} images/s; {version}")
            modes = {mode: context.figure(f"{name}: PyTorch, {mode}", lambda mode=mode: theirs(context, python, mode, work))
                     for mode in ("eager", "compile", "graph")}
            again = context.figure(f"{name}: ours, again", lambda: ours(context, work))
            mine = (first["samples_per_second"] + again["samples_per_second"]) / 2
            problems = "".join(f"; {mode}: {x['problem']}" for mode, x in modes.items() if "problem" in x)
            good = {mode: x for mode, x in modes.items() if "problem" not in x}
            if not good:
                raise Failure(f"ours {mine:.0f} images/s; PyTorch failed{problems}")
            mode, best = max(good.items(), key=lambda side: side[1]["samples_per_second"])
            ratio = mine / best["samples_per_second"]
            return ratio >= work["least"], (f"{mine:.0f} images/s, PyTorch {best['torch']} {best['samples_per_second']:.0f} "
                                            f"({mode}): {ratio:.2f} times, {work['least']} wanted; memory "
                                            f"{first['memory_bytes'] / best['memory_bytes']:.2f} times; "
                                            f"{100 * again['data_wait']:.1f} % of our steps waited for data{problems}")
        return checked

    def split(work):
        def checked(context):
            found = where_time_goes(context, work)
            python, version = harness.torch_python(context.args.python)
            rate = context.figure("copy rate", lambda: copy_rate(context, python)) if python else None
            step = sum(found["seconds"].values())
            parts = sorted(found["seconds"].items(), key=lambda part: -part[1])
            text = ", ".join(f"{kind} {100 * seconds / step:.1f} %" for kind, seconds in parts)
            of_rate = f", {100 * found['bytes_per_second'] / rate:.0f} % of the {rate * 1e-9:.0f} of a copy" if rate else ""
            text = (f"{1e3 * step:.2f} ms of a step that is not recorded: {text}; convolutions move "
                    f"{found['bytes_per_second'] * 1e-9:.0f} GB/s{of_rate}, {found['moved_megabytes']:.0f} MB a step; fusion "
                    f"saves {found['saved_megabytes']:.0f} MB")
            if not python:
                raise Skip(f"{text}; what a copy moves PyTorch tells: {version}")
            return True, text
        return checked
    return [item for name, work in SPEEDS.items()
            for item in (Item(name, measure(name, work)), Item(f"{name}: where the time goes", split(work)))]


def compute_sanitizer():
    beside = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/compute-sanitizer"
    return shutil.which("compute-sanitizer") or (str(beside) if beside.exists() else None)


def sanitizer(context):
    def check(tool, test):
        def work(context):
            program = compute_sanitizer()
            if not program:
                raise Skip("compute-sanitizer is neither on PATH nor in CUDA_HOME/bin")
            # Races inside cuDNN and cuBLASLt are not ours to find: kernels whose mangled name holds our namespace.
            ours = ["--kernel-name", "kns=lockstep"] if tool == "racecheck" else []
            status, output = context.run([program, "--tool", tool, "--error-exitcode", "9", *ours, context.build / test[0],
                                          *test[1:], "--gtest_brief=1"], LOCKSTEP_TEST_DEVICE="cuda")
            summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY.*)", output)
            return status == 0 and bool(summary), summary[-1] if summary and status in (0, 9) else tail(output)
        return work
    return [Item(f"{tool}: {name}", check(tool, test)) for tool in ("memcheck", "racecheck")
            for name, test in kernel_tests(context).items()]


PARTS = {"ops": ops, "training": training, "ranks": ranks, "speed": speed, "sanitizer": sanitizer}


def gpu(context):
    """What `lockstep gpu-info` says of the first GPU and its libraries, and why none can be used, or None."""
    done = subprocess.run([*context.launcher, context.binary, "gpu-info", "--json"], capture_output=True, text=True, cwd=harness.ROOT)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        harness.stop(f"`{context.binary} gpu-info --json` ended with status {done.returncode} and no answer: {tail(done.stderr)}")
    if not found["usable"]:
        problems = [found["problem"]] + [library["problem"] for library in found["libraries"].values()]
        return {}, "this machine has no GPU that Lockstep can use: " + "; ".join(p for p in problems if p)
    return {**found["gpus"][0], **{key: found[key] for key in ("driver", "built_with_cuda", "libraries", "nccl")}}, None


def counts_of(found):
    """"2 passed, 0 failed, 1 not run" of a part's items."""
    return ", ".join(f"{n} {status}" for status in (PASSED, FAILED, NOT_RUN, CUT_SHORT)
                     if (n := sum(r["status"] == status for r in found.values())) or status in (PASSED, FAILED))


def write(context, show=True):
    report = context.report
    lines = []
    for part in PARTS:
        found = report["parts"].get(part, {})
        lines += [f"## {part}: {counts_of(found) if found else NOT_RUN}", ""]
        if found:
            lines += [harness.table(["", "", "seconds", ""], [
                [item, r["status"], f"{r['seconds']:.0f}", r["text"].replace("|", "\\|").replace("\n", "<br>")]
                for item, r in found.items()])]
    device = report["gpu"]
    libraries = ", ".join(f"{name} {library['version']}" for name, library in device["libraries"].items())
    text = (f"{device['name']}, {device['memory_bytes'] / 2**30:.0f} GiB; driver {device['driver']}, {libraries}, "
            f"{device['nccl']}. Lockstep {report['version']['commit']}. Made by `make gpu-check`.\n\n" + "\n".join(lines))
    harness.write_results(context.name(), f"On {device['name']}", text, report, context.results, show)


def check(item, context, is_first):
    """(status, text)"""
    n_figures = len(context.report["figures"])
    try:
        passed, text = item.work(context)
        return PASSED if passed else FAILED, text
    except Skip as reason:
        return NOT_RUN, str(reason)
    except Failure as failure:
        return FAILED, str(failure)
    except CutShort:
        # What had a part for itself and did not get on would never be done.
        if is_first and len(context.report["figures"]) == n_figures:
            return FAILED, f"it takes longer than the {context.args.seconds:.0f} s of a part"
        return CUT_SHORT, "the part's time was over; the same command takes it up again"
    except Exception as error:  # noqa: BLE001  what nobody thought of is a failed item, and not the end of the part
        return FAILED, f"{type(error).__name__}: {error}"


def run_part(part, context):
    """True when nothing is left to do."""
    items = PARTS[part](context)
    before = context.report["parts"].get(part, {})
    done = {item.name: before[item.name] for item in items if item.name in before}
    context.report["parts"][part] = done
    context.begin_part()

    def status_of(item):
        return done.get(item.name, {}).get("status")

    todo = [item for item in items if status_of(item) != PASSED]
    todo.sort(key=lambda item: status_of(item) == FAILED)  # at last: they may fail again, and take the time of others
    for number, item in enumerate(todo):
        if context.seconds() > context.args.seconds:
            print(f"{part}: {context.args.seconds:.0f} s are over; the same command goes on from here")
            return False
        if status_of(item) == FAILED:
            context.forget_figures(item.name + ": ")
        print(f"{part}: {item.name}", flush=True)
        begin = time.monotonic()
        status, text = check(item, context, number == 0)
        done[item.name] = {"status": status, "seconds": time.monotonic() - begin, "text": text}
        print(f"  {status}: {text}", flush=True)
        context.report["parts"][part] = {i.name: done[i.name] for i in items if i.name in done}
        context.save()
        write(context, show=False)
    return all(status_of(item) != CUT_SHORT for item in items)


def say_what_would_run(context, problem):
    """The dry run: what is here, and each item."""
    _, torch = harness.torch_python(context.args.python)
    print(f"GPU: {problem or context.report['gpu']['name']}")
    print(f"NCCL_HOME: {os.environ.get('NCCL_HOME') or 'not set, so `ranks` would stand as not run'}")
    print(f"PyTorch: {torch}")
    print(f"compute-sanitizer: {compute_sanitizer() or 'not installed, so `sanitizer` would stand as not run'}")
    for part in context.args.parts:
        for item in PARTS[part](context):
            print(f"{part}: {item.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", metavar="PART", choices=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--build", default="build", help="folder with the program and its tests")
    parser.add_argument("--python", default=os.environ.get("PYTHON", "python3"), help="interpreter with torch, for `speed`")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the report")
    parser.add_argument("--seconds", type=float, default=PART_SECONDS, help="of a part; nothing new is begun after that")
    parser.add_argument("--dry-run", action="store_true", help="say what is here and what would be run")
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # what runs is ended too
        signal.signal(number, lambda *_: sys.exit("ended by a signal; the same command goes on"))
    context = Context(args)
    if not context.binary.exists():
        harness.stop(f"{context.binary} is missing; `make` builds it, or --build names the folder")
    context.report["gpu"], problem = gpu(context)
    if args.dry_run:
        return say_what_would_run(context, problem)
    if problem:
        harness.stop(problem)
    try:
        context.results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=context.results):
            pass
    except OSError as reason:
        harness.stop(f"the report cannot be written: {reason}; --results names another folder")
    context.report.update(machine=harness.machine(), version=harness.version(context.binary, context.launcher))
    if not args.fresh:
        context.take_up()
    is_over = [run_part(part, context) for part in args.parts]
    write(context)
    failed = [item for part in args.parts for item, r in context.report["parts"][part].items() if r["status"] == FAILED]
    for part in args.parts:
        print(f"{part}: {counts_of(context.report['parts'][part])}")
    sys.exit(EXIT_NOT_OVER if not all(is_over) else 1 if failed else 0)


if __name__ == "__main__":
    main()
