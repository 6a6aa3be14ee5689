"""scripts/units.py keeps sources apart that would not mean the same in one unit, and puts each source into one unit."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "units.py"
bad = []


def units(tree, *sources):
    """The sets of sources that are compiled together."""
    printed = subprocess.run([SCRIPT, "out", *sources], cwd=tree, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    found = []
    for name in printed:
        unit = (tree / name).with_suffix(".cpp")
        alone = name.removeprefix("out/").removesuffix(".o") + ".cpp"
        found.append({line.split('"')[1] for line in unit.read_text().splitlines()} if unit.exists() else {alone})
    return found


def private(text):
    return "namespace a {\nnamespace {\n\n" + text + "\n\n}  // namespace\n}  // namespace a\n"


def check(what, together, one, other, header=""):
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        (tree / "src").mkdir()
        (tree / "src" / "header.h").write_text(header)
        (tree / "src" / "one.cpp").write_text(one)
        (tree / "src" / "other.cpp").write_text(other)
        got = units(tree, "src/one.cpp", "src/other.cpp")
        if (len(got) == 1) != together or set.union(*got) != {"src/one.cpp", "src/other.cpp"}:
            bad.append(f"{what}: {got}")


FUNCTION = private("int rows(int n) { return n; }")
check("nothing in common", True, FUNCTION, private("struct Column {\n};"))
check("the same function", False, FUNCTION, private("int rows(double n) { return n; }"))
check("a function, and a call of another one with its name", False, FUNCTION, "int f() {\n  return rows(2.5);\n}\n")
check("a function, and a member or a comment with its name", True, FUNCTION, "int f(Table t) {\n  return t.rows(2);  // rows(2)\n}\n")
check("the same type", False, private("struct Row {\n};"), private("class Row final : public Base {\n};"))
check("a type, and a use of its name", False, private("struct Row {\n};"), "Row f();\n")
check("a type, and a use in a header", False, private("struct Row {\n};"), '#include "header.h"\n', "Row f();\n")
check("the same alias", True, private("using Json = a::Json;"), private("using Json = a::Json;"))
check("another alias", False, private("using Json = a::Json;"), private("using Json = b::Json;"))
check("the same constant", False, private("constexpr int kSize[] = {1};"), private("const std::array<int, 3> kSize{1};"))
check("a macro, and a use of it", False, "#define SIZE 3\n", "int n = SIZE;\n")

sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.cpp"))
with tempfile.TemporaryDirectory() as folder:
    groups = [line for line in subprocess.run([SCRIPT, folder, *sources], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                                              text=True).stdout.split()]
    included = [line.split('"')[1] for unit in pathlib.Path(folder).rglob("*.cpp") for line in unit.read_text().splitlines()]
    alone = [name.removeprefix(folder + "/").removesuffix(".o") + ".cpp" for name in groups if "/units/" not in name]
    if sorted(included + alone) != sources:
        bad.append("a source is in no unit, or in several")
    if len(groups) > len(sources) / 2:
        bad.append(f"{len(sources)} sources are in {len(groups)} units")

print("\n".join([*bad, "[  FAILED  ] 1 test"]) if bad else "[  PASSED  ] 1 test.")
sys.exit(bool(bad))
