"""Checks what can only be checked on a GPU, in parts of less than eight minutes each, and writes one report to RESULTS.

    python3 bench/gpu/check.py PART [PART ...]      or: make gpu-check PART=ops
    python3 bench/gpu/check.py --quick              the most important checks of all parts, for a first quarter of an hour

  ops        the tests of all ops on the GPU
  training   ten steps of ResNet-18 and 50 compared with PyTorch in fp64; captured and uncaptured steps, and weight gradients
             on one stream and on two, give the same bits
  ranks      2 NCCL ranks on one GPU compared with one rank; the same bits on both numbers of ranks (needs NCCL 2.30)
  speed      the speed compared with PyTorch on the same GPU; the time of a step with weight gradients on one stream and on
             two; where the time of a step goes, and the bytes/s that it moves
  lm-ops     the tests of the ops of language models on the GPU
  lm-training  ten steps of small language models compared with PyTorch in fp64, and twenty with those on the CPU; captured
             steps, recomputation and ranks give the same bits
  lm-speed   the speed of Qwen2.5-0.5B and SmolLM-135M in bf16 compared with PyTorch and with the matmul rate; what
             recomputation saves and costs; where the time of a step goes
  lora       the ops of adapters and of NF4; ten steps with adapters compared with PEFT in fp64, and twenty with those on the
             CPU; captured steps, recomputation and ranks give the same bits; speed and memory
  generate   text generated on the GPU compared with transformers and in batches; the speed of decoding and prefill
  sanitizer  memcheck and racecheck of compute-sanitizer on the tests of the kernels

Results of the same commit are kept in the report. If a part is started again, it resumes with the checks that are missing
and then repeats those that failed. Exit status 0: nothing failed; checks that cannot run here are marked "not run", with
the reason. 1: a check failed. 75: the time was up; rerun the command to resume.
"""
import argparse
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, sys.path[0] + "/..")
import generation  # noqa: E402
import harness  # noqa: E402
import language  # noqa: E402
import lora  # noqa: E402
import parts  # noqa: E402
import quick  # noqa: E402
import speed  # noqa: E402
from context import CUT_SHORT, EXIT_UNFINISHED, FAILED, GRACE, PASSED, Context, counts_of, outcome, tail, write  # noqa: E402

PART_SECONDS = 450  # no further check is started after this time
PARTS = {"ops": parts.ops, "training": parts.training, "ranks": parts.ranks, "speed": speed.speed,
         "lm-ops": language.lm_ops, "lm-training": language.lm_training, "lm-speed": language.lm_speed,
         "lora": lora.lora, "generate": generation.generation, "sanitizer": parts.sanitizer}


def name_libraries(python):
    """CUDNN_HOME and NCCL_HOME, unless they are set, name the copies of PyTorch's wheels, where there are any."""
    try:
        found = subprocess.run([python, "-c", "import nvidia; print(list(nvidia.__path__)[0])"], capture_output=True, text=True)
    except OSError:
        return
    for variable, folder in (("CUDNN_HOME", "cudnn"), ("NCCL_HOME", "nccl")):
        home = pathlib.Path(found.stdout.strip(), folder)
        if found.returncode == 0 and home.exists():
            os.environ.setdefault(variable, str(home))


def gpu(context):
    """(The first GPU and its libraries according to `lockstep gpu-info`, the reason why it cannot be used or None)."""
    try:
        done = subprocess.run([*context.launcher, context.binary, "gpu-info", "--json"], capture_output=True, text=True,
                              cwd=harness.ROOT, timeout=60)
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        harness.stop("`lockstep gpu-info` did not end within 60 s: the GPU or its driver does not answer")
    except ValueError:
        harness.stop(f"`{context.binary} gpu-info --json` ended with status {done.returncode} and printed no JSON: {tail(done.stderr)}")
    if not found["usable"]:
        problems = [found["problem"]] + [library["problem"] for library in found["libraries"].values()]
        return {}, "this machine has no GPU that Lockstep can use: " + "; ".join(p for p in problems if p)
    return {**found["gpus"][0], **{key: found[key] for key in ("driver", "built_with_cuda", "libraries", "nccl")}}, None


def check(item, context, is_first):
    """Runs a check; returns (status, text)."""
    n_figures = len(context.report["figures"])
    status, text, _ = outcome(item, context)
    # A check that made no progress although it had the part to itself would never finish.
    if status == CUT_SHORT and is_first and len(context.report["figures"]) == n_figures:
        return FAILED, f"the check takes longer than the {context.args.seconds:.0f} s of a part"
    return status, text


