#!/usr/bin/env python3
"""Writes a program that reports another compiler, as another build would: other_build.py PROGRAM COPY."""
import json
import os
import subprocess
import sys

program, copy = sys.argv[1:]


def reported(path):
    return json.loads(subprocess.check_output([path, "--version", "--json"]))["compiler"]


content = open(program, "rb").read()
compiler = reported(program).encode()
# The optimizer may split a string into parts of 16 or 8 bytes.
for part in [compiler, compiler[:16], compiler[:8]]:
    if part in content:
        break
with open(copy, "wb") as out:
    out.write(content.replace(part, part[:-1] + b"X"))
os.chmod(copy, 0o755)
assert reported(copy) != compiler.decode(), "the text of the compiler was not found in the program"
