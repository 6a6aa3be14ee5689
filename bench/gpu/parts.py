"""The checks of the parts ops, training, ranks and sanitizer."""
import os
import pathlib
import re
import shutil

import harness
from context import Failure, Item, Skip, tail

NETWORKS = ("resnet18_32", "resnet50_64")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# Tests of kernels that do not use a device.
ON_THE_HOST = ("algorithms_test", "backend_test", "conv2d_layouts_test", "conv2d_op_test", "conv2d_widened_test",
               "conv2d_winograd_test", "cuda_attention_test", "cuda_divide_test", "cuda_library_test", "cuda_normalization_test",
               "cuda_on_host_test", "cuda_plan_test", "max_isa_avx2_test", "max_isa_avx512_test",
               "normalization_test", "nvml_test", "nvtx_test", "product_test", "simd_test")


def test_item(program, *options, **environment):
    """A check that runs a test program. If the program only skips tests, the check counts as not run."""
    def work(context):
        status, output = context.run([context.build / program, "--gtest_brief=1", *options], **environment)
        n_passed, n_skipped = (int((re.findall(rf"\[  {what} *\] (\d+) test", output) or [0])[-1])
                               for what in ("PASSED", "SKIPPED"))
        if status:
            return False, tail(output)
        if n_passed == 0:
            raise Skip(tail(output))
        # golden_test prints the distance of each step from PyTorch in fp64, and the distance between runs of PyTorch.
        apart = [float(ours) / float(theirs) for ours, theirs in re.findall(r"apart ([\d.e+-]+), PyTorch's ([\d.e+-]+)", output)]
        return True, (f"{n_passed} tests" + (f", {n_skipped} skipped on this device" if n_skipped else "") +
                      (f"; the distance is at most {max(apart):.2f} times the spread of PyTorch" if apart else ""))
    return work


def kernel_tests(context):
    """{name: [program, option]} of each test of kernels, from the list of tests (scripts/list-tests.sh)."""
    listed = context.build / "test/list"
    rows = [line.split("\t") for line in listed.read_text().splitlines()] if listed.exists() else []
    tests = {pathlib.Path(row[0]).name: [f"test/{row[1]}", f"--gtest_filter={row[2]}"]
             for row in rows if row[0].startswith("kernels/") and row[1] == "kernels_test"}
    if not tests:
        harness.stop(f"{listed} names no tests; `make tests` builds them, or --build names the folder")
    return {name: tests[name] for name in sorted(tests) if name not in ON_THE_HOST}


def op_items(context, names=None):
    """A check for each test of kernels, or for those of `names`."""
    tests = kernel_tests(context)
    return [Item(name, test_item(*tests[name], LOCKSTEP_TEST_DEVICE="cuda")) for name in names or tests if name in tests]


def golden_item(name, tests):
    return Item(f"{name} in fp64", test_item("test/train_test", f"--gtest_filter={tests}", LOCKSTEP_TEST_DEVICE="cuda"))


def ops(context):
    return op_items(context)


def same_bits(first, second, **base):
    """A check that two trainings write checkpoints whose tensors are equal byte by byte. `base`: see Context.train."""
    def work(context):
        with harness.scratch() as folder:
            for name, (overrides, ranks, environment) in (("a", first), ("b", second)):
                context.train(folder, name, overrides, ranks, **base, **environment)
            files = [path for name in ("a", "b") for path in pathlib.Path(folder, name, "checkpoints").glob("step-*.h5")]
            if len(files) != 2:
                raise Failure(f"expected one checkpoint of each training, found {len(files)}")
            status, output = context.run([context.binary, "checkpoint", "diff", *files])
            return status == 0, "the same bits" if status == 0 else tail(output)
    return work


def training(context):
    items = [golden_item(f"{network}, {precision}, compared with PyTorch", f"*{network}_{precision}")
             for network in NETWORKS for precision in PRECISIONS]
    fixed = ["reproducible=true"]
    items += [Item(f"{precision}: captured and uncaptured steps give the same bits",
                   same_bits((fixed + [f"precision={precision}"], 1, {}),
                             (fixed + [f"precision={precision}", "cuda.graph=false"], 1, {})))
              for precision in PRECISIONS]

    def streams(name, *overrides):
        return Item(f"{name}: weight gradients on a second stream give the same bits",
                    same_bits(*(([*fixed, *overrides, f"cuda.weight_gradient_stream={stream}"], 1, {}) for stream in ("off", "on"))))
    items += [streams(precision, f"precision={precision}") for precision in PRECISIONS]
    return items + [streams("fp16, uncaptured", "precision=fp16", "cuda.graph=false")]


