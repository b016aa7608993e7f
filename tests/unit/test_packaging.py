"""The shape of the project: what starts fast, what needs nothing installed, who touches the root.

import-linter (pyproject.toml) holds the arrows between modules. What it cannot see is held here:
the cost of a start, modules that must run on a bare Python, and the calls that change the run root.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

REPO = Path(__file__).parents[2]
PACKAGES = ("ctl", "fsworker", "fedavg")
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]

BARE = (
    "fsworker.errors",
    "fsworker.protocol.layout",
    "fsworker.protocol.records.run",
    "fsworker.protocol.fsops",
    "fsworker.identity",
    "fsworker.respawn",
    "fsworker.hostside",
)
"""What must run on a Python without any package: it starts, finds and ends everything else."""

HEAVY = {"torch", "paramiko", "rich", "msgpack", "psutil", "ClusterShell", "asyncio", "tomllib"}
"""What only some commands need, so that `ctl --help` must not pay for it."""

MAX_LINES, MAX_FUNCTION = 300, 40


def modules() -> dict[str, Path]:
    """All modules of the packages by their names."""
    found = {}
    for package in PACKAGES:
        for path in sorted((REPO / package).rglob("*.py")):
            parts = path.relative_to(REPO).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path
    return found


MODULES = modules()


def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(), str(MODULES[name]))


def imports(name: str) -> Iterator[str]:
    """What a module imports anywhere, functions included; relative imports are not used here."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{name} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.run([sys.executable, *argv], env=env, capture_output=True, text=True)


# -- starting


def cpu_of(*argv: str) -> float:
    """Seconds of CPU that one run of this Python takes, measured by the kernel."""
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    with open(os.devnull, "w") as null:
        child = subprocess.Popen([sys.executable, *argv], env=env, stdout=null)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_help_takes_less_than_a_fifth_of_a_second_of_cpu() -> None:
    # The least of some runs: a neighbour on the machine can only make it look slower.
    assert min(cpu_of("-m", "ctl", "--help") for _ in range(5)) < 0.2


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ctl.cli import main; assert main(['--help']) == 0;"
        "print('loaded', *sys.modules, file=sys.stderr)"
    )
    done = run("-c", code)
    assert "Usage: ctl" in done.stdout
    loaded = done.stderr.split()
    assert loaded[0] == "loaded" and "click" in loaded
    assert not HEAVY.intersection(loaded)


def test_status_imports_neither_torch_nor_paramiko_nor_rich(tmp_path: Path) -> None:
    code = (
        "import sys; from ctl.cli import main; code = main(['status', '--root', sys.argv[1]]);"
        "print('loaded', *sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = run("-c", code, str(tmp_path / "no run"))
    assert done.returncode == 3, done.stderr
    loaded = done.stderr.partition("loaded ")[2].split()
    assert "ctl.statusview" in loaded
    assert not {"torch", "paramiko", "rich"}.intersection(loaded)


@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_every_command_exists_and_explains_itself(command: str) -> None:
    module, _, function = PROJECT["scripts"][command].partition(":")
    code = f"import sys; from {module} import {function} as main; sys.argv[0] = '{command}'; "
    done = run("-c", code + "sys.exit(main())", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: {command}" in done.stdout


# -- a bare Python


@pytest.mark.parametrize("name", BARE)
def test_it_runs_without_installed_packages(name: str) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(REPO)!r}); import {name};"
        "print(*(m for m in sys.modules if '.' not in m))"
    )
    done = run("-I", "-S", "-c", code)
    assert done.returncode == 0, done.stderr
    foreign = set(done.stdout.split()) - set(sys.stdlib_module_names) - {"__main__", "fsworker"}
    assert not foreign


def test_nor_does_anything_that_these_could_import_later() -> None:
    seen: set[str] = set()
    todo = list(BARE)
    foreign = []
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for imported in imports(name):
            if imported in MODULES:
                # The package itself is a module too; what it offers lazily is not used by these.
                todo.append(imported)
            elif imported.partition(".")[0] not in sys.stdlib_module_names:
                foreign.append((name, imported))
    assert "fsworker.protocol.fsops" in seen
    assert not foreign


# -- the run root

CALLS = {
    "rename", "renames", "replace", "link", "symlink", "unlink", "remove", "rmdir", "removedirs",
    "fsync", "fdatasync", "scandir", "listdir", "walk", "fwalk",
    "rmtree", "move", "copy", "copy2", "copyfile", "copytree",
}  # fmt: skip
"""What lists a folder or changes names in it; of `os` and `shutil`."""

