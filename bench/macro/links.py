"""All-reduces on the shaped links of the test cluster, compared with their bound and with Open MPI.

The nodes are containers of this machine (test/cluster), one rank each, so they share its cores. The bound of an all-reduce over
N nodes is 2 (N-1)/N x bytes / bandwidth. Each row is measured with 100 MB, by Lockstep's communicator and by MPI_Allreduce
(Open MPI's own choice of algorithm, and its ring) in turn, beside what plain sockets need for the same bytes, and in the training
of ResNet-18, where the buckets are all-reduced while the backward pass runs. Needs root and what `make deps-test` installs for
test/cluster. About 10 minutes.
"""
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import prediction  # noqa: E402

ROOT = harness.ROOT
LINKS = {  # name: bits per second, delay, numbers of nodes
    "1 Gbit/s": (1e9, None, (2, 4, 8)),
    "10 Gbit/s": (10e9, None, (2,)),
    "1 Gbit/s, 200 us": (1e9, "200us", (2, 4, 8)),
}
RING = "OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_allreduce_algorithm=4"
BYTES = 100_000_000


def submit(nodes, command, environment, directory):
    """Runs the command as a job, one task per node, and returns its standard output."""
    output = directory / f"job-{time.time_ns()}.txt"
    script = f"source {ROOT}/modules/site/mini-slurm.sh; {command}"
    job = subprocess.run(["sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=1", f"--output={output}",
                          f"--error={output}.err", f"--wrap={script}"], env=environment, capture_output=True, text=True, check=True,
                         cwd=directory).stdout.strip()
    while True:
        listing = subprocess.run(["scontrol", "show", "job", "-o", job], env=environment, capture_output=True, text=True).stdout
        if "JobState=COMPLETED" in listing:
            return output.read_text()
        if any(f"JobState={state}" in listing for state in ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")):
            harness.stop(f"`{command}` failed on {nodes} nodes: {pathlib.Path(f'{output}.err').read_text()[-2000:]}")
        time.sleep(0.3)


def all_reduces(program, kind, nodes, repetitions, environment, directory):
    settings = f"env {RING} " if kind == "ring" else ""
    mode = "mpi" if kind == "ring" else kind
    command = f"{settings}mpirun --bind-to none -n {nodes} {program} {mode} {BYTES} {repetitions}"
    return json.loads(submit(nodes, command, environment, directory).splitlines()[-1])["seconds"]


def training(binary, nodes, args, environment, directory):
    """The time of each step's all-reduces on the rank that waited least for the others, and their bytes."""
    name = f"run-{time.time_ns()}"
    keys = " ".join([*prediction.OVERRIDES, f"train.batch_per_rank={args.batch}", f"train.max_steps={args.steps}", "log.every_steps=1",
                     f"run.directory={directory}", f"run.name={name}", "log.progress=false", "log.tensorboard=false",
                     "evaluation.every_epochs=0", "checkpoint.every_epochs=0"])
    submit(nodes, f"mpirun --bind-to none -n {nodes} {binary} train {ROOT}/jobs/configs/quickstart.yaml {keys} >&2", environment, directory)
    events = [json.loads(line) for line in (directory / name / "metrics.jsonl").read_text().splitlines()]
    seconds = [event["exchange_seconds"] for event in events if event["event"] == "step"][2:]
    return seconds, json.loads((directory / name / "metrics.json").read_text())["exchanged_bytes"]


def measure(program, link, args):
    bits, delay, sizes = LINKS[link]
    found = []
    with prediction.cluster(max(sizes), f"{bits / 1e6:.0f}mbit", args.subnet, *(["--latency", delay] if delay else [])) as (
            directory, environment):
        for nodes in sizes:
            bound = 2 * (nodes - 1) / nodes * 8 / bits  # seconds per byte
            times = {"lockstep": [], "mpi": [], "ring": [], "tcp": []}
            steps, exchanged = [], 0
            for _ in range(args.rounds):
                for kind, seconds in times.items():
                    seconds += all_reduces(program, kind, nodes, args.repetitions, environment, directory)
                seconds, exchanged = training(args.binary, nodes, args, environment, directory)
                steps += seconds
            found.append({"link": link, "nodes": nodes, "bound_seconds": bound * BYTES, "seconds": times,
                          "training": {"bytes": exchanged, "bound_seconds": bound * exchanged, "seconds": steps}})
            print(f"{link}, {nodes} nodes: {statistics.median(times['lockstep']):.3f} s, bound {bound * BYTES:.3f} s; in training "
                  f"{statistics.median(steps):.3f} s, bound {bound * exchanged:.3f} s", flush=True)
    return found


def row(found):
    def cell(seconds, bound):
        median = statistics.median(seconds)
        return f"{median:.3f} ({min(seconds):.3f} to {max(seconds):.3f})", f"{median / bound:.2f}"

    bound, times, steps = found["bound_seconds"], found["seconds"], found["training"]
    return [found["link"], str(found["nodes"]), f"{bound:.3f}", *cell(times["lockstep"], bound),
            *(f"{statistics.median(times[kind]):.3f}" for kind in ("tcp", "mpi", "ring")),
            f"{steps['bound_seconds']:.3f}", *cell(steps["seconds"], steps["bound_seconds"])]


def main():
    parser = harness.parser(__doc__, name="links", batch=2, steps=8, rounds=2)
    parser.add_argument("--links", nargs="+", default=list(LINKS), choices=list(LINKS))
    parser.add_argument("--repetitions", type=int, default=4, help="all-reduces of 100 MB per round")
    parser.add_argument("--subnet", default="10.78.0")
    args = harness.begin(parser)
    program = pathlib.Path(args.build).resolve() / "bench/macro/all_reduce"
    if not program.exists():
        harness.stop(f"{program} is missing; `make benches BUILD={args.build}` builds it")
    found = [row for link in args.links for row in measure(program, link, args)]
    text = ("Seconds per all-reduce of 100 MB, one rank per node: the median, and the shortest and the longest; and the ratio to the "
            "bound, 2 (N-1)/N x bytes / bandwidth. Plain sockets carry the same bytes and add nothing up. Then the same for all "
            "gradients of a step of ResNet-18 (fp32, "
            f"{args.batch} samples per rank), as the rank measures it that waits least for the others. All nodes share the cores of one machine.\n\n"
            + harness.table(["links", "nodes", "bound", "Lockstep", "ratio", "plain sockets", "Open MPI", "Open MPI's ring", "bound in training",
                             "Lockstep in training", "ratio"], [row(f) for f in found]))
    harness.finish(args, "All-reduces on shaped links", text, bytes=BYTES, results=found)


if __name__ == "__main__":
    main()
