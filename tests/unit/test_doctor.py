"""The doctor: from what a host measured to lines, as a table; and a host that measures itself."""

from __future__ import annotations

import copy
import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest

import fsworker
from ctl.cli import main
from ctl.doctor import checks, measure
from ctl.doctor.checks import FAIL, OK, WARN, Check, Here
from ctl.launchers.errors import LaunchError
from fsworker.digest import package_digest
from fsworker.host import account
from fsworker.host.examine import examine
from fsworker.protocol.fsops import Store

pytestmark = pytest.mark.unit

HERE = Here("1.0", "d" * 12, "3.11.7", 16, {"msgpack": "1.0"})
NFS = "30 1 0:50 / /nfs rw,relatime - nfs4 head:/x rw,vers=4.2,{}\n"
GOOD: dict[str, Any] = {
    "python": {"version": "3.11.2", "path": "/p", "shardfleet": "1.0", "digest": "d" * 12},
    "packages": {"msgpack": "1.0"},
    "functions": {"m.f": None},
    "mounts": NFS.format("hard"),
    "real_root": "/nfs/run",
    "visibility": 0.5,
    "rename": {"seconds": 0.002, "replaces": None, "error": "ENOTEMPTY"},
    "trial": 0.1,
    "space": {"free": 1 << 40, "size": 1 << 41, "inodes_free": 10**7, "inodes": 10**8},
    "quota": {"used": 1 << 20, "limit": 10 << 20, "files": 7, "files_limit": 0},
    "limits": {"files": [65536, 65536], "processes": [-1, -1]},
    "clock": 0.1,
    "login": [],
    "sshd": "# MaxStartups 10:30:100\n",
    "problems": {},
}


def lines(facts: dict[str, Any], seconds: float = 1.0) -> dict[str, Check]:
    return {check.what: check for check in checks.judge(facts, seconds, HERE)}


def test_where_all_is_well_every_line_is_ok() -> None:
    found = lines(GOOD)
    assert {c.level for c in found.values()} == {OK} and len(found) == 14
    assert all(not c.advice and c.words for c in found.values())


@pytest.mark.parametrize(
    ("change", "what", "level", "words"),
    [
        ({"python": {"shardfleet": "0.9"}}, "python", FAIL, "the head has 1.0"),
        ({"python": {"digest": "e" * 12}}, "python", WARN, "its code differs"),
        ({"python": {"version": "3.12.0"}}, "python", WARN, "the head has Python 3.11.7"),
        ({"packages": {"msgpack": None}}, "packages", FAIL, "missing: msgpack"),
        (
            {"packages": {"msgpack": "0.9"}},
            "packages",
            WARN,
            "the head has msgpack 1.0",
        ),
        ({"functions": {"m.f": "no module m"}}, "function", FAIL, "m.f: no module m"),
        ({"mounts": NFS.format("nocto")}, "mount", FAIL, "nocto"),
        ({"mounts": NFS.format("ro")}, "mount", FAIL, "read-only"),
        ({"mounts": NFS.format("soft")}, "mount", WARN, "soft"),
        ({"mounts": NFS.format("acdirmax=600")}, "mount", WARN, "acdirmax"),
        ({"mounts": "nonsense"}, "mount", WARN, "does not tell"),
        ({"visibility": 9.0}, "visibility", WARN, "9.00 s"),
        ({"rename": {"replaces": True}}, "rename", FAIL, "was replaced"),
        ({"rename": {"seconds": 1.0}}, "rename", WARN, "1000.0 ms"),
        ({"trial": 8.0}, "write", WARN, "8000 ms"),
        ({"space": {"free": 1 << 20}}, "space", WARN, "0.0 GiB free"),
        ({"space": {"inodes_free": 9}}, "space", WARN, "9 files more"),
        ({"quota": {"used": 19 << 19}}, "quota", WARN, "9.5 of 10 GiB are used"),
        ({"quota": {"files_limit": 7}}, "quota", WARN, "1 of 10 GiB, 7 of 7 files"),
        ({"limits": {"files": [256, 4096]}}, "limits", WARN, "open files 256"),
        ({"limits": {"processes": [100, 100]}}, "limits", WARN, "processes 100"),
        ({"clock": -7200.0}, "clock", WARN, "7200.00 s behind"),
        ({"login": ["logind ends it: linger"]}, "logout", FAIL, "logind ends it"),
        ({"sshd": "  maxstartups 2:100:2\n"}, "sshd", WARN, "MaxStartups 2:100:2"),
        ({"sshd": "Port 22\nMaxStartups=4\nMaxStartups 30\n"}, "sshd", WARN, "MaxStartups 4,"),
    ],
)
def test_each_fault_is_told(change: dict[str, Any], what: str, level: str, words: str) -> None:
    facts = copy.deepcopy(GOOD)
    for key, value in change.items():
        facts[key] = {**facts[key], **value} if isinstance(value, dict) else value
    found = lines(facts)
    assert (found[what].level, words in found[what].words) == (level, True), found[what]
    assert found[what].advice
    others = {c.level for name, c in found.items() if name != what}
    assert others == {OK}


