"""Each fault of test/mutations/faults can still be applied: its text occurs exactly once in its file, and its tests exist."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "test" / "mutations"))
from run import read_faults  # noqa: E402

faults = read_faults()
tests = [line.split("\t")[0] for line in
         subprocess.run(["scripts/list-tests.sh"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()]
bad = []
for fault in faults:
    count = (ROOT / fault["file"]).read_text().count(fault["old"])
    if count != 1:
        bad.append(f"{fault['fault']}: its text occurs {count} times in {fault['file']}: {fault['old']}")
    if not any(re.search(fault["tests"], test) for test in tests):
        bad.append(f"{fault['fault']}: there is no test {fault['tests']}")
if len(faults) < 90:
    bad.append(f"only {len(faults)} faults were read")
print("\n".join([*bad, "[  FAILED  ] 1 test"]) if bad else "[  PASSED  ] 1 test.")
sys.exit(bool(bad))
