"""Host lists: every way people write them, and what must never pass for a host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctl import hosts
from ctl.hosts import Allowed, Host
from fsworker.errors import Refused, UsageError

pytestmark = pytest.mark.unit

FIELD_FILE = (
    b"\xef\xbb\xbfnode1\r\nnode10   # rack 2\r\n\r\n  node2\t\r\nNode2\r\n"
    b"node3.cl.example\r\n#node4\r\n[::1]:2222\r\nfleet@node5\r\n"
)


def names(text: str) -> list[str]:
    return [h.name for h in hosts.parse(text, "FLEET_HOSTS")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n1 n2\tn3\nn4", ["n1", "n2", "n3", "n4"]),
        ("n1, n2,n3,", ["n1", "n2", "n3"]),
        ("", []),
        ("  # nobody\n", []),
        ("node[01-03,20]", ["node01", "node02", "node03", "node20"]),
        ("a node[1-2] b", ["a", "node1", "node2", "b"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("\ufeffn1\r\nn2\r\n", ["n1", "n2"]),
        ("node3.cl.example", ["node3.cl.example"]),
        ("10.0.0.7 under_score x-1", ["10.0.0.7", "under_score", "x-1"]),
        ("::1", ["::1"]),
    ],
)
def test_lists(text: str, found: list[str]) -> None:
    assert names(text) == found


def test_user_and_port_are_understood_beside_the_name() -> None:
    found = hosts.parse("fleet@n5 [::1]:2222 u@[fe80::1%eth0]:22 n6:2200 u@n[7-8]", "x")
    assert [(h.name, h.user, h.port) for h in found] == [
        ("n5", "fleet", None),
        ("::1", None, 2222),
        ("fe80::1%eth0", "u", 22),
        ("n6", None, 2200),
        ("n7", "u", None),
        ("n8", "u", None),
    ]


def test_the_file_from_the_field_is_refused_for_its_two_spellings(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_bytes(FIELD_FILE)
    with pytest.raises(UsageError) as caught:
        hosts.allowed_hosts(None, "default", str(path), "FLEET_HOSTS_FILE")
    assert str(caught.value) == (
        f"{path} line 5: host 'Node2' is there already as 'node2' ({path} line 4): keep one of them"
    )


def test_the_file_from_the_field_without_its_second_spelling(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_bytes(FIELD_FILE.replace(b"Node2\r\n", b""))
    allowed = hosts.allowed_hosts(None, "default", str(path), "FLEET_HOSTS_FILE")
    found = [(h.name, h.user, h.port) for h in allowed]
    assert found == [
        ("node1", None, None),
        ("node10", None, None),
        ("node2", None, None),
        ("node3.cl.example", None, None),
        ("::1", None, 2222),
        ("node5", "fleet", None),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-oProxyCommand=x", "is not a host name"),
        ("a/b", "is not a host name"),
        ("n1;reboot", "is not a host name"),
        ("$(reboot)", "is not a host name"),
        (".hidden", "is not a host name"),
        ("n\u00f6de", "is not a host name"),
        ("a" * 300, "is not a host name"),
        ("node[1-3", "bracket without its partner"),
        ("node[3-1]", "is not a host set"),
        ("node[a-b]", "is not a host set"),
        ("n1:0", "is not a port"),
        ("n1:99999", "is not a port"),
        ("n1:ssh", "is not a port"),
        ("[::1]x", "is not a port"),
        ("[::zz]", "is not a host set"),
        ("1:2:3", "is not an IPv6 address"),
        ("-o@n1", "is not a user name"),
    ],
)
def test_what_is_no_host_is_named(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        hosts.parse(text, "FLEET_HOSTS")
    assert words in str(caught.value)
    assert str(caught.value).startswith("FLEET_HOSTS: ")


def test_a_list_and_a_file_are_one_list(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("n3\nn1\n")
    allowed = hosts.allowed_hosts("n2", "FLEET_HOSTS", str(path), "fleet.toml: hosts_file")
    assert allowed.names == ["n1", "n2", "n3"]


@pytest.mark.parametrize("data", [b"\xff\xfen\x001\x00", b"n1\n\xe4\n"])
def test_a_file_that_is_not_utf8_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "hosts.txt"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"{path} is not UTF-8"):
        hosts.read_file(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read host file .*none: No such file"):
        hosts.read_file(str(tmp_path / "none"))


def test_only_allowed_hosts_pass() -> None:
    allowed = Allowed(hosts.parse("node1 node10 node1.cl.example", "x"), "FLEET_HOSTS")
    assert allowed.check("NODE1") == Host("node1", where="x")
    for name in ("node", "node100", "node1.cl", "node1.cl.example.org"):
        with pytest.raises(Refused, match="is not among the allowed hosts"):
            allowed.check(name)


def test_this_machine_is_refused_unless_it_is_allowed() -> None:
    here = os.uname().nodename
    with pytest.raises(Refused, match=r"\(it is this machine\) is not among"):
        Allowed(hosts.parse("other", "x"), "x").check("localhost")
    assert Allowed(hosts.parse(here, "x"), "x").check(here).name == here


def test_an_empty_list_allows_nobody() -> None:
    with pytest.raises(Refused, match="no host is: set FLEET_HOSTS"):
        Allowed([], "default").check("n1")


def test_a_name_in_a_hosts_option_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="host 'N2' is there already as 'n2'"):
        hosts.names_of("n[1-3] N2")


def test_plain_lists_do_not_import_clustershell() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from ctl import hosts; hosts.parse('n1 n2,u@n3 [::1]:22', 'x');"
        "sys.exit('ClusterShell' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=240).returncode == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    ["node[1-999999999]", "r[1-9999]n[1-9999]", "n[1-60000] m[1-60000]", "n[0-9999999999999999]"],
)
def test_a_set_of_absurd_size_is_refused_before_it_fills_the_memory(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text(f"# all\n{text}\n")
    with pytest.raises(UsageError, match=r"FLEET_HOSTS: .* more than 100000 hosts: shorten it"):
        hosts.parse(text, "FLEET_HOSTS")
    with pytest.raises(UsageError, match=r"hosts line 2: .* more than 100000 hosts"):
        hosts.read_file(str(tmp_path / "hosts"))
    with pytest.raises(UsageError, match="--hosts: "):
        hosts.names_of(text)


def test_a_set_of_a_large_cluster_is_taken() -> None:
    assert len(names("n[0001-9999],m[1-999999/100]")) == 9999 + 10_000