def run_part(part, context):
    """Runs a part; returns True if nothing is left to do."""
    items = PARTS[part](context)
    before = context.report["parts"].get(part, {})
    done = {item.name: before[item.name] for item in items if item.name in before}
    context.report["parts"][part] = done
    context.begin_part()

    def status_of(item):
        return done.get(item.name, {}).get("status")

    todo = [item for item in items if status_of(item) != PASSED]
    todo.sort(key=lambda item: status_of(item) == FAILED)  # last, because they may fail again and take the time of others
    for number, item in enumerate(todo):
        if context.seconds() > context.args.seconds:
            print(f"{part}: the {context.args.seconds:.0f} s are up; rerun the command to resume")
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
        write(context, PARTS, show=False)
    return all(status_of(item) != CUT_SHORT for item in items)


def print_plan(context, problem):
    """The dry run: prints what is available, and each check."""
    _, torch = harness.torch_python(context.args.python, **({"also": "math"} if context.args.quick else {}))
    print(f"GPU: {problem or context.report['gpu']['name']}")
    print(f"NCCL_HOME: {os.environ.get('NCCL_HOME') or 'not set, so `ranks` would not run'}")
    print(f"PyTorch: {torch}")
    print(f"compute-sanitizer: {parts.compute_sanitizer() or 'not installed, so `sanitizer` would not run'}")
    for part in context.args.parts:
        for item in PARTS[part](context):
            print(f"{part}: {item.name}")
    if context.args.quick:
        items = quick.selected(context)
        for item in items:
            print(f"{item.seconds:5.1f} s  {item.name}")
        print(f"{sum(item.seconds for item in items):5.0f} s planned for {len(items)} checks")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="the checks for a first quarter of an hour on a GPU, instead of parts")
    parser.add_argument("--minutes", type=float, default=8, help="--quick: time of one call; rerun the command to resume")
    parser.add_argument("--only", metavar="REGEX", default="", help="--quick: only the checks whose name matches")
    parser.add_argument("--jobs", type=int, default=8, help="--quick: test programs that run at once")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="SECONDS", help="--quick: the longest time of a check")
    parser.add_argument("--build", default="build", help="folder with the program and its tests")
    parser.add_argument("--python", default=os.environ.get("PYTHON", "python3"), help="interpreter with torch, for `speed`")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the report")
    parser.add_argument("--seconds", type=float, default=PART_SECONDS, help="time of a part; no further check is started after it")
    parser.add_argument("--dry-run", action="store_true", help="print what is available and what would run")
    parser.add_argument("--fresh", action="store_true", help="ignore the results of earlier runs")
    args = parser.parse_args()
    for part in args.parts:
        if part not in PARTS:
            parser.error(f"argument PART: invalid choice: '{part}' (choose from {', '.join(map(repr, PARTS))})")
    if args.quick == bool(args.parts):
        parser.error("the following arguments are required: PART, or --quick instead")
    try:
        re.compile(args.only)
    except re.error as problem:
        parser.error(f"argument --only: invalid regular expression: {problem}")
    if args.quick:
        args.seconds = 60 * args.minutes / GRACE
        name_libraries(args.python)
    for number in (signal.SIGTERM, signal.SIGINT):  # also ends the running command
        signal.signal(number, lambda *_: sys.exit("ended by a signal" + ("" if args.quick else "; rerun the command to resume")))
    context = Context(args)
    if not context.binary.exists():
        harness.stop(f"{context.binary} is missing; `make` builds it, or --build names the folder")
    context.report["gpu"], problem = gpu(context)
    if args.dry_run:
        return print_plan(context, problem)
    if problem:
        harness.stop(problem)
    try:
        context.results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=context.results):
            pass
    except OSError as reason:
        harness.stop(f"the report cannot be written: {reason}; --results names another folder")
    context.report.update(machine=harness.machine(), version=harness.version(context.binary, context.launcher))
    if args.quick:
        sys.exit(quick.quick(context))
    if not args.fresh:
        context.load()
    finished = [run_part(part, context) for part in args.parts]
    write(context, PARTS)
    failed = [item for part in args.parts for item, r in context.report["parts"][part].items() if r["status"] == FAILED]
    for part in args.parts:
        print(f"{part}: {counts_of(context.report['parts'][part])}")
    sys.exit(EXIT_UNFINISHED if not all(finished) else 1 if failed else 0)


if __name__ == "__main__":
    main()
