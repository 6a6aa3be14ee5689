#!/usr/bin/env python3
"""Groups sources into units that are compiled together, so that the headers they share are read once.

  scripts/units.py BUILD FILE...        run in the root of the repository

A unit has at most 12 sources of one folder, or 3 with CUDA kernels, whose headers nvcc reads once per architecture. It
is a file BUILD/units/FOLDER/FIRST, FIRST being the name of its first source, which includes them and is written only if
it changes. The names of all objects are printed: those of units, and of sources that are compiled alone.

Two sources must mean the same in one unit as alone: what one of them defines for itself (in an anonymous namespace, or
by a macro), the other must neither define nor use. A name that would clash is renamed within the unit, by a macro
around the source that defines it: `Case` in conv2d_test.cpp to `Case_of_conv2d_test`. Where that could change something
else, the two sources are kept apart. The names are found by relying on clang-format's layout of the sources. A clash
that this script does not see is a compiler error.
"""
import os
import re
import sys
from functools import lru_cache

MAX_SOURCES = {".cpp": 12, ".cu": 3}
# Libraries call functions of these names.
FOUND_BY_NAME = {"PrintTo", "to_json", "from_json", "swap", "begin", "end"}


@lru_cache(None)
def text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


@lru_cache(None)
def code(path):
    """The text without comments and without the contents of strings."""
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', re.sub(r"//[^\n]*", "", text(path)))


def resolved(path, name):
    """The project's header that `name` in an #include of the file refers to, or None."""
    headers = (os.path.normpath(os.path.join(folder, name)) for folder in (os.path.dirname(path), "src", "include", "."))
    return next(filter(os.path.exists, headers), None)


@lru_cache(None)
def included(path):
    """The project's headers that the file includes directly."""
    return [header for header in (resolved(path, name) for name in re.findall(r'^#include "([^"]+)"', text(path), re.M)) if header]


@lru_cache(None)
def own_words(path):
    return frozenset(re.findall(r"[A-Za-z_]\w*", code(path)))


@lru_cache(None)
def top_words(path):
    """The identifiers on unindented lines. They contain what a header declares, except for members."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", "\n".join(re.findall(r"^[A-Za-z_].*", code(path), re.M))))


def headers_of(path):
    """The project's headers that a source includes, directly or not."""
    seen, rest = set(), included(path)
    while rest:
        path = rest.pop()
        if path not in seen:
            seen.add(path)
            rest += included(path)
    return seen


def calls(path):
    """Identifiers before a parenthesis, except members and names qualified with a namespace."""
    return set(re.findall(r"(?<![\w.:>])([A-Za-z_]\w*)\(", code(path)))


def private_names(path):
    """What the source defines for itself: name -> "type", "other", or the whole line of an alias or a macro."""
    found, is_private = {}, False
    lines = re.sub(r"\b__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*", "", text(path)).split("\n")
    for place, line in enumerate(lines):
        macro = re.match(r"#define (\w+)", line)
        if macro:
            found[macro[1]] = line
        if line == "namespace {":
            is_private = True
        elif line == "}  // namespace":
            is_private = False
        elif (is_private or line.startswith("static ")) and re.match(r"[A-Za-z_[]", line):
            type_name = re.match(r"(?:struct|class|enum class|enum|union)\s+(\w+)\s*(?:final)?\s*(?:[:{;].*)?$", line)
            alias = re.match(r"(?:using|namespace) (\w+) = .*|using (?:namespace )?(?:\w+::)*(\w+);", line)
            other = None if re.match(r"template|static_assert|TEST|INSTANTIATE", line) else re.match(r".*?(\w+)\s*[(={\[;]", line)
            if type_name:
                found[type_name[1]] = "type"
            elif alias:
                found[alias[1] or alias[2]] = line
            elif other:
                end = next((i for i in range(place, len(lines)) if lines[i].endswith((";", "{"))), place)
                more = re.findall(r",\s*(\w+)\s*=", "\n".join(lines[place:end + 1]))
                found.update(dict.fromkeys([other[1], *more], "other"))
    return found


