from __future__ import annotations

import base64
import logging
import os
import shutil
import stat
import subprocess

import pytest

from ctl.launchers import hostkeys
from ctl.launchers.errors import LaunchError
from ctl.launchers.hosttrust import known_kinds, require_trust
from ctl.launchers.sshconfig import Settings

pytestmark = pytest.mark.unit


def blob(kind: str, body: bytes) -> bytes:
    return len(kind).to_bytes(4, "big") + kind.encode() + len(body).to_bytes(4, "big") + body


ED, RSA = "ssh-ed25519", "ssh-rsa"
KEY, OTHER = blob(ED, b"k" * 32), blob(ED, b"o" * 32)
RSA_KEY = blob(RSA, b"r" * 64)


def b64(key: bytes) -> str:
    return base64.b64encode(key).decode()


def line(hosts: str, key: bytes = KEY, kind: str = ED, marker: str = "") -> str:
    return f"{marker} {hosts} {kind} {b64(key)} a comment".strip()


def entries(*lines: str) -> list[hostkeys.Entry]:
    return hostkeys.parse("\n".join(lines).encode(), "/k")


@pytest.mark.parametrize(
    ("hosts", "name", "matches"),
    [
        ("n1", "n1", True),
        ("n1", "n10", False),
        ("n1,n2,10.0.0.2", "n2", True),
        ("N1.Cluster", "n1.cluster", True),
        ("*.cluster", "n7.cluster", True),
        ("n?", "n7", True),
        ("n?", "n77", False),
        ("*,!n7", "n7", False),
        ("*,!n7", "n8", True),
        ("!n7", "n8", False),
        ("[n1]:2222", "[n1]:2222", True),
        ("[n1]:2222", "n1", False),
        ("n1", "[n1]:2222", False),
        ("[*]:2222", "[n1]:2222", True),
        ("[n]1", "n1", False),
        ("|1|garbage", "n1", False),
        ("|1|a|b", "n1", False),
    ],
)
def test_host_patterns(hosts, name, matches):
    (entry,) = entries(line(hosts))
    assert entry.matches(name) is matches


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen as the oracle")
def test_hashed_names_are_those_of_openssh(tmp_path):
    file = tmp_path / "known"
    hostkeys.add(str(file), "[n1]:2222", ED, KEY, hashed=True)
    assert "n1" not in file.read_text()
    found = subprocess.run(
        ["ssh-keygen", "-F", "[n1]:2222", "-f", str(file)], capture_output=True, check=False
    )
    assert b64(KEY).encode() in found.stdout
    plain = tmp_path / "plain"
    plain.write_text(line("n2") + "\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(plain)], check=True, capture_output=True)
    (entry,) = hostkeys.read([str(plain)])
    assert entry.hosts.startswith("|1|")
    assert (entry.matches("n2"), entry.matches("n3")) == (True, False)


@pytest.mark.parametrize(
    ("lines", "names", "state", "at"),
    [
        ([line("n1")], ["n1"], "known", 1),
        ([], ["n1"], "unknown", None),
        ([line("n2")], ["n1"], "unknown", None),
        ([line("n1", OTHER)], ["n1"], "changed", 1),
        ([line("n1", OTHER), line("n1")], ["n1"], "known", 2),
        ([line("n1", RSA_KEY, RSA)], ["n1"], "other", 1),
        ([line("n1", RSA_KEY, RSA), line("n1", OTHER)], ["n1"], "changed", 2),
        ([line("n1"), line("*", KEY, marker="@revoked")], ["n1"], "revoked", 2),
        ([line("n1"), line("n2", KEY, marker="@revoked")], ["n1"], "known", 1),
        ([line("n1"), line("*", OTHER, marker="@revoked")], ["n1"], "known", 1),
        ([line("*", KEY, marker="@cert-authority")], ["n1"], "unknown", 1),
        # a name without its port can vouch for the key, and cannot make it wrong
        ([line("n1")], ["[n1]:22022", "n1"], "known", 1),
        ([line("n1", OTHER)], ["[n1]:22022", "n1"], "unknown", None),
        ([line("n1"), line("[n1]:22022", OTHER)], ["[n1]:22022", "n1"], "changed", 2),
    ],
)
def test_verdicts(tmp_path, lines, names, state, at):
    file = tmp_path / "known"
    file.write_text("".join(f"{one}\n" for one in lines))
    for all_or_some in (entries(*lines), hostkeys.read([str(file)], names)):
        found = hostkeys.verdict(all_or_some, names, ED, KEY)
        assert found.state == state
        assert (found.entry.line if found.entry else None) == at


@pytest.mark.parametrize("name", ["n1", "n7.cluster", "[n1]:2222", "n8", "nobody"])
def test_looking_up_a_name_leaves_out_no_entry_that_matches(tmp_path, name):
    file = tmp_path / "known"
    patterns = ["n1", "n1,n2,N8", "*.cluster", "n?", "*,!n7", "[n1]:2222", "[*]:2222", "x"]
    file.write_text("".join(line(one) + "\n" for one in patterns))
    hostkeys.add(str(file), name, ED, KEY, hashed=True)
    some = hostkeys.read([str(file)], [name])
    assert some == [e for e in hostkeys.read([str(file)]) if e in some or e.matches(name)]
    assert len(some) < len(patterns)


def test_damaged_lines_are_named_and_skipped(caplog):
    good = line("n1").encode()
    lines = [
        good,
        b"# a comment",
        b"",
        b"n2 ssh-ed25519",
        b"n3 ssh-ed25519 ###",
        b"n4 ssh-rsa " + b64(KEY).encode(),
        b"n5 ssh-ed25519 AAAA",
        b"\xff\xfe\x00",
        b"@what n6 ssh-ed25519 " + b64(KEY).encode(),
        b"@revoked",
        b"n6 ssh-ed25519 \xfc" + b64(KEY).encode(),
        good.replace(b"n1", b"n7") + b"\r",
    ]
    with caplog.at_level(logging.WARNING):
        found = hostkeys.parse(b"\n".join(lines), "/etc/known")
    assert [e.hosts for e in found] == ["n1", "n7"]
    assert [e.line for e in found] == [1, 12]
    named = [r.getMessage() for r in caplog.records]
    assert len(named) == 8
    for number, text in zip(range(4, 12), named, strict=True):
        assert text.startswith(f"/etc/known:{number} is damaged")


@pytest.mark.parametrize(
    "form",
    ["@revoked\t{hosts} {key}", "@revoked \t {hosts}\t{key}", "@revoked {hosts} {key} m\xfcller"],
    ids=["tab", "blanks", "latin-1"],
)
def test_a_revoked_key_stays_revoked_however_its_line_is_written(form, caplog):
    text = form.format(hosts="n1", key=f"{ED} {b64(KEY)}").encode("latin-1")
    found = hostkeys.parse(text + b"\n" + line("n1").encode(), "/k")
    assert not caplog.records
    assert hostkeys.verdict(found, ["n1"], ED, KEY).state == "revoked"


def test_a_comment_in_any_encoding_is_no_damage(caplog):
    good = f"n1 {ED} {b64(KEY)} m\xfcller@n\xe4he"
    for text in (good.encode(), good.encode("latin-1")):
        assert [e.key for e in hostkeys.parse(text, "/k")] == [KEY]
    assert not caplog.records


def test_a_type_that_we_do_not_speak_is_not_damage(caplog):
    kind = "sk-ssh-ed25519@openssh.com"
    with caplog.at_level(logging.WARNING):
        assert len(entries(line("n1", blob(kind, b"x"), kind))) == 1
    assert not caplog.records


def test_a_changed_file_is_read_again(tmp_path):
    file = tmp_path / "known"
    file.write_text(line("n1") + "\n")
    assert [e.hosts for e in hostkeys.read([str(file), "/not/there"])] == ["n1"]
    hostkeys.add(str(file), "n2", ED, OTHER)
    assert [e.hosts for e in hostkeys.read([str(file)])] == ["n1", "n2"]


def test_adding_makes_private_files_and_spares_an_open_last_line(tmp_path):
    file = tmp_path / "new" / "known"
    hostkeys.add(str(file), "n1", ED, KEY)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(file.parent).st_mode) == 0o700
    file.write_text(line("n1"))  # no newline at its end
    hostkeys.add(str(file), "n2", ED, OTHER)
    assert [e.hosts for e in hostkeys.read([str(file)])] == ["n1", "n2"]


