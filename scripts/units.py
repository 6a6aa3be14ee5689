#!/usr/bin/env python3
"""Groups sources into units that are compiled together, so that the headers they share are read once.

  scripts/units.py BUILD FILE...        run in the root of the repository

A unit has at most 12 sources of one folder. It is a file BUILD/units/FOLDER/FIRST.cpp, FIRST being the name of its
first source, which includes them and is written only if it changes. The names of all objects are printed: those of
units, and of sources that are compiled alone.

Two sources that would not mean the same in one unit are kept apart: what one of them defines for itself (in a namespace
without a name, or by a macro), the other must neither define nor use. The names are found by the layout that
clang-format gives the sources. A clash that this script does not see is an error of the compiler.
"""
import os
import re
import sys
from functools import lru_cache

MAX_SOURCES = 12


@lru_cache(None)
def text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


@lru_cache(None)
def code(path):
    """The text without comments and without the contents of strings."""
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', re.sub(r"//[^\n]*", "", text(path)))


@lru_cache(None)
def included(path):
    """The headers of the project that the file names."""
    found = []
    for name in re.findall(r'^#include "([^"]+)"', text(path), re.M):
        for folder in (os.path.dirname(path), "src", "include", "."):
            header = os.path.normpath(os.path.join(folder, name))
            if os.path.exists(header):
                found.append(header)
                break
    return found


@lru_cache(None)
def own_words(path):
    return frozenset(re.findall(r"[A-Za-z_]\w*", code(path)))


def words(path):
    """All identifiers of a source and of the project's headers that it includes."""
    seen, rest, found = set(), [path], set()
    while rest:
        path = rest.pop()
        if path not in seen:
            seen.add(path)
            found |= own_words(path)
            rest += included(path)
    return found


def calls(path):
    """Identifiers before a parenthesis, without those of members and those with a namespace."""
    return set(re.findall(r"(?<![\w.:>])([A-Za-z_]\w*)\(", code(path)))


def private_names(path):
    """What the source defines for itself: name -> "type", "other", or the whole line of an alias or a macro."""
    found, is_private = {}, False
    for line in text(path).split("\n"):
        macro = re.match(r"#define (\w+)", line)
        if macro:
            found[macro[1]] = line
        if line == "namespace {":
            is_private = True
        elif line == "}  // namespace":
            is_private = False
        elif (is_private or line.startswith("static ")) and re.match(r"[A-Za-z_\[]", line):
            type_name = re.match(r"(?:struct|class|enum class|enum|union)\s+(\w+)\s*(?:final)?\s*(?:[:{;].*)?$", line)
            alias = re.match(r"(?:using|namespace) (\w+) = .*", line)
            other = None if line.startswith("template") else re.match(r".*?(\w+)\s*[(={\[;]", line)
            if type_name:
                found[type_name[1]] = "type"
            elif alias:
                found[alias[1]] = line
            elif other:
                found[other[1]] = "other"
    return found


class Group:
    def __init__(self, path):
        self.sources = [path]
        self.names = private_names(path)
        self.words = words(path)
        self.calls = calls(path)

    def clashes_with(self, other):
        return any(other.knows(*item) for item in self.names.items()) or \
            any(self.knows(*item) for item in other.names.items())

    def knows(self, name, kind):
        if name in self.names:
            return kind in ("type", "other") or self.names[name] != kind
        return name in (self.calls if kind == "other" else self.words)

    def add(self, other):
        self.sources += other.sources
        self.names.update(other.names)
        self.words |= other.words
        self.calls |= other.calls


def main():
    build, sources = sys.argv[1], sys.argv[2:]
    groups = {}
    for source in sources:
        new = Group(source)
        of_folder = groups.setdefault(os.path.dirname(source), [])
        place = next((g for g in of_folder if len(g.sources) < MAX_SOURCES and not g.clashes_with(new)), None)
        if place:
            place.add(new)
        else:
            of_folder.append(new)
    for group in (group for of_folder in groups.values() for group in of_folder):
        first = group.sources[0]
        if len(group.sources) == 1:
            print(f"{build}/{first[:-4]}.o")
            continue
        unit = f"{build}/units/{first}"
        content = "".join(f'#include "{source}"\n' for source in group.sources)
        if not os.path.exists(unit) or text(unit) != content:
            os.makedirs(os.path.dirname(unit), exist_ok=True)
            with open(unit, "w", encoding="utf-8") as file:
                file.write(content)
        print(f"{unit[:-4]}.o")


main()
