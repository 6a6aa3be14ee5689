"""The cost model of `lockstep scaling` on the test cluster: fitted to 1, 2 and 4 nodes, it predicts 8.

The nodes are containers of this machine (test/cluster). Each may use 0.2 of a core (--cores), so that 8 of them fit on two
cores, and their links are shaped to each bandwidth. Each bandwidth gets a cluster of its own and a weak study of ResNet-18
with one rank per node. The prediction is written before the cases of 8 nodes run. --figures writes the charts of the first
study. Needs root and what `make deps-test` installs for test/cluster. About 8 minutes per bandwidth.
"""
import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402

CLUSTER = str(harness.ROOT / "test/cluster/mini-slurm")
OVERRIDES = ["model.depth=18", "model.width=64", "data.train=synthetic", "data.validation=synthetic", "data.image_size=32",
             "data.readers=1", "device=cpu", "cpu.threads=1", "precision=fp32", "comm.watchdog_seconds=600"]
ACCEPTED = ["--accept", "neighbours", "--accept", "warm-up"]  # the nodes share cores, also with other programs


@contextlib.contextmanager
def cluster(nodes, bandwidth, subnet, *options):
    """A cluster of its own: a folder for files, and the variables of the cluster and of its site file, for programs here."""
    with harness.scratch() as folder:
        os.chmod(folder, 0o755)  # munge requires that everybody can reach its socket
        slurm = pathlib.Path(folder, "slurm")
        environment = {**os.environ, "MINI_SLURM_DIR": str(slurm)}
        up = [CLUSTER, "up", "--nodes", str(nodes), "--gpus", "0", "--cpus", "4", "--subnet", subnet, "--bandwidth", bandwidth]
        subprocess.run([*up, *options], env=environment, check=True, stdout=subprocess.DEVNULL)
        try:
            environment["LOCKSTEP_CACHE"] = str(slurm / "cache")
            exports = subprocess.run([CLUSTER, "env"], env=environment, capture_output=True, text=True, check=True).stdout
            script = f"{exports}\nsource {shlex.quote(str(harness.ROOT / 'modules/site/mini-slurm.sh'))}\nenv -0"
            text = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout
            yield pathlib.Path(folder), dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
        finally:
            subprocess.run([CLUSTER, "down"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run_study(binary, study, nodes, args, environment, directory):
    """Submits the study, and repeats the command until all cases are finished."""
    command = [binary, "scaling", "run", str(harness.ROOT / "jobs/configs/quickstart.yaml"), *OVERRIDES,
               f"train.batch_per_rank={args.batch}", "--weak", "--out", str(study), "--nodes", nodes, "--ranks-per-node", "1",
               "--repeat", str(args.repeat), "--steps", str(args.steps), "--warmup", str(args.warmup)]
    while True:
        done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True)
        found = re.search(r"(\d+) of (\d+) cases are finished", done.stdout)
        if not found:
            harness.stop(f"the study failed: {done.stdout}{done.stderr}")
        print(found.group(0), flush=True)
        if found.group(1) == found.group(2):
            return
        time.sleep(10)


def report(binary, study, *options):
    command = [binary, "scaling", "report", str(study), *ACCEPTED, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def measure(binary, bandwidth, args):
    with cluster(8, bandwidth, args.subnet, "--cores", args.cores) as (directory, environment):
        study = directory / "study"
        run_study(binary, study, "1,2,4", args, environment, directory)
        report(binary, study, "--predict", "8")
        run_study(binary, study, "1,2,4,8", args, environment, directory)
        if args.figures and bandwidth == args.bandwidths[0]:
            report(binary, study, "--format", "html", "--output", str(directory / "report.html"), "--figures", args.figures)
        return json.loads(report(binary, study, "--format", "json"))


def main():
    parser = harness.parser(__doc__, name="prediction", batch=8, steps=20, warmup=4)
    parser.add_argument("--bandwidths", nargs="+", default=["1gbit", "300mbit"])
    parser.add_argument("--cores", default="0.2", help="processor time of a node; 0: all nodes share the cores")
    parser.add_argument("--figures", help="folder for the charts of the study with the first bandwidth")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--subnet", default="10.79.0")
    args = harness.begin(parser)
    rows, reports = [], {}
    for bandwidth in args.bandwidths:
        found = measure(str(args.binary), bandwidth, args)
        del found["directory"]  # it has been removed
        reports[bandwidth] = found
        predicted = found["predictions"][0]
        measured = {size["nodes"]: size["figures"]["step_seconds"] for size in found["sizes"]}
        seconds = measured[8]["mean"]
        rows.append([bandwidth, *(f"{measured[n]['mean']:.3f}" for n in (1, 2, 4)), f"{predicted['step_seconds']:.3f}",
                     f"{predicted['interval_low']:.3f} to {predicted['interval_high']:.3f}",
                     f"{seconds:.3f} ({measured[8]['minimum']:.3f} to {measured[8]['maximum']:.3f})",
                     f"{100 * (predicted['step_seconds'] / seconds - 1):+.1f} %"])
    text = (f"ResNet-18, 32x32, fp32, weak scaling with {args.batch} samples per rank, one rank per node; {args.repeat} repeats of "
            f"{args.steps} steps, of which the first {args.warmup} do not count. Seconds per step. The nodes are containers of one "
            f"machine, each with {args.cores} of a core, so this is about the model and the shaped links, and not about speed.\n\n"
            + harness.table(["links", "1 node", "2 nodes", "4 nodes", "8 nodes, predicted", "95 % interval", "8 nodes, measured",
                             "difference"], rows))
    harness.finish(args, "Predictions of the cost model", text, cores_per_node=args.cores, steps=args.steps,
                   repeats=args.repeat, reports=reports)


if __name__ == "__main__":
    main()
