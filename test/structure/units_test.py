"""scripts/units.py renames or keeps apart what would change meaning in one unit, and puts each source in one unit."""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "units.py"
bad = []


def sources_of(unit):
    return re.findall(r'^#include "(.*\.cpp)"$', unit.read_text(), re.M)


def units(tree, *sources):
    """The lists of sources that are compiled together."""
    printed = subprocess.run([SCRIPT, "out", *sources], cwd=tree, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    found = []
    for name in printed:
        unit = (tree / name).with_suffix(".cpp")
        found.append(sources_of(unit) if unit.exists() else [name.removeprefix("out/").removesuffix(".o") + ".cpp"])
    return found


def private(text):
    return "namespace a {\nnamespace {\n\n" + text + "\n\n}  // namespace\n}  // namespace a\n"


def check(what, together, one, other, header="", renamed=()):
    """Checks whether two sources form one unit, and which of their names are renamed."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        (tree / "src").mkdir()
        (tree / "src" / "header.h").write_text("#pragma once\n" + header)
        (tree / "src" / "one.cpp").write_text(one)
        (tree / "src" / "other.cpp").write_text(other)
        got = units(tree, "src/one.cpp", "src/other.cpp")
        if (len(got) == 1) != together or sorted(sum(got, [])) != ["src/one.cpp", "src/other.cpp"]:
            bad.append(f"{what}: {got}")
            return
        files = ["src/one.cpp", "src/other.cpp"]
        if together:
            files = ["out/units/src/one.cpp"]
            unit = (tree / files[0]).read_text()
            defined, undefined = re.findall(r"^#define (\w+ \w+)$", unit, re.M), re.findall(r"^#undef (\w+)$", unit, re.M)
            if defined != list(renamed) or [line.split()[0] for line in defined] != undefined:
                bad.append(f"{what}: renamed {defined}, undefined {undefined}")
        for file in files:
            result = subprocess.run(["g++", "-std=c++20", "-I.", "-Isrc", "-fsyntax-only", file], cwd=tree, stderr=subprocess.PIPE, text=True)
            if result.returncode:
                bad.append(f"{what}: {result.stderr}")


FUNCTION = private("int rows(int n) { return n; }")
TABLE = "struct Table {\n  int rows(int) const;\n};\n"
USE_HEADER = '#include "header.h"\n'
check("nothing in common", True, FUNCTION, private("struct Column {\n};"))
check("the same function", True, FUNCTION, private("int rows(int n) { return n + 1; }"),
      renamed=["rows rows_of_one", "rows rows_of_other"])
check("a function, and a call of another one with its name", True, FUNCTION,
      USE_HEADER + "int f() {\n  return rows(2.5);\n}\n", "int rows(double);\n", renamed=["rows rows_of_one"])
check("a function, and a member or a comment with its name", True, FUNCTION,
      USE_HEADER + "int f(Table t) {\n  return t.rows(2);  // rows(2)\n}\n", TABLE)
check("a function that would be renamed, and a member in the same source", False,
      USE_HEADER + private("int rows(int n) { return n; }\nint g(Table t) { return t.rows(2); }"),
      private("int rows(int n) { return n + 1; }"), TABLE)
check("a function that would be renamed, and one in a header", False,
      USE_HEADER + private("int rows(int n) { return n; }"), private("int rows(int n) { return n + 1; }"), "int rows(double);\n")
check("a function that would be renamed, and a member in a header", True,
      USE_HEADER + private("int rows(int n) { return n; }"), private("int rows(int n) { return n + 1; }"), TABLE,
      ["rows rows_of_one", "rows rows_of_other"])
check("the same type", True, private("struct Row {\n};"), private("class Row final {\n};"),
      renamed=["Row Row_of_one", "Row Row_of_other"])
check("a type, and a use of its name", True, private("struct Row {\n};"), USE_HEADER + "Row f();\n", "struct Row {};\n",
      ["Row Row_of_one"])
check("a suite of tests", False, "#define TEST_F(a, b) int a##b()\n" + private("struct Row {\n};\nTEST_F(Row, a) { return 1; }"),
      private("struct Row {\n};"))
check("the same alias", True, private("using Json = int;"), private("using Json = int;"))
check("another alias", True, private("using Json = int;"), private("using Json = double;"),
      renamed=["Json Json_of_one", "Json Json_of_other"])
check("the name of another namespace", False, USE_HEADER + private("using b::Row;\nRow* f();"), private("struct Row {\n};"),
      "namespace b {\nstruct Row {};\n}\n")
check("the same constant", True, private("constexpr int kSize[] = {1};"), private("constexpr double kSize{1};"),
      renamed=["kSize kSize_of_one", "kSize kSize_of_other"])
check("several constants", True, private("constexpr int kRows = 1, kColumns = 2,\n              kSize = 3;"),
      private("constexpr int kColumns = 3, kSize = 4;"), renamed=[
          "kColumns kColumns_of_one", "kSize kSize_of_one", "kColumns kColumns_of_other", "kSize kSize_of_other"])
check("a macro, and a use of it", False, "#define SIZE 3\n", USE_HEADER + "int n = SIZE;\n", "constexpr int SIZE = 2;\n")
check("a macro for headers", False, "#define SIZE 3\n" + USE_HEADER + private("struct Row {\n};"), private("struct Row {\n};"))

# Kernels for GPUs: at most 3 in a unit, and clang-format puts their names after the launch bounds or on the next line.
with tempfile.TemporaryDirectory() as folder:
    kernels = [f"{name}.cu" for name in "abcde"]
    for name, bounds in zip(kernels, ("", "", " __launch_bounds__(kThreads)", " __launch_bounds__(kThreads, most(3))\n   ", "")):
        kernel = "clear" if bounds else f"copy_{name[0]}"
        (pathlib.Path(folder) / name).write_text(private(f"__global__ void{bounds} {kernel}(float* a) {{}}"))
    objects = subprocess.run([SCRIPT, "out", *kernels], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    if objects != ["out/units/a.cu.o", "out/units/d.cu.o"]:
        bad.append(f"units of kernels: {objects}")
    clear = [(pathlib.Path(folder) / name).rename(pathlib.Path(folder) / f"clear_{name}").name for name in ("c.cu", "d.cu")]
    subprocess.run([SCRIPT, "out", *clear], cwd=folder, check=True, stdout=subprocess.PIPE)
    unit = (pathlib.Path(folder) / "out/units" / clear[0]).read_text()
    if re.findall(r"^#define (.*)$", unit, re.M) != ["clear clear_of_clear_c", "clear clear_of_clear_d"]:
        bad.append(f"two kernels of one name: {unit}")

sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.cpp"))
with tempfile.TemporaryDirectory() as folder:
    groups = [line for line in subprocess.run([SCRIPT, folder, *sources], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                                              text=True).stdout.split()]
    included = [source for unit in pathlib.Path(folder).rglob("*.cpp") for source in sources_of(unit)]
    alone = [name.removeprefix(folder + "/").removesuffix(".o") + ".cpp" for name in groups if "/units/" not in name]
    if sorted(included + alone) != sources:
        bad.append("a source is in no unit, or in several")
    if len(groups) > len(sources) / 3:
        bad.append(f"{len(sources)} sources are in {len(groups)} units")

print("\n".join([*bad, "[  FAILED  ] 1 test"]) if bad else "[  PASSED  ] 1 test.")
sys.exit(bool(bad))
