"""Compares what a server received (fake_server.py) with the files of a run.

    check_run.py STATE.json RUN RUN_ID RANKS
"""

import json
import sys

state_path, run_path, run_id, n_ranks = sys.argv[1:]
with open(state_path) as file:
    run = json.load(file)["runs"][run_id]
with open(f"{run_path}/metrics.jsonl") as file:
    events = [json.loads(line) for line in file]

sent = {}
for metric in run["metrics"]:
    key = (metric["key"], metric["step"])
    assert key not in sent, f"sent twice: {metric}"
    sent[key] = metric


def expect(key, event, value):
    metric = sent.pop((key, event["step"]), None)
    assert metric is not None, f"{key} of step {event['step']} is missing"
    assert metric["value"] == value, (metric, value)
    assert abs(metric["timestamp"] - 1e3 * event["time_unix"]) <= 1, (metric, event["time_unix"])


for event in events:
    if event["event"] == "step":
        for key in ("loss", "accuracy", "learning_rate", "gradient_norm"):
            expect("train/" + key, event, event[key])
        for key in ("step_seconds", "samples_per_second", "model_flops_rate", "data_wait_seconds",
                    "exposed_communication_seconds", "memory_bytes"):
            expect("performance/" + key, event, event[key])
        if "exchange_seconds" in event:
            expect("performance/exchange_seconds", event, event["exchange_seconds"])
        ranks = event["per_rank"]
        assert len(ranks["loss"]) == int(n_ranks)
        for rank in range(int(n_ranks)):
            expect(f"system/rank_{rank}/cpu_utilization_percentage", event, 100 * ranks["utilisation"][rank])
            memory = sent.pop((f"system/rank_{rank}/system_memory_usage_megabytes", event["step"]))["value"]
            assert abs(memory - ranks["memory_bytes"][rank] / 1e6) < 1e-6 * memory, (memory, ranks)
            if int(n_ranks) > 1:
                for key in ("loss", "samples_per_second", "data_wait_seconds", "exposed_communication_seconds"):
                    expect(f"ranks_{key}/{rank}", event, ranks[key][rank])
    elif event["event"] == "evaluation":
        for key in ("loss", "accuracy"):
            expect("validation/" + key, event, event[key])
    elif event["event"] == "epoch":
        for key in ("loss", "accuracy", "samples_per_second"):
            expect("epoch/" + key, event, event[key])
assert not sent, f"not in metrics.jsonl: {list(sent)[:10]}"
assert len(run["metrics"]) > 50

params = run["params"]
assert params["train.global_batch"] == "12" and params["optimizer.kind"] == "sgd", params
assert params["data.augment"] == "[crop, flip]" and params["checkpoint.resume_from"] == "", params
assert len(params) > 100, len(params)
assert run["tags"]["mlflow.source.name"] == "lockstep" and run["tags"]["lockstep.run_directory"].endswith(run_path)
assert sorted(run["files"]) == ["config.yaml", "log.txt", "metrics.json", "metrics.jsonl"], list(run["files"])
for name, content in run["files"].items():
    with open(f"{run_path}/{name}") as file:
        assert file.read() == content, f"{name} differs"
print(f"{len(run['metrics'])} metrics, {len(params)} parameters, {len(run['files'])} files")
