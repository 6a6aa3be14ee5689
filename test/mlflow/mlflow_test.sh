#!/usr/bin/env bash
# timeout: 600
# cores: 2
# log.mlflow and `lockstep report mlflow` with a server that comes with this test (fake_server.py): what is sent;
# servers that fail, hang, refuse or are not there; runs that resume, stop and fail; and a machine without libcurl.
# server_test.sh tests with MLflow's own server.
source test/support/check.sh
"$lockstep" --version | grep -q 'libcurl *[0-9]' || { echo "skipped: there is no libcurl.so.4"; exit 77; }
unset MLFLOW_TRACKING_URI MLFLOW_TRACKING_USERNAME MLFLOW_TRACKING_PASSWORD MLFLOW_TRACKING_TOKEN
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY
export LOCKSTEP_CACHE=none

server=$work/server
mkdir "$server"
mode() { echo "$1" >"$server/mode"; }
mode ok
python3 test/mlflow/fake_server.py "$server" >"$work/server.log" 2>&1 &
server_pid=$!
trap 'kill $server_pid 2>/dev/null; rm -rf "$work"' EXIT
for ((i = 0; i < 100; ++i)); do [[ -s $server/port ]] && break; sleep 0.1; done
uri=http://127.0.0.1:$(cat "$server/port")

options=(jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation=synthetic data.image_size=8
  data.synthetic_samples=48 train.global_batch=12 train.epochs=3 cpu.threads=1 log.every_steps=1 log.progress=false
  run.directory="$work")
train() { # train NAME ARGUMENTS...: on one rank; the output is in $work/train
  timeout 100 "$lockstep" train "${options[@]}" run.name="$1" "${@:2}" >"$work/train" 2>&1 || { cat "$work/train"; return 1; }
}
says() { grep -qE -- "$1" "$work/train" || { cat "$work/train"; return 1; }; }
says_once() { [[ $(grep -cE -- "$1" "$work/train") == 1 ]] || { cat "$work/train"; return 1; }; }
report() { timeout 100 "$lockstep" report mlflow "$@" >"$work/text" 2>"$work/errors" || { cat "$work/errors"; return 1; }; }
prints() { grep -qE -- "$1" "$work/text" || { cat "$work/text"; return 1; }; }
# state EXPRESSION: the expression over `runs`, a list of the runs of the server, and `requests` is true
state() {
  python3 -c 'import json, sys; s = json.load(open(sys.argv[1])); runs = list(s["runs"].values()); requests = s["requests"]
print(runs[-1] | {"metrics": len(runs[-1]["metrics"]), "params": 0, "files": list(runs[-1]["files"])} if runs else s); assert eval("(" + sys.argv[2] + ")")' \
    "$server/state.json" "$1"
}
n_requests() { python3 -c 'import json, sys; print(sum(json.load(open(sys.argv[1]))["requests"].values()))' "$server/state.json"; }

# A run on two ranks, while it trains.
two_ranks() {
  mpirun --oversubscribe -n 2 "$lockstep" train "${options[@]}" run.name=a log.mlflow="$uri" >"$work/train" 2>&1 ||
    { cat "$work/train"; return 1; }
}
check "a run on two ranks" two_ranks
check "  names the page of the run" says "MLflow: $uri/#/experiments/1/runs/run0"
check "  is finished on the server" state 'len(runs) == 1 and runs[0]["status"] == "FINISHED" and runs[0]["end_time"] > 1.7e12'
check "  everything is there, once" python3 test/mlflow/check_run.py "$server/state.json" "$work/a" run0 2
check "  under its name, in the experiment" state 'runs[0]["name"] == "a" and s["experiments"] == {"lockstep": "1"}'
before=$(n_requests)
check "report mlflow has nothing to send" report "$work/a/"
check "  says so" prints "^$work/a: everything was sent before to $uri/#/experiments/1/runs/run0$"
check "  and makes no request" test "$(n_requests)" == "$before"
check "a dry run reports nothing" report "$work/a" --dry-run
check "  in numbers" prints '0 parameters, 0 metrics, 0 files would be sent'

