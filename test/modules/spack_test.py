# timeout: 120
"""The Spack recipe: it compiles, its variables are those of the Makefile, and what it lets make install is what
`make install` installs. Spack itself is not needed: a stand-in has the few names that the recipe uses, and records
how they are used.

The program is $LOCKSTEP, or build/lockstep, from whose folder it is installed.
"""

import contextlib
import os
import py_compile
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKSTEP = Path(os.environ.get("LOCKSTEP", ROOT / "build" / "lockstep")).resolve()
RECIPE = ROOT / "modules/spack/packages/lockstep/package.py"

# ---- The stand-in -----------------------------------------------------------------------------------------------------
directives = []
conditions = []


def directive(name):
    def record(*arguments, **options):
        directives.append((name, arguments, {**options, "when": " ".join([*conditions, options.get("when", "")]).strip()}))

    return record


@contextlib.contextmanager
def when(condition):
    conditions.append(condition)
    yield
    conditions.pop()


class Dependency:
    def __init__(self, name):
        self.prefix = f"/spack/{name}"


class Spec:
    """A spec that is +cuda or ~cuda. It contains only the packages that the recipe depends on in that case."""

    def __init__(self, cuda_arch):
        self.cuda = bool(cuda_arch)
        self.variants = {"cuda_arch": types.SimpleNamespace(value=cuda_arch)}
        self.names = {
            re.match(r"[a-z0-9-]+", arguments[0])[0]
            for name, arguments, options in directives
            if name == "depends_on" and (options["when"] != "+cuda" or self.cuda)
        }

    def __getitem__(self, name):
        if name not in self.names:
            raise KeyError(f"the recipe uses {name} and does not depend on it")
        return Dependency(name)

    def satisfies(self, condition):
        assert condition in ("+cuda", "~cuda"), condition
        return self.cuda == (condition == "+cuda")


class MakefilePackage:
    """Like Spack's MakefileBuilder: edit, then make build_targets, then make install_targets."""

    def __init__(self, spec, prefix, stage):
        self.spec, self.prefix = spec, prefix
        self.stage = types.SimpleNamespace(source_path=stage)

    def run_phases(self, make):
        self.edit(self.spec, self.prefix)
        make(*self.build_targets)
        make(*self.install_targets)


def load_recipe():
    package = types.ModuleType("spack.package")
    for name in ("version", "license", "depends_on", "variant", "resource", "conflicts"):
        setattr(package, name, directive(name))
    package.when = when
    modules = {"spack": types.ModuleType("spack"), "spack.package": package}
    for path, classes in {
        "spack_repo.builtin.build_systems.makefile": {"MakefilePackage": MakefilePackage},
        "spack_repo.builtin.build_systems.cuda": {"CudaPackage": type("CudaPackage", (), {})},
    }.items():
        parts = path.split(".")
        for n in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:n]), types.ModuleType(".".join(parts[:n])))
        vars(modules[path]).update(classes)
    sys.modules.update(modules)
    recipe = types.ModuleType("recipe")
    recipe.__file__ = str(RECIPE)
    exec(compile(RECIPE.read_text(), str(RECIPE), "exec"), vars(recipe))
    return recipe.Lockstep, recipe


# ---- The commands of make, printed and run -----------------------------------------------------------------------------


def make(*arguments, dry_run=False):
    command = ["make", "--no-print-directory", *(["-n"] if dry_run else []), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def destinations(commands, prefix):
    """Files below prefix that the commands of a dry run of `install` would create."""
    found = set()
    for line in commands.splitlines():
        for step in re.split(r"&&|;", line):
            words = step.split()
            target = words[-1] if words and (words[:2] == ["install", "-D"] or (words[0] == "sed" and ">" in words)) else ""
            if target.startswith(prefix):
                found.add(os.path.relpath(target, prefix))
            if words and words[0] == "modules/write-modulefiles.sh":
                folder, version = os.path.relpath(words[1], prefix), words[3]
                found |= {f"{folder}/{version}", f"{folder}/{version}.lua"}
    return found


def files_below(folder):
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def phases(Lockstep, cuda_arch, prefix, stage):
    calls = []
    Lockstep(Spec(cuda_arch), prefix, stage).run_phases(lambda *arguments: calls.append(arguments))
    return calls


def main():
    with tempfile.TemporaryDirectory() as work:
        py_compile.compile(str(RECIPE), cfile=f"{work}/recipe.pyc", doraise=True)
        Lockstep, recipe = load_recipe()
        assert Path(recipe.CHECKOUT) == ROOT, recipe.CHECKOUT
        assert issubclass(Lockstep, MakefilePackage)

        # Its variables are those of the Makefile.
        text = (ROOT / "Makefile").read_text() + (ROOT / "scripts/targets.mk").read_text()
        os.makedirs(f"{work}/stage/cudnn-frontend")
        build, install = phases(Lockstep, ["80", "90"], "/spack/lockstep", f"{work}/stage")
        assert build[-1] == "build/lockstep" and install[-1] == "install", (build, install)
        assert "PREFIX=/spack/lockstep" in install and "CUDA_ARCH=80 90" in install
        for argument in install[:-1]:
            name = argument.split("=")[0]
            assert f"$({name}" in text, f"the Makefile has no variable {name}"
        # The recipe sets every library path that `make help` names, except those that only tests and benchmarks need.
        places = set(re.findall(r"\b[A-Z0-9_]+_HOME\b|\bDNNL_ROOT\b", make("help"))) - {"GTEST_HOME", "BENCHMARK_HOME"}
        given = {argument.split("=")[0] for argument in install}
        assert places <= given, places - given

        # The header package is the one that scripts/deps.sh downloads.
        (resource,) = [options for name, _, options in directives if name == "resource"]
        assert f"{resource['sha256']}  {resource['url'].split('/')[-1]}" in (ROOT / "scripts/deps.sh").read_text()

        # What it installs. A dry run is enough to see the effect of Spack's arguments. It uses a folder of its own,
        # since Make groups the sources of a build without CUDA differently.
        prefix = f"{work}/prefix"
        build, install = phases(Lockstep, [], prefix, f"{work}/stage")
        assert "CUDA=0" in install and not any("cuda" in argument for argument in install), install
        planned = destinations(make(f"BUILD={work}/build", *install, dry_run=True), prefix)
        cuda = "CUDA" in subprocess.run([LOCKSTEP, "--version"], capture_output=True, text=True, check=True).stdout
        # The folder and the CUDA options with which the program was built: `make install` must not rebuild it.
        build = Path(os.path.relpath(LOCKSTEP.parent, ROOT))
        variables = [f"BUILD={build}"]
        if build.name.startswith("sm_"):
            architectures = build.name.removeprefix("sm_").replace("_", " ")
            variables = [f"BUILD={build.parent}", f"OUT={build}", f"CUDA_ARCH={architectures}"]
        make(*variables, f"PREFIX={prefix}", "install", *([] if cuda else ["CUDA=0"]))
        installed = files_below(prefix)
        # The oneDNN and Arrow of .deps; Spack's stay where they are.
        bundled = {f"lib/lockstep/lib{name}" for name in ("dnnl.so.3", "arrow.so.2500", "parquet.so.2500")}
        assert len(installed) > 10, installed
        assert planned == installed - bundled, planned ^ installed
    print("[  PASSED  ] 1 test.")


if __name__ == "__main__":
    main()