def hoisted(path):
    """The #include lines, to be moved to the start of a unit: a renaming macro must not change a header."""
    lines, depth = [], 0
    for line in text(path).split("\n"):
        depth += line.startswith("#if") - line.startswith("#endif")
        if line.startswith("#define"):
            break  # it may affect the headers below it
        name = re.match(r'#include (?:<(\S+)>|"(\S+\.h)")', line)
        if name and depth == 0:
            lines.append(f"#include <{name[1]}>" if name[1] else f'#include "{resolved(path, name[2]) or name[2]}"')
    return lines


@lru_cache(None)
def defines_before_headers(path):
    return re.search(r"^#define[^\0]*^#include", text(path), re.M)


class Source:
    def __init__(self, path):
        self.path = path
        self.names = private_names(path)
        headers = headers_of(path)
        self.words = own_words(path).union(*map(own_words, headers))
        self.declared = frozenset().union(*map(top_words, headers))
        self.calls = calls(path)
        self.renamed = set()

    def knows(self, name, kind):
        if name in self.names:
            return kind in ("type", "other") or self.names[name] != kind
        return name in (self.calls if kind == "other" else self.words)

    def clashes_with(self, other):
        """The names of this source that the other one knows."""
        return [name for name, kind in self.names.items() if other.knows(name, kind)]

    @lru_cache(None)
    def can_rename(self, name):
        """False for a macro, a member, a test suite, and a name that others declare or look up."""
        return not (re.match(r"#|using [^=]*$", self.names[name]) or name in self.declared or name in FOUND_BY_NAME or
                    re.search(rf"(\.|->|::)\s*{name}\b|TEST\w*\(\s*{name}\b", code(self.path)) or
                    defines_before_headers(self.path))


class Unit:
    def __init__(self, source):
        self.sources = [source]

    def add(self, new):
        """Returns false if the new source must be kept apart."""
        if len(self.sources) == MAX_SOURCES[os.path.splitext(new.path)[1]]:
            return False
        clashes = []
        for old in self.sources:
            found = [(old, name) for name in old.clashes_with(new)] + [(new, name) for name in new.clashes_with(old)]
            if not all(one.can_rename(name) for one, name in found):
                return False
            clashes += found
        for one, name in clashes:
            one.renamed.add(name)
        self.sources.append(new)
        return True

    def content(self):
        lines = []
        if any(source.renamed for source in self.sources):
            lines += dict.fromkeys(line for source in self.sources for line in hoisted(source.path))
        for source in self.sources:
            of = "_of_" + os.path.splitext(os.path.basename(source.path))[0]
            lines += [f"#define {name} {name}{of}" for name in sorted(source.renamed)]
            lines.append(f'#include "{source.path}"')
            lines += [f"#undef {name}" for name in sorted(source.renamed)]
        return "\n".join(lines) + "\n"


def object_of(path):
    """As the Makefile names the objects: NAME.o for NAME.cpp, and NAME.cu.o for NAME.cu."""
    return re.sub(r"\.cpp$", "", path) + ".o"


def main():
    build, sources = sys.argv[1], sys.argv[2:]
    units = {}
    for source in map(Source, sources):
        of_folder = units.setdefault((os.path.dirname(source.path), os.path.splitext(source.path)[1]), [])
        if not any(unit.add(source) for unit in of_folder):
            of_folder.append(Unit(source))
    for unit in (unit for of_folder in units.values() for unit in of_folder):
        first = unit.sources[0].path
        if len(unit.sources) == 1:
            print(object_of(f"{build}/{first}"))
            continue
        file_name, content = f"{build}/units/{first}", unit.content()
        if not os.path.exists(file_name) or text(file_name) != content:
            os.makedirs(os.path.dirname(file_name), exist_ok=True)
            with open(file_name, "w", encoding="utf-8") as file:
                file.write(content)
        print(object_of(file_name))


main()
