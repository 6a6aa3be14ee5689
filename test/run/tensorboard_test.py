"""TensorBoard's own reader finds in our event file what was written, even after resuming.

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
    "performance/model_flops_rate": [5e9] * 6,
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


def check_configuration(accumulator, directory):
    """The configuration: written by the first start, and not again by the second one."""
    (text,) = accumulator.Tensors("config")
    assert text.step == 0 and text.tensor_proto.string_val == [b"    run: {name: \"a\"}\n    precision: fp32\n"], text
    metadata = accumulator.SummaryMetadata("config")
    assert metadata.plugin_data.plugin_name == "text", metadata
    assert accumulator.PluginTagToContent("text"), "the tab TEXT is empty"

    # The rows of the tab HPARAMS, as TensorBoard's own code computes them.
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(directory)
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, directory)
    hparams = backend_context.Context(base_plugin.TBContext(data_provider=provider, multiplexer=multiplexer))
    request = context.RequestContext()
    experiment = get_experiment.Handler(request, hparams, "", api_pb2.GetExperimentRequest()).run()
    infos = {info.name: api_pb2.DataType.Name(info.type) for info in experiment.hparam_infos}
    assert infos == {"optimizer.kind": "DATA_TYPE_STRING", "optimizer.learning_rate": "DATA_TYPE_FLOAT64",
                     "optimizer.nesterov": "DATA_TYPE_BOOL", "data.augment": "DATA_TYPE_STRING"}, infos
    tags = [info.name.tag for info in experiment.metric_infos]
    assert tags == ["performance/samples_per_second", "train/loss", "train/accuracy", "validation/loss",
                    "validation/accuracy"], tags
    groups = list_session_groups.Handler(
        request, hparams, "", api_pb2.ListSessionGroupsRequest(
            start_index=0, slice_size=10, allowed_statuses=[api_pb2.STATUS_UNKNOWN],
            col_params=[api_pb2.ColParams(hparam=name) for name in infos]
            + [api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos])).run()
    (row,) = groups.session_groups
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in row.hparams.items()}
    assert values == {"optimizer.kind": "sgd", "optimizer.learning_rate": 0.1, "optimizer.nesterov": False,
                      "data.augment": "[crop, flip]"}, values
    losses = {value.name.tag: value.value for value in row.metric_values}
    assert abs(losses["train/loss"] - TRAIN["train/loss"][-1]) < 1e-6, losses
    print(f"TensorBoard shows {len(values)} hyperparameters beside {len(losses)} figures")


def main():
    build = os.path.dirname(os.environ.get("LOCKSTEP", "build/lockstep"))
    program = os.path.join(build, "test/run_test")
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
        check_configuration(accumulator, directory)
    print(f"TensorBoard read {len(tags)} figures of {len(STEPS)} steps")


if __name__ == "__main__":
    main()