# The same run, in another experiment.
check "report mlflow sends to another experiment" report "$work/a" --uri "$uri" --experiment 'other & more'
check "  with the time at which it ended" state 'runs[1]["end_time"] == runs[0]["end_time"]'
check "  everything" python3 test/mlflow/check_run.py "$server/state.json" "$work/a" run1 2
check "  in the experiment" state 'runs[1]["experiment_id"] == s["experiments"]["other & more"] and runs[1]["status"] == "FINISHED"'
check "  says what was sent" prints "^$work/a: 1[0-9][0-9] parameters, [0-9,]+ metrics, 4 files and the status were sent to $uri"

# A run that is resumed, with more epochs.
check "a run that ends" train b train.epochs=1 log.mlflow="$uri"
check "  is finished" state 'len(runs) == 3 and runs[2]["status"] == "FINISHED"'
check "and is resumed" train b train.epochs=3 log.mlflow="$uri" optimizer.learning_rate=0.05 --allow-change optimizer.learning_rate
check "  is the same run" state 'len(runs) == 3 and runs[2]["status"] == "FINISHED"'
check "  with all steps, once" python3 test/mlflow/check_run.py "$server/state.json" "$work/b" run2 1
check "  and the changes as tags" state 'runs[2]["tags"]["resumed.train.epochs"] == "3" and runs[2]["params"]["train.epochs"] == "1"
  and runs[2]["tags"]["resumed.optimizer.learning_rate"] == "0.05" and len([t for t in runs[2]["tags"] if "resumed" in t]) == 2'

# Servers that fail. The training must not notice.
mode 500
check "a server that fails" train c log.mlflow="$uri"
check "  is reported once" says_once "log.mlflow: $uri answers 500 to GET experiments/get-by-name: INTERNAL_ERROR the data base is away; the training continues"
check "  and at the end" says "not everything was sent to MLflow: .*; .lockstep report mlflow $work/c. sends the rest"
check "  the run is done" grep -qx done "$work/c/status"
check "report mlflow fails too" refused 1 'sent|INTERNAL_ERROR.*' "$lockstep" report mlflow "$work/c"
check "  with its code" refused 1 'mlflow' "$lockstep" report mlflow "$work/c"
mode ok
check "a dry run counts" report "$work/c" --dry-run
check "  parameters, metrics and files" prints '1[0-9][0-9] parameters, [0-9,]+ metrics, 4 files and the status would be sent'
check "  and sends nothing" state 'len(runs) == 3'
check "report mlflow sends the run later" report "$work/c"
check "  everything, once" python3 test/mlflow/check_run.py "$server/state.json" "$work/c" run3 1
check "  with its status" state 'runs[3]["status"] == "FINISHED"'
check "  and nothing the second time" report "$work/c"
check "  and says so" prints 'everything was sent before'

mode hang
begin=$SECONDS
check "a server that never answers" train d log.mlflow="$uri"
check "  is reported" says "not everything was sent to MLflow: $uri has not answered in time"
check "  and ends the waiting" test $((SECONDS - begin)) -lt 60
mode ok
check "  the run is sent later" report "$work/d"
check "  everything, once" python3 test/mlflow/check_run.py "$server/state.json" "$work/d" run4 1

check "a server that is not there" train e log.mlflow=http://127.0.0.1:1
check "  is reported" says_once 'log.mlflow: http://127.0.0.1:1 cannot be reached .*; the training continues, and sending is tried again'
check "  the run is sent to another one" report "$work/e" --uri "$uri"
check "  everything, once" python3 test/mlflow/check_run.py "$server/state.json" "$work/e" run5 1
check "report mlflow without a server" refused 1 'http://127.0.0.1:1 cannot be reached' "$lockstep" report mlflow "$work/e"