@pytest.mark.parametrize(
    ("change", "what", "words"),
    [
        ({"quota": None}, "quota", "no tool tells of one"),
        ({"quota": {"used": 5, "limit": 0, "files": 1, "files_limit": 0}}, "quota", "no limit"),
        ({"sshd": None}, "sshd", "may not read"),
        ({"sshd": "MaxStartups 50:30:100"}, "sshd", "MaxStartups 50:30:100"),
    ],
)
def test_what_an_account_is_not_told_is_no_fault(
    change: dict[str, Any], what: str, words: str
) -> None:
    line = lines({**GOOD, **change})[what]
    assert (line.level, words in line.words) == (OK, True), line


def test_quota_is_read_as_its_tool_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = (
        "Disk quotas for user me (uid 1000): \n     Filesystem  blocks   quota   limit"
        "   grace   files   quota   limit   grace\n"
    )
    said = head + "server:/my home  1500*   1000    2000 1764500000      12       0       0       0"
    tool = tmp_path / "quota"
    tool.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\ncat <<E\n{said}\nE\nexit 1\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    told = {"used": 1500, "limit": 1000, "files": 12, "files_limit": 0}
    assert account.quota(str(tmp_path)) == told
    where = (tmp_path / "asked").read_text().split("--filesystem=")[1].strip()
    assert os.path.ismount(where), "which is all that the tool takes"
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert account.quota(str(tmp_path)) is None
    assert account.parse_quota(head) is None


def test_the_settings_of_sshd_are_read_where_they_may_be(tmp_path: Path) -> None:
    main, more = tmp_path / "sshd_config", tmp_path / "more"
    more.mkdir()
    (more / "10.conf").write_text("MaxStartups 3\n")
    main.write_text(f"Include {more}/*.conf\nMaxStartups 100\n")
    assert account.sshd_config(str(main)) == "MaxStartups 3\nMaxStartups 100"
    assert account.sshd_config(str(tmp_path / "none")) is None


def test_what_could_not_be_measured_is_a_failure_with_its_reason() -> None:
    facts = {k: v for k, v in GOOD.items() if k != "visibility"}
    facts["problems"] = {"visibility": "no answer was seen in 15 s"}
    line = lines(facts)["visibility"]
    assert (line.level, line.words) == (FAIL, "no answer was seen in 15 s") and line.advice


def test_a_slow_login_is_told_without_what_the_examination_took() -> None:
    assert lines({**GOOD, "took": 30.0}, seconds=31.0)["login"].level == OK
    assert lines(GOOD, seconds=31.0)["login"].level == WARN


def test_the_worst_line_decides() -> None:
    assert checks.worst([]) == OK
    assert checks.worst([Check(OK, "a", ""), Check(WARN, "b", "")]) == WARN
    assert checks.worst([Check(WARN, "a", ""), Check(FAIL, "b", "")]) == FAIL


class HereLauncher:
    """A launcher whose only host is this process; `hosts` named bad cannot be reached."""

    def examine(self, host: str, asked: dict[str, Any]) -> dict[str, Any]:
        if host == "bad":
            raise LaunchError("host bad: no route", host=host, stage="connect")
        return examine({**asked, "host": host})


def test_hosts_measure_themselves_while_this_side_answers(tmp_path: Path) -> None:
    patient = measure.Patient(Store(str(tmp_path)), ("json:loads", "no.such"))
    found = measure.examine(patient, HereLauncher(), ["n1", "n2", "bad"], 4)  # type: ignore[arg-type]
    for host in ("n1", "n2"):
        told = {c.words: c.level for c in found[host]}
        assert told["json:loads can be imported"] == OK
        assert [c.what for c in found[host] if c.level == FAIL] == ["function"]
        assert any(c.what == "visibility" and c.level == OK for c in found[host])
    (line,) = found["bad"]
    assert (line.level, line.what) == (FAIL, "connect") and "ssh HOST true" in line.advice
    failure = measure.summary(found)
    assert failure and "3 of 3 hosts are not fit: n1, n2, bad" in str(failure)
    assert os.listdir(tmp_path) == [], "nothing is left"


def test_a_host_to_which_nobody_answers_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsworker.host.examine.ANSWER_WITHIN", 0.1)
    (tmp_path / "t").mkdir()
    facts = examine({"root": str(tmp_path), "host": "n1", "folder": "t"})
    assert "no answer was seen" in facts["problems"]["visibility"]
    assert facts["python"]["digest"] == package_digest()
    assert facts["python"]["version"] == platform.python_version()
    assert facts["python"]["shardfleet"] == fsworker.__version__
    assert facts["rename"]["replaces"] is None and facts["rename"]["error"] == "ENOTEMPTY"


def test_a_host_that_does_not_see_the_root_says_so(tmp_path: Path) -> None:
    facts = examine({"root": str(tmp_path / "away"), "host": "n1", "folder": "t"})
    assert set(facts["problems"]) == {"space", "clock", "visibility", "rename", "trial"}
    assert facts["quota"] is None


def test_the_command_before_there_is_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_HOSTS", "n1 n2")
    monkeypatch.setenv("FLEET_WORKSPACE", str(tmp_path / "ws"))
    where = ["--root", str(tmp_path), "--launcher", "local", "--fn", "json:loads"]
    assert main(["doctor", *where]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 ok, 0 warn, 0 fail"
    assert main(["doctor", "n1", *where, "--fn", "no.such", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 1 and {c["host"] for c in told["checks"]} == {"n1"}
    assert main(["doctor", "n9", *where]) == 5
    assert main(["doctor", "--root", str(tmp_path / "none")]) == 2