ALLOWED = {
    "fsworker.protocol.fsops": "the one module that does this on the run root",
    "fsworker.protocol.fsfolders": "its sibling, for folders and large files that others wrote",
    "fedavg.formats.storing": "stores what was written to descriptors, and knows no names",
    "fsworker.digest": "digests the files of its own package",
    "ctl.bundle.contents": "lists the packages that are installed here",
    "ctl.removal": "deletes a run that has ended, by descriptors, so that no link is followed",
    "ctl.cleaning": "removes the link that a run root was reached by, which is outside the root",
    "ctl.rundir": "looks whether a folder is empty before it becomes a run root",
    "ctl.commands.runs": "searches the prefix, which is above the roots, for roots",
    "ctl.spool": "writes the file of results that the user named, which is in no run root",
    "ctl.gather": "removes the partial form of that file",
    "ctl.current": "writes the current-run file in the workspace, which is no run root",
    "ctl.lazy": "lists the commands, which lie beside it",
    "fsworker.procfs": "lists /proc",
    "fsworker.inventory.machine": "lists /dev",
    "fsworker.inventory.software": "lists the folders that Python imports from",
    "fsworker.slots.zygote": "lists its own threads in /proc",
    "fsworker.life.detach": "lists its own descriptors in /proc",
    "fsworker.host.logind": "lists the settings of the machine's login manager",
}
"""Who else may, and why that is not the run root."""


def calls(name: str) -> set[str]:
    """The calls of `CALLS` that a module makes, also when it only names them."""
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("os", "shutil") and node.attr in CALLS:
                found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil"):
            found.update(f"{node.module}.{a.name}" for a in node.names if a.name in CALLS)
    return found


def test_only_fsops_lists_renames_and_removes_on_the_run_root() -> None:
    assert "os.rename" in calls("fsworker.protocol.fsops")
    others = {name: calls(name) for name in MODULES if name not in ALLOWED}
    assert {name: found for name, found in others.items() if found} == {}


def test_every_exception_to_that_is_still_needed() -> None:
    assert [name for name in ALLOWED if name not in MODULES or not calls(name)] == []


def test_nobody_waits_for_a_file_by_asking_whether_it_exists() -> None:
    """On a network filesystem the answer may be 18 seconds old; folders are listed instead."""
    offenders = []
    for name in MODULES:
        for loop in ast.walk(tree(name)):
            if isinstance(loop, ast.While):
                text = ast.unparse(loop.test)
                if "exists(" in text or "isfile(" in text:
                    offenders.append(f"{name}:{loop.lineno}")
    assert offenders == []


# -- the code


def sizes(name: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree(name)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[1] if ast.get_docstring(node) and node.body[1:] else node.body[0]
            yield f"{name}.{node.name}", (node.end_lineno or 0) - first.lineno + 1


def test_modules_are_short_and_say_why_they_exist() -> None:
    long = {n: k for n, p in MODULES.items() if (k := p.read_text().count("\n")) > MAX_LINES}
    silent = [name for name in MODULES if not ast.get_docstring(tree(name))]
    assert (long, silent) == ({}, [])


def test_functions_are_short() -> None:
    long = {n: k for name in MODULES for n, k in sizes(name) if k > MAX_FUNCTION}
    assert long == {}


# -- the distribution


def test_the_wheel_holds_the_packages_and_the_license_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("shardfleet-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == set(PACKAGES)
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names)
    assert "fsworker/hostside.py" in names


def test_every_version_that_ci_may_install_is_pinned() -> None:
    lines = (REPO / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if "==" in line}
    extras = PROJECT["optional-dependencies"].values()
    asked = [*PROJECT["dependencies"], *(r for extra in extras for r in extra)]
    names = {r.partition(">")[0].partition("=")[0].strip().lower() for r in asked}
    assert names - pinned == set()
    assert "torch==2.13.0" in lines
    assert not [line for line in lines if "/" in line or line.startswith("-")]


def test_the_answers_of_the_demo_are_those_that_its_script_writes() -> None:
    folder = REPO / "examples" / "grading"
    code = "import make_answers, sys; sys.stdout.write(''.join(make_answers.lines()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout == (folder / "answers.jsonl").read_text()
