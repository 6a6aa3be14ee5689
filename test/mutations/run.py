#!/usr/bin/env python3
"""Shows that the tests catch the faults of faults/: applies one at a time, builds, and runs the tests named for it.

    python3 test/mutations/run.py [--only PATTERN] [--build build] [--results FILE]        or: make test-mutations

Each fault is applied in a copy of the source tree and of its build folder, so the working tree is never changed. Prints a table
(fault, the test that caught it, seconds). The exit status is 1 if a fault survives, or if its text no longer occurs exactly once.

faults/AREA.txt has blocks of five lines, `key: value`, with empty lines between them: the name of the fault, its file, the text
`old`, which must occur exactly once in the file, the text `new` that replaces it, and `tests`, a regular expression over the
names of tests (scripts/list-tests.sh). `\\n` in old and new stands for a line break.
"""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEYS = ("fault", "file", "old", "new", "tests")


def read_faults(folder=HERE / "faults"):
    """The faults of all areas."""
    faults = []
    for path, block in [(path, block) for path in sorted(folder.glob("*.txt"))
                        for block in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n", "", path.read_text()).strip())]:
        fault = {}
        for line in block.splitlines():
            key, _, value = line.partition(":")
            fault[key] = value.removeprefix(" ")
        if tuple(fault) != KEYS:
            sys.exit(f"{path.name}: expected the keys {', '.join(KEYS)} in this order, found:\n{block}")
        fault["old"], fault["new"] = (fault[key].strip().replace("\\n", "\n") for key in ("old", "new"))
        faults.append(fault)
    return faults


class Copy:
    """A copy of the tree and its build folder, which restore() resets to the original."""

    def __init__(self, folder, build):
        self.tree, self.build = pathlib.Path(folder) / "tree", build
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                self.copy(name)
        # Objects keep their modification times, so that only what a fault touches is recompiled.
        top = pathlib.Path(build).parts[0]  # build/sm_90 needs all of build
        shutil.copytree(ROOT / top, self.tree / top, symlinks=True)
        if (ROOT / ".deps").exists():
            (self.tree / ".deps").symlink_to(ROOT / ".deps")
        self.stamp = pathlib.Path(folder) / "stamp"

    def copy(self, name):
        target = self.tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)

    def apply(self, fault):
        """Applies the fault. Returns the reason if that is not possible, otherwise None."""
        self.stamp.touch()
        time.sleep(0.05)
        file = self.tree / fault["file"]
        if not file.is_file():
            return "there is no such file"
        text = file.read_text()
        if (n := text.count(fault["old"])) != 1:
            return f"its text occurs {n} times"
        file.write_text(text.replace(fault["old"], fault["new"]))
        return None

    def restore(self):
        changed = subprocess.run(["find", ".", "-newer", self.stamp, "!", "-type", "d", "-print0"], cwd=self.tree,
                                 stdout=subprocess.PIPE, text=True, check=True).stdout
        for name in filter(None, changed.split("\0")):
            if (ROOT / name).exists() and "/test/logs/" not in name:
                (self.tree / name).unlink()
                self.copy(name)
            else:
                (self.tree / name).unlink()

    def run(self, *command, **options):
        return subprocess.run([str(c) for c in command], cwd=self.tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", stdin=subprocess.DEVNULL, **options)


def programs_of(fault, listed):
    """The make targets that its tests need."""
    programs = set()
    for row in listed:
        if re.search(fault["tests"], row[0]):
            programs.add("test/" + row[1] if row[1] != "-" else "lockstep")
    if programs and fault["file"].startswith("src/arrow/"):
        programs.add("lockstep-arrow")
    return sorted(programs)


def check(copy, fault, listed, make):
    """Returns whether the fault is caught, and by which tests."""
    problem = copy.apply(fault)
    if problem:
        return False, f"NOT APPLIED: {problem} in {fault['file']}"
    programs = programs_of(fault, listed)
    if not programs:
        return False, "NO SUCH TEST"
    built = copy.run(*make, *(f"{copy.build}/{program}" for program in programs))
    if built.returncode:
        return False, "DOES NOT COMPILE:\n" + "\n".join(built.stdout.splitlines()[-15:])
    done = copy.run("scripts/run-tests.sh", "--only", fault["tests"], copy.build)
    failed = re.findall(r"^\[  FAILED  \] ([A-Za-z]\S*)", done.stdout, re.MULTILINE) or \
        re.findall(r"^ *\d+ - (\S+) \((?:Failed|Timeout|SEGFAULT)", done.stdout, re.MULTILINE)
    if done.returncode == 0:
        return False, "SURVIVED"
    if not failed:
        failed = re.findall(r"Test +#\d+: (\S+) [.*]*(?:Failed|Exception)", done.stdout)
    return True, (failed or ["?"])[0].rstrip(",")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="the folder of the test programs, as `make tests` prints it")
    parser.add_argument("--only", default="", help="only faults whose name matches this regular expression")
    parser.add_argument("--results", type=pathlib.Path, help="also writes the table there, as Markdown")
    parser.add_argument("--make", default="make", help="the command that builds, with its variables")
    args = parser.parse_args()

    faults = [fault for fault in read_faults() if re.search(args.only, fault["fault"])]
    listed = [line.split("\t") for line in (ROOT / args.build / "test/list").read_text().splitlines()]
    make = [*shlex.split(args.make), "--no-print-directory", f"-j{os.cpu_count()}"]
    rows, n_missed = [], 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lockstep-mutations.") as folder:
        copy = Copy(folder, args.build)
        for fault in faults:
            begin = time.monotonic()
            caught, by = check(copy, fault, listed, make)
            copy.restore()
            n_missed += not caught
            rows.append((fault["fault"], fault["file"], re.sub("^[a-z]+/", "", by.splitlines()[0]), time.monotonic() - begin))
            print(f"{'caught' if caught else 'MISSED':6} {rows[-1][3]:6.0f} s  {fault['fault']}: {by}", flush=True)
    line = f"{len(faults) - n_missed} of {len(faults)} faults were caught, in {(time.monotonic() - began) / 60:.0f} minutes"
    print(line)
    if args.results:
        table = "".join(f"| {name} | `{file}` | {by} | {seconds:.0f} |\n" for name, file, by, seconds in rows)
        args.results.write_text(f"# Faults that the tests catch\n\n`make test-mutations` writes this page. {line}.\n\n"
                                f"| fault | file | caught by | seconds |\n|---|---|---|---|\n{table}")
    return 1 if n_missed or not faults else 0


if __name__ == "__main__":
    sys.exit(main())
