"""A server with the part of MLflow's REST interface that Lockstep uses, and with faults on request.

    fake_server.py FOLDER [PORT]

FOLDER/port: written when the server listens. FOLDER/mode: read at each request:
    ok            answers as MLflow does
    500           every request fails inside the server
    401           every request is refused
    hang          accepts connections and never answers
    lost          runs/create creates the run, and the connection breaks before the answer
FOLDER/state.json: written after each request: runs with parameters, tags, metrics, files and status; how often each path
was requested, and the last Authorization header. Requests beyond MLflow's limits are refused as by MLflow.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlparse

folder = sys.argv[1]
state = {"experiments": {}, "runs": {}, "requests": {}, "authorization": None}
lock = threading.Lock()
API = "/api/2.0/mlflow/"
FILES = "/api/2.0/mlflow-artifacts/artifacts/"


class Refused(Exception):
    def __init__(self, status, code, message):
        super().__init__(message)
        self.status, self.code = status, code


def require(condition, message):
    if not condition:
        raise Refused(400, "INVALID_PARAMETER_VALUE", message)


def get_experiment(body):
    name = body["experiment_name"]
    if name not in state["experiments"]:
        raise Refused(404, "RESOURCE_DOES_NOT_EXIST", f"No Experiment with name={name} exists")
    return {"experiment": {"experiment_id": state["experiments"][name], "name": name, "lifecycle_stage": "active"}}


def create_experiment(body):
    if body["name"] in state["experiments"]:
        raise Refused(400, "RESOURCE_ALREADY_EXISTS", "it exists")
    state["experiments"][body["name"]] = str(len(state["experiments"]) + 1)
    return {"experiment_id": state["experiments"][body["name"]]}


def info_of(run):
    return {"info": {"run_id": run["run_id"], "artifact_uri": run["artifact_uri"]}}


def create_run(body):
    run_id = f"run{len(state['runs'])}"
    assert body["experiment_id"] in state["experiments"].values()
    run = {"run_id": run_id, "artifact_uri": f"mlflow-artifacts:/{body['experiment_id']}/{run_id}/artifacts",
           "name": body["run_name"], "start_time": body["start_time"], "status": "RUNNING", "end_time": None,
           "tags": {tag["key"]: tag["value"] for tag in body["tags"]}, "params": {}, "metrics": [], "files": {},
           "experiment_id": body["experiment_id"]}
    state["runs"][run_id] = run
    return {"run": info_of(run)}


def search(body):
    key, value = body["filter"].removeprefix("tags.`").removesuffix("'").split("` = '")
    return {"runs": [info_of(run) for run in state["runs"].values()
                     if run["experiment_id"] in body["experiment_ids"] and run["tags"].get(key) == value]}


def log_batch(body):
    run = state["runs"][body["run_id"]]
    metrics, params, tags = (body.get(kind, []) for kind in ("metrics", "params", "tags"))
    require(len(metrics) <= 1000 and len(params) <= 100 and len(tags) <= 100, "too many")
    for param in params:
        require(len(param["value"]) <= 500, "the value is too long")  # as before MLflow 2.8
        require(run["params"].get(param["key"], param["value"]) == param["value"], "params cannot change")
    for metric in metrics:
        require(isinstance(metric["value"], (int, float)) and isinstance(metric["step"], int), str(metric))
        require(isinstance(metric["timestamp"], int), str(metric))
    run["params"].update({param["key"]: param["value"] for param in params})
    run["tags"].update({tag["key"]: tag["value"] for tag in tags})
    run["metrics"] += metrics
    return {}


def update_run(body):
    run = state["runs"][body["run_id"]]
    require(body["status"] in ("RUNNING", "FINISHED", "FAILED", "KILLED"), "status")
    run["status"] = body["status"]
    run["end_time"] = body.get("end_time", run["end_time"])
    return {"run_info": {}}


CALLS = {"GET experiments/get-by-name": get_experiment, "POST experiments/create": create_experiment,
         "POST runs/create": create_run, "POST runs/search": search, "POST runs/log-batch": log_batch,
         "POST runs/update": update_run}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def handle_request(self):
        with open(os.path.join(folder, "mode")) as file:
            mode = file.read().strip()
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if mode == "hang":
            time.sleep(3600)
        url = urlparse(self.path)
        name = f"{self.command} {url.path.removeprefix(API)}"
        with lock:
            try:
                state["requests"][name] = state["requests"].get(name, 0) + 1
                state["authorization"] = self.headers.get("Authorization")
                if mode == "500":
                    raise Refused(500, "INTERNAL_ERROR", "the data base is away")
                if mode == "401":
                    raise Refused(401, "", "You are not authenticated")
                if self.command == "PUT" and url.path.startswith(FILES):
                    experiment, run, artifacts, file = unquote(url.path.removeprefix(FILES)).split("/")
                    assert artifacts == "artifacts" and state["runs"][run]["experiment_id"] == experiment
                    state["runs"][run]["files"][file] = content.decode()
                    result = {}
                else:
                    body = json.loads(content) if content else {k: v[0] for k, v in parse_qs(url.query).items()}
                    result = CALLS[name](body)
                status = 200
            except Refused as refused:
                status, result = refused.status, {"error_code": refused.code, "message": str(refused)}
            with open(os.path.join(folder, "state.partial"), "w") as file:
                json.dump(state, file)
            os.replace(os.path.join(folder, "state.partial"), os.path.join(folder, "state.json"))
        if mode == "lost" and name == "POST runs/create":
            self.close_connection = True
            self.connection.close()
            return
        self.answer(status, result)

    do_GET = do_POST = do_PUT = handle_request


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Handler)
server.daemon_threads = True
with open(os.path.join(folder, "port.partial"), "w") as out:
    out.write(str(server.server_address[1]))
os.replace(os.path.join(folder, "port.partial"), os.path.join(folder, "port"))
server.serve_forever()
