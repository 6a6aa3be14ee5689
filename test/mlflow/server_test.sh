#!/usr/bin/env bash
# long: yes
# timeout: 1800
# cores: 2
# log.mlflow and `lockstep report mlflow` with MLflow's own server, read back with MLflow's client: artefacts uploaded
# through the server, and in a folder that is shared with it. `make deps-test` installs MLflow; MLFLOW names another
# `mlflow`.
source test/support/check.sh
mlflow=${MLFLOW:-.deps/mlflow/bin/mlflow}
[[ -x $mlflow ]] || { echo "skipped: MLflow is missing; \`make deps-test\` installs it"; exit 77; }
"$lockstep" --version | grep -q 'libcurl *[0-9]' || { echo "skipped: there is no libcurl.so.4"; exit 77; }
mlflow=$(realpath "$mlflow")
python=$(dirname "$mlflow")/python
unset MLFLOW_TRACKING_URI MLFLOW_TRACKING_USERNAME MLFLOW_TRACKING_PASSWORD MLFLOW_TRACKING_TOKEN
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY
export LOCKSTEP_CACHE=none MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true

# Each server gets its own session, since it starts several processes.
servers=()
stop_servers() { for pid in "${servers[@]}"; do kill -- "-$pid" 2>/dev/null; done; }
trap 'stop_servers; sleep 1; rm -rf "$work"' EXIT
serve() { # serve NAME OPTIONS...: starts a server and sets `uri`
  local port
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  uri=http://127.0.0.1:$port
  (cd "$work" && exec setsid "$mlflow" server --host 127.0.0.1 --port "$port" --workers 1 \
    --backend-store-uri "sqlite:///$work/$1.db" "${@:2}") >"$work/$1.log" 2>&1 &
  servers+=($!)
  for ((i = 0; i < 600; ++i)); do
    "$python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/health", timeout=5)' "$uri" 2>/dev/null && return 0
    sleep 1
  done
  cat "$work/$1.log"
  return 1
}

cat >"$work/check.py" <<'PYTHON'
"""check.py URI RUN RANKS: MLflow's client finds the run, with everything that is in its files."""
import json
import os
import sys

import mlflow

uri, path, n_ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = mlflow.MlflowClient(uri)
experiment = client.get_experiment_by_name("lockstep")
runs = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{os.path.basename(path)}'")
assert len(runs) == 1, runs
run = runs[0]
assert run.info.status == "FINISHED" and run.info.end_time > run.info.start_time, run.info
assert len(run.data.params) > 100 and run.data.params["train.global_batch"] == "12", run.data.params
events = [json.loads(line) for line in open(f"{path}/metrics.jsonl")]
steps = [event for event in events if event["event"] == "step"]


def check(key, events, values):
    history = sorted(client.get_metric_history(run.info.run_id, key), key=lambda metric: metric.step)
    assert [m.step for m in history] == [e["step"] for e in events], (key, [m.step for m in history])
    assert all(abs(m.value - value) <= 1e-9 * abs(value) for m, value in zip(history, values)), key
    assert all(abs(m.timestamp - 1e3 * e["time_unix"]) <= 1 for m, e in zip(history, events)), key


for key in ("loss", "accuracy", "learning_rate"):
    check("train/" + key, steps, [e[key] for e in steps])
check("performance/samples_per_second", steps, [e["samples_per_second"] for e in steps])
evaluations = [e for e in events if e["event"] == "evaluation"]
check("validation/loss", evaluations, [e["loss"] for e in evaluations])
for rank in range(n_ranks):
    check(f"system/rank_{rank}/system_memory_usage_megabytes", steps, [e["per_rank"]["memory_bytes"][rank] / 1e6 for e in steps])
    if n_ranks > 1:
        check(f"ranks_loss/{rank}", steps, [e["per_rank"]["loss"][rank] for e in steps])
files = {file.path for file in client.list_artifacts(run.info.run_id)}
assert files == {"config.yaml", "log.txt", "metrics.json", "metrics.jsonl"}, files
os.environ["MLFLOW_TRACKING_URI"] = uri
for name in files:
    local = client.download_artifacts(run.info.run_id, name)
    assert open(local).read() == open(f"{path}/{name}").read(), name
print(f"{len(steps)} steps, {len(run.data.metrics)} curves, {len(run.data.params)} parameters, {len(files)} files;",
      "MLflow", mlflow.__version__)
PYTHON

options=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8
  data.synthetic_samples=48 train.global_batch=12 train.epochs=3 cpu.threads=1 log.every_steps=1 log.progress=false
  run.directory="$work")
train() { # train RANKS NAME ARGUMENTS...
  mpirun --oversubscribe -n "$1" "$lockstep" train "${options[@]}" run.name="$2" "${@:3}" >"$work/train" 2>&1 ||
    { cat "$work/train"; return 1; }
}
read_back() { "$python" "$work/check.py" "$@" 2>&1 | tee "$work/read"; [[ ${PIPESTATUS[0]} == 0 ]]; }
report() { "$lockstep" report mlflow "$@" >"$work/text" 2>"$work/errors" || { cat "$work/errors"; return 1; }; }

check "MLflow's server, with artefacts of its own" serve proxied --artifacts-destination "$work/artifacts"
check "a run of two ranks" train 2 a log.mlflow="$uri"
check "  what the training did not wait for is sent" report "$work/a"
check "  everything is there" read_back "$uri" "$work/a" 2
cat "$work/read"
check "a run that is resumed" train 1 b train.epochs=1 log.mlflow="$uri"
check "  with more epochs" train 1 b train.epochs=3 log.mlflow="$uri"
check "  what the training did not wait for is sent" report "$work/b"
check "  is one run" read_back "$uri" "$work/b" 1
check "a run without MLflow" train 1 c
check "  is sent afterwards" report "$work/c" --uri "$uri"
check "  everything is there" read_back "$uri" "$work/c" 1
check "  and nothing twice" report "$work/c" --uri "$uri"
check "  as the command says" grep -q 'everything was sent before' "$work/text"
stop_servers

mkdir "$work/store"
check "MLflow's server, with artefacts in a shared folder" serve shared --no-serve-artifacts --default-artifact-root "$work/store"
check "  a run is sent" report "$work/c" --uri "$uri"
check "  everything is there" read_back "$uri" "$work/c" 1
check "  its files are in the folder" test -n "$(find "$work/store" -name metrics.jsonl)"
stop_servers
check "MLflow's server, with artefacts in a store that this machine does not see" serve remote --no-serve-artifacts --default-artifact-root s3://bucket/path
check "  the rest of a run is sent" report "$work/c" --uri "$uri"
check "  and why its files are not" grep -q 'files are not sent, since the server keeps them in s3://bucket/path' "$work/errors"
finish
