"""What holds for one host: tables of fleet.toml, which wins, and where each value came from."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ctl import config, hostterms, launching, planning
from ctl.cli import main
from ctl.hosts import Allowed, parse
from ctl.launchers import sshconfig
from ctl.planning import Wish
from fsworker.errors import UsageError
from fsworker.protocol.records.hostterms import HostTerms
from fsworker.protocol.records.run import LaunchMeta

pytestmark = pytest.mark.unit

FILE = """
launcher = "ssh"
workspace = "/w"
env = { LANG = "C", A = "all" }

[defaults]
python = "/usr/bin/python3"
labels = "x86"
env = { B = "default" }

[hosts."node[01-04]"]
setup = ["module load python"]
tmp = "/local scratch"
env = { A = "set", C = 3 }
ssh = { Port = 2222, ProxyJump = "gate" }

[hosts.node02]
python = "/opt/python"
labels = ["a100", "x86"]
ssh = { Port = 22 }

[hosts.lone]
"""


def load(tmp_path: Path, text: str = FILE) -> config.Config:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return config.load(str(path), environ={"HOME": str(tmp_path)})


def test_the_last_table_wins_value_by_value(tmp_path: Path) -> None:
    tables = load(tmp_path).tables
    assert tables.terms("node02") == HostTerms(
        "/opt/python",
        ("module load python",),
        {"A": "set", "B": "default", "C": "3"},
        "/local scratch",
        {"Port": "22", "ProxyJump": "gate"},
        labels=("x86", "a100"),
    )
    assert tables.terms("NODE01").ssh["Port"] == "2222"
    lone = HostTerms("/usr/bin/python3", env={"B": "default"}, labels=("x86",))
    assert tables.terms("lone") == lone


def test_hosts_that_are_named_by_tables_are_allowed(tmp_path: Path) -> None:
    found = load(tmp_path)
    names = [h.name for h in parse(found.get("hosts"), "x")]
    assert names == ["node01", "node02", "node03", "node04", "lone"]
    assert "hosts" in found.source("hosts")
    plain = load(tmp_path, 'hosts = "a b"\n[defaults]\ntmp = "/t"\n')
    assert plain.get("hosts") == "a b" and plain.tables.terms("b").tmp == "/t"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[hosts.a]\npyton = "x"\n', "there is no key 'pyton'"),
        ("[hosts]\na = 3\n", '[hosts."a"] must be a table'),
        ('[hosts."a[1-"]\n', 'hosts."a[1-"'),
        ('[defaults]\ntmp = "relative"\n', "absolute path"),
        ("[defaults]\nsetup = 3\n", "list of shell lines"),
        ('[defaults]\nssh = "Port 22"\n', "must be a table such as"),
        ('[defaults.ssh]\n"bad key" = "x"\n', "no option of ssh_config"),
        ('[defaults.ssh]\nPort = "1\\n2"\n', "one line of text"),
        ('[defaults.env]\n"1A" = "x"\n', "[defaults] env"),
        ("[defaults.env]\nA = [1]\n", "must be a text or a number"),
        ("[defaults]\nlabels = [3]\n", "a label must be a text"),
        ("defaults = 3\n", "[defaults] must be a table"),
    ],
)
def test_what_is_wrong_is_named_with_file_table_and_key(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert words in str(caught.value) and "fleet.toml" in str(caught.value)


def plan(tmp_path: Path, **flags: Any) -> LaunchMeta:
    found = load(tmp_path)
    allowed = Allowed(parse(found.get("hosts"), "x"), "x")
    wish = Wish(hosts="node[01-02],lone", functions=("json:loads",), flags=dict(flags))
    return planning.make(wish, found, allowed, str(tmp_path / "run"), "r").meta


def test_a_run_writes_down_what_differs_and_asks_each_host_for_its_own(tmp_path: Path) -> None:
    meta = plan(tmp_path)
    again = LaunchMeta.from_json(meta.to_json(), "meta")
    assert again == meta and set(meta.host_terms) == {"node01", "node02", "lone"}
    asked = {h: launching.request_for(meta, h) for h in ("node01", "node02", "lone")}
    assert [a.python for a in asked.values()] == [
        "/usr/bin/python3", "/opt/python", "/usr/bin/python3",
    ]  # fmt: skip
    assert asked["node01"].env["A"] == "set" and asked["lone"].env["A"] == "all"
    assert asked["node01"].env["TMPDIR"] == "/local scratch"
    assert {a.env["B"] for a in asked.values()} == {"default"}


def test_a_python_on_the_command_line_wins_over_all_tables(tmp_path: Path) -> None:
    meta = plan(tmp_path, python="/mine/python")
    assert launching.request_for(meta, "node02").python == "/mine/python"
    assert launching.request_for(meta, "node02").env["TMPDIR"] == "/local scratch"


def test_labels_of_all_workers_and_of_single_ones_add_up(tmp_path: Path) -> None:
    meta = plan(tmp_path, labels=("fast,x86", "big"))
    asked = launching.request_for(meta, "node02")
    assert asked.labels == ("fast", "x86", "big", "a100")
    argv = asked.worker_argv(["python3", "-m", "fsworker"])
    said = [word for before, word in pairwise(argv) if before == "--label"]
    assert said == ["fast", "x86", "big", "a100"]
    with pytest.raises(UsageError, match="--label: "):
        plan(tmp_path, labels=("a\tb",))


def test_setup_lines_come_after_those_of_all_hosts_and_the_folder_is_made_first() -> None:
    terms = HostTerms(setup=("module load x",), tmp="/a b")
    assert hostterms.setup_for(("all",), terms) == (
        "mkdir -p -- '/a b'", "all", "module load x",
    )  # fmt: skip
    assert hostterms.setup_for(("all",), HostTerms()) == ("all",)


def test_ssh_options_win_as_on_its_command_line(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host *\n  User somebody\n  Port 17\n")
    found = sshconfig.effective("n1", str(file), options={"Port": "2222"})
    assert (found.user, found.port) == ("somebody", 2222)


def test_config_shows_what_holds_for_a_host_and_where_it_came_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(tmp_path)
    file = str(tmp_path / "fleet.toml")
    assert main(["--config", file, "config", "node02"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f'node02: python /opt/python {file}: [hosts."node02"]' in lines
    assert f'node02: ssh.ProxyJump gate {file}: [hosts."node[01-04]"]' in lines
    assert main(["--config", file, "config", "lone", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["host"]
    assert told["settings"]["env.B"] == {"value": "default", "source": f"{file}: [defaults]"}


def test_config_tells_of_labels_all_tables_that_they_came_from(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    text = (
        '[defaults]\nlabels = ["x"]\n[hosts."n[1-2]"]\nlabels = ["y"]\n'
        '[hosts.n2]\nlabels = ["x", "z"]\n'
    )
    tables = load(tmp_path, text).tables
    for host in ("n1", "n2", "n3"):
        assert tables.sources(host)["labels"][0] == tables.terms(host).labels
    assert tables.sources("n1")["labels"][1] == (f'{path}: [defaults] and {path}: [hosts."n[1-2]"]')


def test_config_shows_one_host_and_says_when_it_is_not_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(tmp_path)
    flags = ["--config", str(tmp_path / "fleet.toml"), "config"]
    for text in ("node[01-02]", "", "no such/host"):
        assert main([*flags, text]) == 2, text
        told = capsys.readouterr()
        assert told.out == "" and told.err.count("\n") == 1
    assert main([*flags, "NODE01"]) == 0
    assert "node01: " in capsys.readouterr().out
    assert main([*flags, "stranger"]) == 0
    assert "stranger" in capsys.readouterr().err


def test_hosts_as_a_value_and_as_tables_are_told_apart(tmp_path: Path) -> None:
    text = 'hosts = "n[1-4]"\n[hosts.n1]\npython = "/p"\n'
    with pytest.raises(UsageError, match=r"both hosts = … and .* hosts_file or FLEET_HOSTS"):
        load(tmp_path, text)