def nccl(work):
    def checked(context):
        if not os.environ.get("NCCL_HOME"):
            raise Skip("several ranks on one GPU need NCCL 2.30 or newer, but NCCL_HOME is not set")
        found = re.match(r"NCCL (\d+)\.(\d+)", context.report["gpu"]["nccl"])
        if not found or tuple(map(int, found.groups())) < (2, 30):
            raise Skip(f"several ranks on one GPU need NCCL 2.30 or newer, but NCCL_HOME has {context.report['gpu']['nccl']}")
        return work(context)
    return checked


# Two ranks share the GPU. The kernels of their collectives wait for each other, so both must find room on it.
RANKS = 2
SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}


def blocking_calls(context):
    """The time of a step with and without comm.nccl_blocking, where the host calls NCCL in every step: for each bucket,
    and twice for each norm. Trainings in the two modes alternate. No ratio is required; it decides the default."""
    eager = ["precision=fp16", "batch_norm.synchronize=true", "cuda.graph=false", "train.max_steps=60", "data.readers=4"]
    seconds = {}
    for _ in range(3):
        for mode in ("false", "true"):
            with harness.scratch() as folder:
                context.train(folder, "eager", [*eager, f"comm.nccl_blocking={mode}"], RANKS, **SHARED_GPU)
                steps = harness.steps_of(pathlib.Path(folder, "eager"))[20:]
            if not steps:
                raise Failure("metrics.jsonl has no steps after the first 20")
            seconds.setdefault(mode, []).append(harness.median(steps, "step_seconds"))
    threads, blocking = (min(seconds[mode]) for mode in ("false", "true"))
    return True, (f"{1e3 * threads:.2f} ms per uncaptured step with a thread per call of NCCL, {1e3 * blocking:.2f} ms with "
                  f"comm.nccl_blocking: {threads / blocking:.2f} times as fast")


def ranks(context):
    def agree():
        def work(context):
            status, output = context.run([*harness.mpirun(RANKS), context.build / "test/train_test", "--gtest_filter=Ranks.*"],
                                         LOCKSTEP_TEST_DEVICE="cuda", **SHARED_GPU)
            return status == 0, tail(output)
        return nccl(work)
    tree = ["reproducible=true", "train.micro_batches=8", "precision=fp16"]
    return [Item(f"{RANKS} ranks agree with one rank", agree()),
            Item("NCCL's threads for calls that do not block", nccl(blocking_calls)),
            Item(f"train.micro_batches: {RANKS} ranks give the same bits as one",
                 nccl(same_bits((tree, 1, {}), (tree, RANKS, SHARED_GPU))))]


def compute_sanitizer():
    in_toolkit = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/compute-sanitizer"
    return shutil.which("compute-sanitizer") or (str(in_toolkit) if in_toolkit.exists() else None)


def sanitized(tool, test):
    def work(context):
        program = compute_sanitizer()
        if not program:
            raise Skip("compute-sanitizer is neither on PATH nor in CUDA_HOME/bin")
        # Races inside cuDNN and cuBLASLt are out of scope: only kernels of our namespace are checked.
        options = ["--kernel-name", "kns=lockstep"] if tool == "racecheck" else []
        status, output = context.run([program, "--tool", tool, "--error-exitcode", "9", *options, context.build / test[0],
                                      *test[1:], "--gtest_brief=1"], LOCKSTEP_TEST_DEVICE="cuda")
        summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY.*)", output)
        return status == 0 and bool(summary), summary[-1] if summary and status in (0, 9) else tail(output)
    return work


def sanitizer(context):
    return [Item(f"{tool}: {name}", sanitized(tool, test)) for tool in ("memcheck", "racecheck")
            for name, test in kernel_tests(context).items()]
