"""Start-up time: from the launch to the end of step 1, less one median step.

Lockstep alternates with an empty MPI program (MPI_Init, barrier, MPI_Finalize) that is launched in the same way; the
difference is the start-up of Lockstep itself. PyTorch is measured too if the interpreter has it.
"""
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, sys.path[0] + "/..")
import harness  # noqa: E402
import sides  # noqa: E402

# Rank 0 prints the time at which all ranks have arrived.
EMPTY = r"""
#include <mpi.h>
#include <stdio.h>
#include <time.h>
int main(int argc, char** argv) {
  int rank = 0;
  struct timespec now;
  MPI_Init(&argc, &argv);
  MPI_Barrier(MPI_COMM_WORLD);
  clock_gettime(CLOCK_REALTIME, &now);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) printf("%lld.%09ld\n", (long long)now.tv_sec, now.tv_nsec);
  MPI_Finalize();
  return 0;
}
"""


def build_empty(directory):
    source, program = pathlib.Path(directory) / "empty.c", pathlib.Path(directory) / "empty"
    source.write_text(EMPTY)
    compiler = os.environ.get("MPICC", "mpicc")
    try:
        harness.run([compiler, "-O2", "-o", program, source], compiler)
    except FileNotFoundError:
        harness.stop(f"{compiler} is missing; set MPICC=... to the C compiler of MPI")
    return program


def empty(program, args):
    launched = time.time()
    out = harness.run([*harness.mpirun(args.ranks), program], "the empty MPI program",
                      env=harness.environment(args.threads))
    return float(out.split()[-1]) - launched


def main():
    parser = sides.parser(__doc__, steps=8, rounds=9, name="startup")
    parser.add_argument("--peer-rounds", type=int, default=3, help="rounds of PyTorch; 0: none")
    args = harness.begin(parser)
    python, torch = harness.torch_python(args.python)

    startup = lambda r: r["launch_to_first_step_seconds"] - r["median_step_seconds"]
    seconds = {"lockstep": [], "empty": [], "pytorch": []}
    with harness.scratch() as directory:
        program = build_empty(directory)
        for _ in range(args.rounds):
            seconds["lockstep"].append(startup(sides.ours(directory, args)))
            seconds["empty"].append(empty(program, args))
        for _ in range(args.peer_rounds if python else 0):
            seconds["pytorch"].append(startup(sides.theirs(python, "contiguous", args)))

    over = [a - b for a, b in zip(seconds["lockstep"], seconds["empty"])]
    names = {"lockstep": "Lockstep", "empty": "an empty MPI program, until all ranks have arrived",
             "pytorch": f"PyTorch {torch}"}
    rows = [[names[side], len(s), f"{statistics.median(s):.3f}", f"{min(s):.3f}", f"{max(s):.3f}"]
            for side, s in seconds.items() if s]
    text = (f"Seconds from the launch to the end of step 1, less one median step, {args.ranks} ranks x {args.threads} "
            f"thread(s); ResNet-18, 32x32, batch {sides.batch(args)} per rank.\nLockstep and the empty program were launched "
            "alternately.\n\n" + harness.table(["", "launches", "median, s", "least", "greatest"], rows)
            + f"\nLockstep over the empty program: median **{statistics.median(over):.3f} s**.\n"
            + ("" if python else f"\nPyTorch was not measured: {torch}.\n"))
    harness.finish(args, "From launch to training", text, torch=torch if python else None,
                   over_empty_seconds=statistics.median(over), seconds=seconds)


if __name__ == "__main__":
    main()
