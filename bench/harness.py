"""Shared by the benchmark scripts: arguments, launching, reading metrics, medians, the description of the machine, result
files. A script calls parser(), begin() and finish()."""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
RESNET_CONFIG = "jobs/configs/resnet18_cifar10.yaml"
SYNTHETIC = ["data.train=synthetic", "data.validation="]
COUNTS = {"ranks": None, "threads": "threads of a rank", "batch": "samples per rank", "rounds": None,
          "steps": "steps of a round", "warmup": "the first steps, which are not counted"}


def parser(description, name=None, python=None, **counts):
    """The arguments that scripts share. `name`: that of the result files; `python`: the modules that --python needs;
    `counts`: defaults of entries of COUNTS."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--build", default="build", help="folder with the program lockstep and the benchmarks")
    if python:
        made.add_argument("--python", default="python3", help=f"interpreter with {python}")
    for count, default in counts.items():
        made.add_argument(f"--{count}", type=int, default=default, help=COUNTS[count])
    if name is not None:
        made.add_argument("--name", default=name, help="name of the result files")
    made.add_argument("--results", default=str(RESULTS), help="folder for the result files")
    return made


def begin(made):
    """Reads the arguments, and describes the machine before anything is started."""
    args = made.parse_args()
    args.binary, args.machine = lockstep(args.build), machine()
    return args


def finish(args, title, text, name=None, **data):
    write_results(name or args.name, title, text, {"machine": args.machine, "version": version(args.binary), **data},
                  args.results)


def stop(sentence):
    """Ends the script with one sentence for the user."""
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {sentence}")


def lockstep(build):
    binary = pathlib.Path(build).resolve() / "lockstep"
    if not binary.exists():
        stop(f"{binary} is missing; `make BUILD={build}` builds it")
    return binary


def torch_python(python, also="torchvision"):
    """The interpreter for PyTorch and the version of torch, or None and the reason. `also`: a module that is needed too, or None."""
    modules = ["torch", *([also] if also else [])]
    found = shutil.which(python)
    if not found:
        return None, f"{python} is not a program; set PYTHON=... to a Python with {' and '.join(modules)}"
    check = subprocess.run([found, "-c", f"import {', '.join(modules)}; print(torch.__version__)"], capture_output=True,
                           text=True)
    if check.returncode:
        return None, (f"{found} has no {' and '.join(modules)}; install it (pip install {' '.join(modules)}), or "
                      "set PYTHON=... to an interpreter that has it")
    return found, check.stdout.strip()


def mpirun(ranks):
    return [os.environ.get("MPIRUN", "mpirun"), "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]


def environment(threads):
    """Allows Open MPI to run as root, limits the threads of libraries to those of a rank, and lets `precision: auto` be fp32."""
    return dict(os.environ, LOCKSTEP_AUTO_PRECISION="fp32", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))


def run(command, what, **options):
    """Returns the standard output of the process. A failure ends the script and prints the end of its output."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT, **options)
    if done.returncode:
        print((done.stdout + done.stderr)[-3000:], file=sys.stderr)
        stop(f"{what} failed with status {done.returncode}")
    return done.stdout


def train(binary, ranks, threads, config, overrides, directory, command=None, look=None):
    """Runs one training. Returns its metrics.jsonl as a list, and the Unix time in seconds at which it was launched. `look`
    is called with the run directory before that is removed."""
    name = f"run-{time.time_ns()}"
    launch = [*(command or mpirun(ranks)), binary, "train", config, *overrides, f"cpu.threads={threads}",
              f"run.directory={directory}", f"run.name={name}", "log.progress=false", "log.tensorboard=false"]
    launched = time.time()
    run(launch, "lockstep train", env=environment(threads))
    folder = pathlib.Path(directory) / name
    lines = lines_of(folder)
    if look:
        look(folder)
    shutil.rmtree(folder)
    return lines, launched


