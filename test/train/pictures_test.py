"""The scripts that draw pictures of a run write a file next to their input, or the file that --output names, and print its
path. They write no picture to the terminal unless asked for it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "bench" / "macro"


def run(script, *arguments):
    done = subprocess.run([sys.executable, SCRIPTS / script, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(folder, script, source, default, *options):
    printed = run(script, source, *options)
    assert printed == f"wrote {folder / default}\n", printed
    assert (folder / default).read_text().startswith("<svg")
    printed = run(script, source, *options, "--output", folder / "other.svg")
    assert printed == f"wrote {folder / 'other.svg'}\n", printed
    assert (folder / "other.svg").read_text() == (folder / default).read_text()
    assert run(script, source, *options, "--output", "-") == (folder / default).read_text()


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        metrics = folder / "metrics.jsonl"
        metrics.write_text("".join(json.dumps({"event": "step", "step": s, "loss": 2.0 / s}) + "\n" for s in (1, 2, 3)))
        check(folder, "loss_picture.py", metrics, "loss.svg")
        trace = folder / "trace.json"
        thread = {"name": "thread_name", "ph": "M", "pid": 0, "tid": 1, "args": {"name": "main"}}
        spans = [{"name": "step 1", "cat": "step", "ph": "X", "pid": 0, "tid": 1, "ts": 0.0, "dur": 100.0},
                 {"name": "forward", "cat": "forward", "ph": "X", "pid": 0, "tid": 1, "ts": 10.0, "dur": 50.0}]
        trace.write_text(json.dumps({"traceEvents": [thread, *spans]}))
        check(folder, "trace_picture.py", trace, "trace.svg", "--steps", "1", "1")
    print("[       OK ] pictures are written to files\n[  PASSED  ] 1 test.")


if __name__ == "__main__":
    main()
