# timeout: 300
"""RUN/trace.json of whole runs: valid, complete for each rank, in order and nested, on one clock; resumed and stopped.

LOCKSTEP is the program in its build folder.
"""

import collections
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

LOCKSTEP = os.environ.get("LOCKSTEP", "build/lockstep")
MPIRUN = os.environ.get("MPIRUN", "mpirun")
SMALL = ["data.train=synthetic", "data.validation=synthetic", "data.image_size=8", "data.synthetic_samples=64",
         "train.global_batch=16", "train.epochs=2", "comm.bucket_mb=8", "cpu.threads=1", "trace=true",
         "log.tensorboard=false", "log.progress=false"]
KINDS = {"step", "forward", "backward", "update", "wait", "all-reduce", "read", "evaluation", "checkpoint"}


def start(directory, name, *overrides, ranks=2, **environment):
    if os.getuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), LOCKSTEP, "train", *SMALL,
               f"run.directory={directory}", f"run.name={name}", *overrides]
    return subprocess.Popen(command, env=os.environ | {"OMP_WAIT_POLICY": "passive"} | environment)


def run(*args, **kwargs):
    status = start(*args, **kwargs).wait()
    assert status == 0, status


def read(directory, name):
    run_directory = pathlib.Path(directory) / name
    assert not list(run_directory.glob("*.part*")), "parts are left"
    with open(run_directory / "trace.json") as file:
        return json.load(file)


def rows_of(trace):
    """{(rank, thread): its spans}, after checking that they are in order and nested."""
    rows = collections.defaultdict(list)
    names = {}
    for event in trace["traceEvents"]:
        if event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
    for key, spans in rows.items():
        assert key in names, key
        open_until = []
        before = 0
        for span in spans:
            begin, end = span["ts"], span["ts"] + span["dur"]
            assert before <= begin <= end + 1e-6, (span, before)
            before = begin
            # Nanoseconds are stored as microseconds in doubles, which are rounded by up to 1e-6.
            while open_until and open_until[-1] <= begin + 1e-6:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-6, (names[key], span, open_until)
            open_until.append(end)
    return rows, names


def check(trace, ranks, steps):
    rows, names = rows_of(trace)
    about = trace["otherData"]
    assert about["ranks"] == ranks and about["dropped_older_events"] == 0, about
    assert about["events"] == sum(len(spans) for spans in rows.values()), about
    assert [about["first_step"], about["last_step"]] == [steps[0], steps[-1]], about
    for rank in range(ranks):
        mine = [event for (pid, _), spans in rows.items() if pid == rank for event in spans]
        assert {event["cat"] for event in mine} == KINDS, (rank, {event["cat"] for event in mine})
        has = collections.Counter((event["cat"], event["name"]) for event in mine)
        for step in steps:
            assert has["step", f"step {step}"] == 1 and has["read", f"read for step {step}"] >= 1, (rank, step)
        for op in [("forward", "layer4.1.conv2"), ("backward", "layer4.1.conv2"), ("update", "optimizer"),
                   ("update", "gradient norm"), ("wait", "communication"), ("all-reduce", "loss")]:
            # The forward pass also occurs in evaluations.
            assert has[op] >= len(steps) if op[0] == "forward" else has[op] == len(steps), (rank, op, has[op])
        assert has["wait", "data"] >= len(steps) and has["wait", "other ranks"] >= len(steps), (rank, has)
        threads = {name for (pid, _), name in names.items() if pid == rank}
        assert threads == {"main", "communication", "reader", "checkpoint"}, threads
    # No rank leaves a sum before the last rank has reached it: clocks that were off would be noticed here.
    sums = collections.defaultdict(list)
    for (rank, _), spans in rows.items():
        sums[rank] += [span for span in spans if span["cat"] == "all-reduce"]
    tolerance = 2 * about["clock_uncertainty_microseconds"] + 1e-3
    assert len({len(of_rank) for of_rank in sums.values()}) == 1
    for together in zip(*sums.values()):
        assert len({span["name"] for span in together}) == 1, together
        last_came = max(span["ts"] for span in together)
        assert all(span["ts"] + span["dur"] >= last_came - tolerance for span in together), together
    return about


def main():
    with tempfile.TemporaryDirectory() as directory:
        run(directory, "run", "train.max_steps=3")
        about = check(read(directory, "run"), 2, [1, 2, 3])
        assert about["clock_uncertainty_microseconds"] == 0, about  # one node, one clock
        run(directory, "run", ranks=3)  # resumes
        check(read(directory, "run"), 3, [4, 5, 6, 7, 8])

        # Ranks that measure the differences of their clocks, although these are the same clock.
        run(directory, "nodes", "train.max_steps=2", LOCKSTEP_RANKS_PER_NODE="1")
        about = check(read(directory, "nodes"), 2, [1, 2])
        assert 0 < about["clock_uncertainty_microseconds"] < 1e5, about

        job = start(directory, "stopped", "train.epochs=100000", "log.every_steps=1")
        metrics = pathlib.Path(directory) / "stopped" / "metrics.jsonl"
        end = time.monotonic() + 100
        while not (metrics.exists() and metrics.read_text().count('"step"')) and time.monotonic() < end:
            time.sleep(0.1)
        job.send_signal(signal.SIGUSR2)
        assert job.wait() == 75
        last = read(directory, "stopped")["otherData"]["last_step"]
        rows_of(read(directory, "stopped"))
        assert last >= 1, last

        run(directory, "off", "trace=false", "train.max_steps=1")
        assert not (pathlib.Path(directory) / "off" / "trace.json").exists()


if __name__ == "__main__":
    main()
