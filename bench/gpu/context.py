"""The report of the GPU checks, and running commands for them. check.py has the rest."""
import copy
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time

import harness

GRACE = 1.04        # a running check is ended after this multiple of it
EXIT_UNFINISHED = 75
PASSED, FAILED, NOT_RUN, CUT_SHORT = "passed", "failed", "not run", "cut short"
REJECTED = "rejected"  # a figure of --quick that was measured while the device was throttled or waited for data
QUIET = ["log.progress=false", "log.tensorboard=false"]
SMALL = [*harness.SYNTHETIC, "data.image_size=32", "data.synthetic_samples=512", "device=cuda", "train.global_batch=64",
         "train.max_steps=8", "log.every_steps=1", "checkpoint.every_epochs=0", *QUIET]
CONFIG = harness.RESNET_CONFIG
LANGUAGE_SMALL = ["data.validation=", "data.sequence_length=128", "train.global_batch=8", "log.every_steps=1",
                  "checkpoint.every_epochs=0", *QUIET]
LANGUAGE_CONFIG = "jobs/configs/gpt_small_shakespeare.yaml"


class Item:
    """One check: `work(context)` returns (passed, text), and a dict of figures if it measures some. The options are for
    --quick: the planned seconds, the limit after which it is ended, whether it may run beside others, and whether its
    figures count only if the device was not throttled."""

    def __init__(self, name, work, seconds=0, limit=math.inf, parallel=False, is_timed=False):
        self.name, self.work, self.seconds, self.limit = name, work, seconds, limit
        self.parallel, self.is_timed = parallel, is_timed


class Skip(Exception):
    """The check cannot run here; the message says why."""


class Failure(Exception):
    """The check failed; the message says why."""


class CutShort(Exception):
    """The time of the part was up while the check ran."""


def outcome(item, context):
    """Runs a check; returns (status, text, figures)."""
    try:
        passed, text, *figures = item.work(context)
        return PASSED if passed else FAILED, text, figures[0] if figures else {}
    except Skip as reason:
        return NOT_RUN, str(reason), {}
    except Failure as failure:
        return FAILED, str(failure), {}
    except CutShort:
        return CUT_SHORT, "the time was up; rerun the command to resume", {}
    except Exception as error:  # noqa: BLE001  an unexpected error fails this check but does not end the others
        return FAILED, f"{type(error).__name__}: {error}", {}


def print_line(line):
    """Prints a line as a whole: checks of --quick print at the same time."""
    print(f"{line}\n", end="", flush=True)


class Context:
    def __init__(self, args):
        self.args = args
        self.build = pathlib.Path(args.build).resolve()
        self.binary = self.build / "lockstep"
        run = harness.ROOT.parent / "run"  # in a bundle (scripts/bundle.sh): runs programs with its libraries
        self.launcher = [str(run)] if os.access(run, os.X_OK) and (harness.ROOT.parent / "openmpi").exists() else []
        self.results = pathlib.Path(args.results).resolve()
        self.report = {"parts": {}, "figures": {}}
        self.outputs = None       # a file to which the output of every command is appended
        self.item_end = math.inf  # when the running check reaches its limit
        self.hung = False         # it did
        self.children = set()     # running commands
        self.ended = threading.Event()
        self.begin_part()

    def begin_part(self):
        self.begin = time.monotonic()

    def seconds(self):
        return time.monotonic() - self.begin

    def copy_for(self, item, outputs):
        """A context for one check of --quick, which may run beside others."""
        own = copy.copy(self)
        own.outputs, own.item_end = outputs, time.monotonic() + item.limit
        return own

    def run(self, command, limit=400, launcher=None, **environment):
        """Returns the status and output of a command. Raises Failure if it takes longer than `limit` seconds."""
        command = [*(self.launcher if launcher is None else launcher), *command]
        left = GRACE * self.args.seconds - self.seconds()
        if left <= 0 or self.ended.is_set():
            raise CutShort
        limit = max(0, min(limit, self.item_end - time.monotonic()))
        print_line("  $ " + " ".join(map(str, command)))
        # One GPU is used. Algorithms are not timed, except in `speed`, which sets its own cache.
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        settings = dict(harness.environment(4), CUDA_VISIBLE_DEVICES=gpu, LOCKSTEP_CACHE="none")
        settings.update(environment)
        # A file instead of a pipe, because a child that outlives the command would keep the pipe open.
        kept = dict(mode="a+", errors="replace")
        with open(self.outputs, **kept) if self.outputs else tempfile.TemporaryFile(**kept) as captured:
            print("$", " ".join(map(str, command)), file=captured, flush=True)
            begin = captured.tell()
            child = subprocess.Popen([str(c) for c in command], cwd=harness.ROOT, stdout=captured, stderr=subprocess.STDOUT,
                                     stdin=subprocess.DEVNULL, env=settings, start_new_session=True)
            self.children.add(child)
            try:
                status = child.wait(min(limit, left))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end_group(child)
                self.children.discard(child)
            captured.seek(begin)
            output = captured.read()
        if self.ended.is_set() or (status is None and left < limit):
            raise CutShort
        if status is None:
            self.hung = True
            raise Failure(f"the command did not end within {limit:.0f} s: {tail(output)}")
        return status, output

    def end_children(self):
        self.ended.set()
        for child in list(self.children):
            end_group(child)

    def output(self, command, **options):
        """The output of a command that must succeed."""
        status, output = self.run(command, **options)
        if status:
            raise Failure(tail(output))
        return output

    def train(self, folder, name, overrides, ranks=1, config=CONFIG, base=tuple(SMALL), **environment):
        launch = harness.mpirun(ranks) if ranks > 1 else []
        self.output([*launch, self.binary, "train", config, *base, *overrides, f"run.directory={folder}",
                     f"run.name={name}"], **environment)

    def figure(self, key, measure):
        """Returns measure(), which is called only once per report, so that a part that was cut short does not repeat it."""
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
        """Called after each check, so that the next process can resume whatever ends this one."""
        self.results.mkdir(parents=True, exist_ok=True)
        new = self.results / f".{self.name()}.json.new"
        new.write_text(json.dumps(self.report, indent=1) + "\n")
        new.replace(self.results / f"{self.name()}.json")

    def load(self):
        """Loads the report of an earlier run with the same commit on the same GPU, if there is one."""
        try:
            before = json.loads((self.results / f"{self.name()}.json").read_text())
            if before["version"]["commit"] == self.report["version"]["commit"]:
                self.report["parts"], self.report["figures"] = before["parts"], before["figures"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # there is no usable report


def end_group(child):
    """Ends a command and its children, such as the ranks of mpirun and the compilers of torch.compile."""
    def send(what):
        try:
            os.killpg(child.pid, what)
        except ProcessLookupError:
            pass
    # SIGUSR2: a training saves what it has, and mpirun passes it on to its ranks. A process that waits for a hanging device
    # may survive even SIGKILL.
    for what in ([signal.SIGUSR2] if child.poll() is None else []) + [signal.SIGKILL]:
        send(what)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            pass


def tail(output):
    return "\n".join(output.strip().splitlines()[-6:])


def counts_of(found):
    """"2 passed, 0 failed, 1 not run" of a part's items."""
    return ", ".join(f"{n} {status}" for status in (PASSED, FAILED, NOT_RUN, CUT_SHORT, REJECTED)
                     if (n := sum(r["status"] == status for r in found.values())) or status in (PASSED, FAILED))


def write(context, parts, show=True):
    report = context.report
    lines = []
    for part in parts:
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
