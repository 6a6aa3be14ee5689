"""`make bench-check`: checks the speeds that must not get worse, on an idle machine. Prints one line for each, and exits with
status 1 if one was missed. The speeds depend on the machine and its load, so they are not part of `make test`. Without
PyTorch in the interpreter (PYTHON), the comparisons with it are skipped.
"""
import json
import pathlib
import statistics
import subprocess
import sys

import harness

BENCH = pathlib.Path(__file__).resolve().parent


def result_of(script, name, arguments, directory):
    """Runs a benchmark script and returns the content of its NAME.json; its table goes to standard error."""
    done = subprocess.run([sys.executable, BENCH / script, *arguments, "--results", directory], stdout=subprocess.PIPE,
                          text=True)
    print(done.stdout, file=sys.stderr)
    if done.returncode:
        harness.stop(f"{script} failed with status {done.returncode}")
    return json.loads((pathlib.Path(directory) / f"{name}.json").read_text())


def checkpoint_speed(build, directory):
    """MB/s of two ranks that save together, and of dd with fsync in the same directory: medians of alternating runs."""
    out = harness.run([*harness.mpirun(2), pathlib.Path(build).resolve() / "bench/macro/save", directory, "400", "7"],
                      "bench/macro/save", env=harness.environment(1))
    rates = json.loads(out)
    return statistics.median(rates["save_mb_per_s"]), statistics.median(rates["dd_mb_per_s"])


def main():
    args = harness.begin(harness.parser(__doc__, python="torch and torchvision", rounds=5))
    python, torch = harness.torch_python(args.python)

    missed = 0

    def check(what, found, holds, required):
        nonlocal missed
        missed += not holds
        print(f"{'ok    ' if holds else 'MISSED'}  {what}: {found}; required: {required}", flush=True)

    def result(script, name, *arguments):
        return result_of(script, name, ["--build", args.build, *arguments], directory)

    with harness.scratch() as directory:
        for fed in result("macro/loader.py", "loader")["rows"]:
            check("speed of the loader alone, relative to the demand of 2 ranks", f"{fed['times']:.1f} times", fed["times"] >= 3,
                  "at least 3 times")
            check("fraction of a step of 2 ranks that waits for data", f"{100 * fed['wait_share']:.2f} %", fed["wait_share"] < 0.01,
                  "under 1 %")
        decoded = result("macro/loader_decoded.py", "loader_decoded")["medians"]
        per_core = decoded["resized_crop_224"]["samples_per_processor_second"]
        check("random crops of decoded images, short side 256", f"{per_core:,.0f} samples/s per core", per_core >= 6000,
              "at least 6,000")
        for row in result("macro/precision.py", "precision")["rows"]:
            shortest = {precision: min(min(steps) for steps in rounds) for precision, rounds in row["seconds"].items()}
            gain = shortest["fp32"] / shortest["bf16"]
            check(f"speed of {row['work']} in bf16, compared with fp32, with {row['isa']} (shortest steps)",
                  f"{gain:.2f} times", gain >= 0.97, "at least as fast, to within 3 % of noise")
        _, two = result("macro/steps.py", "steps")["steps"]
        exposed = two["exposed_communication_seconds"] / two["step_seconds"]
        check("fraction of a step of 2 ranks that is exposed communication", f"{100 * exposed:.1f} %", exposed <= 0.10, "at most 10 %")

        saved, raw = checkpoint_speed(args.build, directory)
        check("a checkpoint of 2 ranks, compared with dd with fsync", f"{saved:.0f} MB/s of {raw:.0f} MB/s", saved >= 0.8 * raw,
              "at least 80 %")
        startup = result("peers/startup.py", "startup", "--peer-rounds", "0")
        ours = statistics.median(startup["seconds"]["lockstep"])
        over = startup["over_empty_seconds"]
        check("launch to the end of step 1, less a step", f"{ours:.2f} s, {over:.2f} s over an empty MPI program",
              ours < 0.6 or over < 0.25, "under 0.6 s, or under 0.25 s over an empty MPI program")

        if python:
            compared = ("--python", python, "--rounds", str(args.rounds))
            jpeg = result("peers/loader_jpeg.py", "loader_jpeg", *compared)
            check("loading of JPEG images, compared with PyTorch's DataLoader", f"{jpeg['speed_ratio']:.2f} times",
                  jpeg["speed_ratio"] >= 1.5, "at least 1.5 times")
            # PyTorch multiplies bf16 with oneDNN, compared with which our own kernels gain most where there is AMX.
            has_amx = "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text().split()
            for work, precision, required in (("resnet18", "fp32", 1.9), ("resnet18", "bf16", 2 if has_amx else 1.3),
                                              ("resnet50", "fp32", 1.7), ("resnet50", "bf16", 2.5 if has_amx else 1.7)):
                peers = result("peers/run.py", "peers", *compared, "--work", work, "--precision", precision)
                what = f"{work} {precision}, compared with PyTorch"
                check(f"speed of {what}", f"{peers['speed_ratio']:.2f} times", peers["speed_ratio"] >= required,
                      f"at least {required} times")
                check(f"memory of {what}", f"{peers['memory_ratio']:.2f} times", peers["memory_ratio"] <= 0.5,
                      "at most half")
        else:
            print(f"skipped  comparison with PyTorch: {torch}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
