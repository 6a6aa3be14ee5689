"""TensorBoard's own reader finds in an event file of ours what was written, also after a resumption.

Exit status 77 (skipped) without the tensorboard package. LOCKSTEP is the program in its build folder.
"""

import os
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print("skipped: the tensorboard package is missing; `make deps-test` installs it")
    sys.exit(77)

STEPS = [1, 2, 3, 4, 5, 6]
TRAIN = {
    "train/loss": [2.0 / step for step in STEPS],
    "train/accuracy": [0.25] * 6,
    "train/learning_rate": [0.1] * 6,
    "train/gradient_norm": [1.5] * 6,
    "performance/step_seconds": [0.5] * 6,
    "performance/samples_per_second": [256.0] * 6,
    "performance/model_flops_utilization": [0.625] * 6,
    "performance/data_wait_seconds": [0.01] * 6,
    "performance/exposed_communication_seconds": [0.02] * 6,
    "performance/memory_bytes": [123456789012.0] * 6,
}
RANKS = {
    "loss": [1.0, 3.0],
    "utilisation": [0.9, 0.8],
    "memory_bytes": [123456789012.0, 5.0],
    "samples_per_second": [126.0, 130.0],
    "data_wait_seconds": [0.01, 0.0],
    "exposed_communication_seconds": [0.02, 0.005],
}
EACH_RANK = {f"ranks_{name}/{rank}": [figures[rank]] * 6 for name, figures in RANKS.items() for rank in range(2)}
EPOCH = {
    "validation/loss": [1.25] * 2,
    "validation/accuracy": [0.5] * 2,
    "epoch/loss": [1.5] * 2,
    "epoch/accuracy": [0.0] * 2,
    "epoch/samples_per_second": [0.0] * 2,
}


def check(accumulator, tag, steps, values):
    events = accumulator.Scalars(tag)
    assert [event.step for event in events] == steps, (tag, events)
    for event, value in zip(events, values):
        assert abs(event.value - value) <= 1e-6 * abs(value), (tag, event, value)  # stored as fp32
        assert event.wall_time > 1.7e9, (tag, event)


def main():
    build = os.path.dirname(os.environ.get("LOCKSTEP", "build/lockstep"))
    program = os.path.join(build, "test/train_test")
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([program, "--write-run", directory], check=True)
        accumulator = EventAccumulator(os.path.join(directory, "tensorboard"))
        accumulator.Reload()
        tags = accumulator.Tags()["scalars"]
        assert sorted(tags) == sorted([*TRAIN, *EACH_RANK, *EPOCH]), tags
        assert accumulator.file_version == 2, accumulator.file_version
        for tag, values in {**TRAIN, **EACH_RANK}.items():
            check(accumulator, tag, STEPS, values)
        for tag, values in EPOCH.items():
            check(accumulator, tag, [3, 6], values)
    print(f"TensorBoard read {len(tags)} figures of {len(STEPS)} steps")


if __name__ == "__main__":
    main()