mode lost
check "an answer that is lost" train f log.mlflow="$uri"
mode ok
check "  the run is found" report "$work/f"
check "  and not created again" state 'len(runs) == 7 and runs[6]["status"] == "FINISHED"'
check "  with everything, once" python3 test/mlflow/check_run.py "$server/state.json" "$work/f" run6 1

# Authentication
mode 401
check "a server that refuses" train g log.mlflow="$uri"
check "  is reported once" says_once 'answers 401 to GET experiments/get-by-name: You are not authenticated; the training continues, and nothing more'
check "  and not asked again" refused 1 'answers 401' "$lockstep" report mlflow "$work/g"
mode ok
check "with a user" env MLFLOW_TRACKING_USERNAME=me MLFLOW_TRACKING_PASSWORD=secret "$lockstep" report mlflow "$work/g"
check "  as basic authentication" state "s['authorization'] == 'Basic bWU6c2VjcmV0'"
check "with a token" env MLFLOW_TRACKING_TOKEN=abc "$lockstep" report mlflow "$work/g" --experiment token
check "  as bearer" state "s['authorization'] == 'Bearer abc'"

# Ends of a run
stop() {
  : >"$work/train" # old output would end the loop before the program has started
  "$lockstep" train "${options[@]}" run.name=h train.epochs=10000 log.mlflow="$uri" log.every_steps=100 >"$work/train" 2>&1 &
  local pid=$! i
  for ((i = 0; i < 300; ++i)); do grep -q 'MLflow:' "$work/train" && break; sleep 0.1; done
  kill -USR2 $pid
  wait $pid
  [[ $? == 75 ]] || { cat "$work/train"; return 1; }
}
check "a run that is stopped" stop
check "  is killed on the server" state 'runs[-1]["name"] == "h" and runs[-1]["status"] == "KILLED"'
check "a run that fails" refused 1 steps_skipped "$lockstep" train "${options[@]}" run.name=i log.mlflow="$uri" \
  optimizer.learning_rate=1e25 train.epochs=100
check "  has failed on the server" state 'runs[-1]["name"] == "i" and runs[-1]["status"] == "FAILED"'

# A value that is too long for old servers
long=$(printf 'x%.0s' {1..600})
check "a long value" train j log.mlflow="$uri" log.mlflow_experiment="$long"
check "  is cut" state 'len(runs[-1]["params"]["log.mlflow_experiment"]) == 500 and runs[-1]["status"] == "FINISHED"'

# Without libcurl, and wrong usage
check "without libcurl a run trains" env LOCKSTEP_LIBCURL=/nowhere/libcurl.so.4 "$lockstep" train "${options[@]}" run.name=k log.mlflow="$uri"
check "report mlflow says what is missing" refused 2 'needs the library libcurl.so.4, which cannot be loaded .*: install libcurl' \
  env LOCKSTEP_LIBCURL=/nowhere/libcurl.so.4 "$lockstep" report mlflow "$work/a"
check "--version too" bash -c 'LOCKSTEP_LIBCURL=/nowhere "$0" --version | grep -q "libcurl *not found"' "$lockstep"
check "no run" refused 2 'there is no run' "$lockstep" report mlflow "$work/none"
check "no address" refused 2 'was trained without log.mlflow: give the address' bash -c \
  'cp -r "$1" "$1.without" && sed -i "s/mlflow: .*/mlflow: \"\"/" "$1.without/config.yaml" && "$0" report mlflow "$1.without"' "$lockstep" "$work/a"
check "  of the environment" env MLFLOW_TRACKING_URI="$uri" "$lockstep" report mlflow "$work/a.without" --dry-run
check "a wrong address" refused 2 '\-\-uri: expected the address of an MLflow server' "$lockstep" report mlflow "$work/a" --uri mlruns
finish