def settings(tmp_path, **more) -> Settings:
    files = {"user_known_hosts": (str(tmp_path / "known"),)}
    return Settings(**{"host": "n1", "hostname": "n1", "port": 22, "user": "u", **files, **more})


def refusal(where: Settings, accept_new: bool = False) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        require_trust(where, ED, KEY, accept_new=accept_new)
    assert caught.value.stage == "hostkey"
    assert not caught.value.transient
    assert caught.value.host == "n1"
    return caught.value


def test_an_unknown_key_names_the_file_and_adds_nothing(tmp_path):
    error = refusal(settings(tmp_path))
    assert str(tmp_path / "known") in str(error)
    assert hostkeys.fingerprint(KEY) in str(error)
    assert "ssh-keyscan" in str(error)
    assert not (tmp_path / "known").exists()


def test_an_unknown_key_is_added_when_asked(tmp_path):
    where = settings(tmp_path, port=2222)
    require_trust(where, ED, KEY, accept_new=True)
    assert (tmp_path / "known").read_text() == f"[n1]:2222 {ED} {b64(KEY)}\n"
    require_trust(where, ED, KEY, accept_new=False)


@pytest.mark.parametrize("accept_new", [False, True])
@pytest.mark.parametrize(
    ("known", "text"),
    [
        (line("n1", OTHER), "is not the one"),
        (line("n1", KEY, marker="@revoked"), "revoked"),
        (line("n1", RSA_KEY, RSA), "ssh-rsa"),
    ],
)
def test_what_contradicts_is_never_accepted(tmp_path, accept_new, known, text):
    (tmp_path / "known").write_text("# first\n" + known + "\n")
    error = refusal(settings(tmp_path), accept_new)
    assert f"{tmp_path / 'known'}:2" in str(error)
    assert text in str(error)
    assert error.path == str(tmp_path / "known")
    assert (tmp_path / "known").read_text() == "# first\n" + known + "\n"


def test_a_certificate_authority_is_mentioned(tmp_path):
    (tmp_path / "known").write_text(line("*", OTHER, marker="@cert-authority") + "\n")
    assert "known:1 names an authority" in str(refusal(settings(tmp_path)))


def test_an_alias_stands_for_name_and_port(tmp_path):
    (tmp_path / "known").write_text(line("Login") + "\n")
    require_trust(settings(tmp_path, host_key_alias="LOGIN", port=99), ED, KEY, accept_new=False)


def test_the_types_on_record_are_asked_for_first(tmp_path):
    (tmp_path / "known").write_text(line("n1", RSA_KEY, RSA) + "\n" + line("n1") + "\n")
    assert known_kinds(settings(tmp_path)) == [RSA, ED]