def lines_of(folder):
    """RUN/metrics.jsonl as a list."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps(lines):
    return [line for line in lines if line["event"] == "step"]


def steps_of(folder):
    return steps(lines_of(folder))


def train_steps(args, overrides, directory, config=RESNET_CONFIG, ranks=None, threads=None, **options):
    """The reported steps of a training that writes only the checkpoint of its last step, and when it was launched."""
    lines, launched = train(options.pop("binary", args.binary), ranks or args.ranks, threads or args.threads, config,
                            [*overrides, "log.every_steps=1", "checkpoint.every_epochs=0"], directory, **options)
    return steps(lines), launched


def micro(build, program, *arguments, seconds=None, **options):
    """What a program of bench/micro reports, as JSON, with times in seconds. `seconds`: the least time of a benchmark."""
    command = [pathlib.Path(build).resolve() / "bench/micro" / program, *arguments, "--benchmark_format=json",
               *([f"--benchmark_min_time={seconds}"] if seconds else [])]
    found = json.loads(run(command, f"bench/micro/{program}", **options))
    for row in found["benchmarks"]:
        scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}[row["time_unit"]]
        row.update({key: row[key] * scale for key in ("real_time", "cpu_time")})
    return found


PREFILL = r"prefill: (\d+) tokens in ([\d.]+) s.*decoding: (\d+) tokens in \d+ steps and ([\d.]+) s"  # of generate --speed


def write_prompt(file, n_tokens):
    """Each letter of the prompt is a token of tok512.bin, and so is the start of the text."""
    file.write_text("".join("xqzj"[i % 4] for i in range(n_tokens - 2)) + "\n")


def run_rounds(n, sides, what=None, text=None):
    """Runs all sides one after the other, `n` times: {name: results} of {name: function}. Prints `what` of each round."""
    rounds = {name: [] for name in sides}
    for number in range(n):
        for name, run in sides.items():
            rounds[name].append(run())
        if what:
            print(f"round {number + 1} of {n}, {what}:", ", ".join(f"{name} {text(done[-1])}" for name, done in rounds.items()),
                  file=sys.stderr, flush=True)
    return rounds


def median(rounds, key):
    return statistics.median(r[key] for r in rounds)


def ratios(slow, fast):
    """Of the numbers of both lists, round by round: the median, the least and the greatest."""
    of = [a / b for a, b in zip(slow, fast)]
    return statistics.median(of), min(of), max(of)


def scratch():
    return tempfile.TemporaryDirectory(prefix="lockstep-bench.")


def spread(values):
    """Half the distance between the quartiles, relative to the median: how much a repetition typically deviates."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / statistics.median(values)


def machine():
    """The machine according to lscpu and the kernel, and its load before anything was started."""
    listing = ""
    if shutil.which("lscpu"):
        listing = subprocess.run(["lscpu"], capture_output=True, text=True, env=dict(os.environ, LC_ALL="C")).stdout
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in listing.splitlines())}
    flags = facts.get("Flags", "").split()
    with open("/proc/meminfo") as meminfo:
        memory = int(next(line for line in meminfo if line.startswith("MemTotal")).split()[1])
    return {
        "processor": facts.get("Model name", "unknown"),
        "processors": os.cpu_count(),
        "threads_per_core": facts.get("Thread(s) per core", "?"),
        "vectors": "AVX-512 and AMX" if "amx_bf16" in flags else "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "SSE",
        "l2": facts.get("L2 cache", "?"),
        "l3": facts.get("L3 cache", "?"),
        "memory_gib": round(memory / 2**20, 1),
        "virtual": facts.get("Hypervisor vendor", "no"),
        "kernel": os.uname().release,
        "load_before": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d"),
    }


def machine_text(m):
    return (f"{m['processor']}, {m['processors']} processors ({m['threads_per_core']} thread(s) per core), {m['vectors']}, "
            f"L2 {m['l2']}, L3 {m['l3']}, {m['memory_gib']} GiB, virtual: {m['virtual']}, Linux {m['kernel']}; "
            f"load before: {m['load_before']}; {m['date']}.")


def version(binary, launcher=()):
    return json.loads(run([*launcher, binary, "--version", "--json"], "lockstep --version"))


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def write_results(name, title, text, data, folder=RESULTS, show=True):
    """Writes NAME.md for people and NAME.json with all individual figures, and prints the text if `show` is true."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    page = f"# {title}\n\n{text}\n{machine_text(data['machine'])}\n"
    (folder / f"{name}.md").write_text(page)
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    if show:
        print(f"{page}\n{folder / name}.md and .json")
