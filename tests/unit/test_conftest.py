"""The rules of the test suite hold: each is shown on a small suite that breaks it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.waiting import gone

pytestmark = pytest.mark.unit

REPO = Path(__file__).parents[2]


SUITE = {
    "test_call": "import pytest\ndef test_it(): pytest.skip('no sshd here')\n",
    "test_mark": "import pytest\n@pytest.mark.skipif(True, reason='no tcsh here')\n"
    "def test_it(): pass\n",
    "test_module": "import pytest\npytest.skip('no fish here', allow_module_level=True)\n",
    "test_expected": "import pytest\n@pytest.mark.xfail\ndef test_it(): assert False\n",
    "test_inherits": """
import subprocess
def test_it(tmp_path):
    child = subprocess.Popen(["sleep", "300"])
    child.returncode = 0  # its end is nobody's business any more
    open("inherits", "w").write(str(child.pid))
""",
    "test_cleaned": """
import subprocess
def test_it(tmp_path):
    child = subprocess.Popen(["sleep", "301"], env={"HOME": str(tmp_path)})
    child.returncode = 0
    open("cleaned", "w").write(str(child.pid))
""",
    # What is wrong at the end of a session is told with its last test.
    "test_z": "def test_last(): pass\n",
}


def run(folder: Path, files: Mapping[str, str], *, ci: bool) -> tuple[int, str]:
    """Run test files as unit tests under our own conftest and settings."""
    unit = folder / "tests" / "unit"
    unit.mkdir(parents=True)
    for name, source in files.items():
        (unit / f"{name}.py").write_text(source)
    for name in ("pyproject.toml", "tests/conftest.py"):
        (folder / name).write_text((REPO / name).read_text())
    (folder / "tests" / "support").symlink_to(REPO / "tests" / "support")
    env = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_")}
    argv = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist"]
    argv.append("--continue-on-collection-errors")
    done = subprocess.run(
        [*argv, "tests"],
        cwd=folder,
        env=env | ({"CI": "1"} if ci else {}),
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module", params=["CI", "elsewhere"])
def suite(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, Path, list[str]]:
    """The small suite after a run: whether it ran as CI, where, and its lines of output."""
    ci, folder = request.param == "CI", tmp_path_factory.mktemp("suite")
    code, output = run(folder, SUITE, ci=ci)
    assert code == 1, output
    return ci, folder, output.splitlines()


@pytest.mark.parametrize(
    ("name", "why"), [("call", "no sshd"), ("mark", "no tcsh"), ("module", "no fish")]
)
def test_a_skip_is_a_failure_in_ci_only(
    suite: tuple[bool, Path, list[str]], name: str, why: str
) -> None:
    ci, _, lines = suite
    failed = [x for x in lines if x.startswith(("FAILED", "ERROR")) and f"test_{name}" in x]
    assert bool(failed) == ci
    assert any(why in x for x in lines)


def test_an_expected_failure_is_no_skip(suite: tuple[bool, Path, list[str]]) -> None:
    assert any(x.startswith("XFAIL") and "test_expected" in x for x in suite[2])


@pytest.mark.parametrize("name", ["inherits", "cleaned"])
def test_a_process_that_is_left_is_told_and_ended(
    suite: tuple[bool, Path, list[str]], name: str
) -> None:
    _, folder, lines = suite
    text = "\n".join(lines)
    assert "left processes behind" in text
    assert f"sleep {300 if name == 'inherits' else 301}" in text
    assert gone(int((folder / name).read_text()))


def test_a_mark_that_contradicts_the_folder_is_refused(tmp_path: Path) -> None:
    source = "import pytest\npytestmark = pytest.mark.fleet\ndef test_it(): pass\n"
    code, output = run(tmp_path, {"test_it": source}, ci=False)
    assert code != 0
    assert "its folder says unit" in output
