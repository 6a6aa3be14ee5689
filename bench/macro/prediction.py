"""The cost model of `lockstep scaling` on the test cluster: fitted to 1, 2 and 4 nodes, it predicts 8.

The nodes are containers of this machine (test/cluster). Each may use 0.2 of a core (--cores), so that 8 of them fit on two
cores, and their links are shaped to each bandwidth. Each bandwidth gets a cluster of its own and a weak study of ResNet-18
with one rank per node. The prediction is written before the cases of 8 nodes run. --figures writes the charts of the first
study. Needs root and what `make deps-test` installs for test/cluster. About 8 minutes per bandwidth.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLUSTER = str(ROOT / "test/cluster/mini-slurm")
OVERRIDES = ["model.depth=18", "model.width=64", "data.train=synthetic", "data.validation=synthetic", "data.image_size=32",
             "data.readers=1", "device=cpu", "cpu.threads=1", "precision=fp32", "comm.watchdog_seconds=600"]
ACCEPTED = ["--accept", "neighbours", "--accept", "warm-up"]  # the nodes share cores, also with other programs


def cluster_environment(directory):
    """The variables of the cluster and of its site file, for programs on this machine."""
    environment = {**os.environ, "MINI_SLURM_DIR": str(directory), "LOCKSTEP_CACHE": str(directory / "cache")}
    exports = subprocess.run([CLUSTER, "env"], env=environment, capture_output=True, text=True, check=True).stdout
    script = f"{exports}\nsource {shlex.quote(str(ROOT / 'modules/site/mini-slurm.sh'))}\nenv -0"
    text = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def run_study(binary, study, nodes, args, environment, directory):
    """Submits the study, and repeats the command until all cases are finished."""
    command = [binary, "scaling", "run", str(ROOT / "jobs/configs/quickstart.yaml"), *OVERRIDES,
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


def measure(binary, bandwidth, args, directory):
    environment = {**os.environ, "MINI_SLURM_DIR": str(directory / "slurm")}
    up = [CLUSTER, "up", "--nodes", "8", "--gpus", "0", "--cpus", "4", "--cores", args.cores, "--subnet", args.subnet,
          "--bandwidth", bandwidth]
    subprocess.run(up, env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        environment = cluster_environment(directory / "slurm")
        study = directory / "study"
        run_study(binary, study, "1,2,4", args, environment, directory)
        report(binary, study, "--predict", "8")
        run_study(binary, study, "1,2,4,8", args, environment, directory)
        if args.figures and bandwidth == args.bandwidths[0]:
            report(binary, study, "--format", "html", "--output", str(directory / "report.html"), "--figures", args.figures)
        return json.loads(report(binary, study, "--format", "json"))
    finally:
        subprocess.run([CLUSTER, "down"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder with the program lockstep")
    parser.add_argument("--bandwidths", nargs="+", default=["1gbit", "300mbit"])
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank")
    parser.add_argument("--cores", default="0.2", help="processor time of a node; 0: all nodes share the cores")
    parser.add_argument("--figures", help="folder for the charts of the study with the first bandwidth")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--subnet", default="10.79.0")
    parser.add_argument("--name", default="prediction", help="name of the result files")
    parser.add_argument("--results", default=str(harness.RESULTS), help="folder for the result files")
    args = parser.parse_args()
    binary = str(pathlib.Path(harness.lockstep(args.build)).resolve())
    machine = harness.machine()
    rows, reports = [], {}
    for bandwidth in args.bandwidths:
        with harness.scratch() as directory:
            os.chmod(directory, 0o755)  # munge requires that everybody can reach its socket
            found = measure(binary, bandwidth, args, pathlib.Path(directory))
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
    harness.write_results(args.name, "Predictions of the cost model", text,
                          {"machine": machine, "version": harness.version(binary), "cores_per_node": args.cores, "steps": args.steps, "repeats": args.repeat, "reports": reports},
                          args.results)


if __name__ == "__main__":
    main()
