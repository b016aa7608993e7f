from __future__ import annotations

import os
import random
import shutil
import socket

import pytest

from ctl.launchers.errors import LaunchError
from ctl.launchers.sshblocks import SshConfig
from ctl.launchers.sshconfig import (
    effective,
    jump_argv,
    parse,
    public_blob,
    read_output,
    split_files,
)

pytestmark = pytest.mark.unit
needs_ssh = pytest.mark.skipif(not shutil.which("ssh"), reason="needs the ssh program")

OUTPUT = """\
user alice
hostname n1.cluster
port 2222
addressfamily inet
identitiesonly yes
hashknownhosts yes
identityfile ~/.ssh/id_ed25519
identityfile %d/keys/%h-%p-%r-%n
certificatefile ~/a-cert.pub
userknownhostsfile /etc/a /etc/b
globalknownhostsfile none
connecttimeout 7
serveraliveinterval 33
hostkeyalias none
proxyjump none
"""


def test_the_output_of_ssh_is_understood(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    found = parse("n1", read_output(OUTPUT), ("ssh",))
    assert (found.hostname, found.port, found.user) == ("n1.cluster", 2222, "alice")
    assert found.identity_files == (
        "/home/me/.ssh/id_ed25519",
        "/home/me/keys/n1.cluster-2222-alice-n1",
    )
    assert found.certificate_files == ("/home/me/a-cert.pub",)
    assert found.identities_only and found.hash_known_hosts
    assert found.user_known_hosts == ("/etc/a", "/etc/b")
    assert found.global_known_hosts == ()
    assert found.connect_timeout == 7
    assert found.keepalive == 33
    assert found.family == socket.AF_INET
    assert found.proxy is None and found.agent is None and found.host_key_alias is None
    assert found.known_as == ("[n1.cluster]:2222", "n1.cluster")


def test_without_ssh_the_defaults_hold(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HOME", "/home/me")
    found = effective("n1")
    assert (found.hostname, found.port) == ("n1", 22)
    assert "/home/me/.ssh/id_ed25519" in found.identity_files
    assert found.user_known_hosts[0] == "/home/me/.ssh/known_hosts"
    assert found.known_as == ("n1",)
    with pytest.raises(LaunchError, match="no ssh is installed"):
        effective("n1", "/etc/ssh/ssh_config")


@pytest.mark.parametrize(
    ("value", "env", "agent"),
    [
        ("none", "/a", None),
        ("SSH_AUTH_SOCK", "/a", "/a"),
        ("$OTHER", "/a", "/o"),
        ("/run/agent", "/a", "/run/agent"),
    ],
)
def test_which_agent(monkeypatch, value, env, agent):
    monkeypatch.setenv("SSH_AUTH_SOCK", env)
    monkeypatch.setenv("OTHER", "/o")
    assert parse("n1", {"identityagent": [value]}, ("ssh",)).agent == agent


@pytest.mark.parametrize(
    ("jump", "tail"),
    [
        ("gate", ["--", "gate"]),
        ("me@gate:2200", ["-l", "me", "-p", "2200", "--", "gate"]),
        ("ssh://me@gate:2200", ["-l", "me", "-p", "2200", "--", "gate"]),
        ("[::1]:22", ["-p", "22", "--", "::1"]),
        ("one,me@two,three", ["-J", "one,me@two", "--", "three"]),
    ],
)
def test_jumps(jump, tail):
    argv = list(jump_argv(jump, "n1", "22", ("ssh", "-F", "cfg")))
    assert argv[:3] == ["ssh", "-F", "cfg"]
    assert "BatchMode=yes" in argv
    assert argv[argv.index("-W") + 1] == "[n1]:22"
    assert argv[argv.index("-W") + 2 :] == tail


def test_a_proxy_command_has_its_tokens_replaced():
    given = {"proxycommand": ["nc %h %p # %r %n 100%%"], "hostname": ["h"], "user": ["u"]}
    found = parse("n1", given, ("ssh",))
    assert found.proxy == ("/bin/sh", "-c", "exec nc h 22 # u n1 100%")


REFUSED = [
    "ProxyUseFdpass yes",
    "BindInterface eth0",
    "RevokedHostKeys /etc/revoked",
    "PubkeyAuthentication no",
    "PreferredAuthentications gssapi-with-mic,password",
]


@needs_ssh
@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_followed_is_refused_by_file_line_and_directive(tmp_path, line):
    directive = line.split()[0]
    config, more = tmp_path / "config", tmp_path / "more"
    more.write_text(f"# {line}\nHost n2\n  {line}\nHost n1 n3\n  User bob\n  {line}\n")
    config.write_text(
        f"Include {more}\nHost n4\n  {line}\nMatch host n5\n  {line}\n"
        f"Match host n7 exec true\n  {line}\nMatch host n8\n  Port 7\nMatch all\n  User eve\n"
    )
    for call in (SshConfig(str(config)).effective, lambda host: effective(host, str(config))):
        for host, place in (("n1", f"{more} line 6"), ("n2", f"{more} line 3")):
            with pytest.raises(LaunchError) as caught:
                call(host)
            words = f"host {host}: {place}: {directive} "
            assert str(caught.value).startswith(words) and "not supported" in str(caught.value)
        for host, number in (("n4", 3), ("n5", 5), ("n7", 7)):
            with pytest.raises(LaunchError, match=f"{config} line {number}: {directive}"):
                call(host)
        assert call("n6").hostname == "n6"
    config.write_text(f"Host n4\n  {line}\nMatch all\n  {line}\n")
    with pytest.raises(LaunchError, match=f"{config} line 4: {directive}"):
        effective("n1", str(config))


@needs_ssh
def test_an_option_that_cannot_be_followed_is_refused_by_its_table(tmp_path):
    config = tmp_path / "config"
    config.write_text("PubkeyAuthentication yes\n")
    with pytest.raises(LaunchError, match=r"fleet\.toml: PubkeyAuthentication"):
        effective("n1", str(config), options={"PubkeyAuthentication": "no"})
    assert effective("n1", str(config), options={"BindAddress": "127.0.0.5"}).bind_address


@needs_ssh
@pytest.mark.parametrize(
    "line", ["BindInterface none", "PreferredAuthentications password,publickey"]
)
def test_values_that_ask_for_nothing_else_are_taken(tmp_path, line):
    config = tmp_path / "config"
    config.write_text(line + "\n")
    assert effective("n1", str(config)).bind_address is None


def test_files_with_blanks_are_found_again(tmp_path):
    (tmp_path / "a b").touch()
    (tmp_path / "c").touch()
    value = f"{tmp_path}/a b {tmp_path}/c /not/there"
    assert split_files(value) == [f"{tmp_path}/a b", f"{tmp_path}/c", "/not/there"]


@needs_ssh
def test_ssh_itself_is_asked(tmp_path):
    config = tmp_path / "my config"
    config.write_text(
        "Match host n1 exec true\n  HostName 127.0.0.9\n  Port 2201\n"
        "Host *\n  User bob\n  IdentityFile /k/%h\n  ProxyJump gate\n"
    )
    found = effective("n1", str(config))
    assert (found.hostname, found.port, found.user) == ("127.0.0.9", 2201, "bob")
    assert found.identity_files == ("/k/127.0.0.9",)
    assert found.proxy is not None
    assert found.proxy[1:3] == ("-F", str(config))


@needs_ssh
def test_a_wrong_configuration_is_told_in_the_words_of_ssh(tmp_path):
    config = tmp_path / "config"
    config.write_text("Colour red\n")
    with pytest.raises(LaunchError, match="line 1") as caught:
        effective("n1", str(config))
    assert caught.value.stage == "connect"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["", "-oProxyCommand=touch x"])
def test_what_is_no_host_name_never_reaches_a_command_line(host):
    with pytest.raises(LaunchError, match="not a host name"):
        effective(host)


def test_public_halves(tmp_path):
    key = tmp_path / "key"
    assert public_blob(str(key)) is None
    (tmp_path / "key.pub").write_text("ssh-ed25519 QUJD me@here\n")
    assert public_blob(str(key)) == b"ABC"
    (tmp_path / "key.pub").write_text("broken\n")
    assert public_blob(str(key)) is None
    found = parse("n1", {"identityfile": [str(key), str(tmp_path / "no")]}, ("ssh",))
    assert found.key_files() == [os.fspath(key)]


# --- many hosts by few answers of ssh

PLAIN = """
Include {folder}/more*.conf
Host n0
  HostName 127.0.0.9
  Port 2222
Host n1 n2
  User bob
Host n? !n3
  HostName %h.cluster
  ProxyCommand nc %h %p
Host=gw
  Port 2200
Host *
  Port=2201
  IdentityFile "/keys/my key"
  IdentityFile ~/.ssh/%n
  ConnectTimeout 7
"""
NAMES = [f"n{i}" for i in range(6)] + ["gw", "gw.cluster", "m1", "other"]


def both(config, file, name):
    """What is told of a host, by our reading and by ssh: settings, or why not."""
    answers = []
    for call in (lambda: config.effective(name), lambda: effective(name, str(file))):
        try:
            answers.append(call())
        except LaunchError as error:
            answers.append(str(error))
    return answers


@needs_ssh
def test_most_hosts_need_no_answer_of_their_own(tmp_path):
    file = tmp_path / "config"
    file.write_text(PLAIN.format(folder=tmp_path))
    (tmp_path / "more1.conf").write_text("Host m*\n  HostName 127.1.1.1\n  User eve\n")
    config = SshConfig(str(file))
    for name in NAMES:
        ours, theirs = both(config, file, name)
        assert ours == theirs and not isinstance(ours, str)
    assert config.asked == 2, "those of n?, and the others"

    (tmp_path / "more2.conf").write_text("Host n5\n  HostName 127.2.2.2\n")
    assert config.effective("n5").hostname == "127.2.2.2", "a new file is seen"
    assert config.asked == 3
    assert config.effective("n4", {"Port": "1"}).port == 1 and config.asked == 4


ODD = [
    "Match host n1\n  Port 7",
    "CanonicalizeHostname yes",
    'Host "n1"\n  Port 7',
    "Host n1 # not n2\n  Port 7",
    "Host n1\n  HostName %n.x\n",
    "UserKnownHostsFile /known/%h",
    "Host n1\n  Include /dev/null",
    "Include ~/nowhere",
]


@needs_ssh
@pytest.mark.parametrize("text", ODD)
def test_what_is_not_plain_is_asked_of_ssh_for_each_host(tmp_path, text):
    file = tmp_path / "config"
    file.write_text(text + "\n")
    config = SshConfig(str(file))
    for name in ("n1", "n2", "n3"):
        ours, theirs = both(config, file, name)
        assert ours == theirs
    assert config.asked == 3


@needs_ssh
def test_of_configurations_drawn_by_chance_ssh_says_the_same(tmp_path):
    draw = random.Random(5)
    lines = [
        *("HostName 127.0.0.1", "HostName %h.x", "Port 22", "Port 2022", "User ann", "User bob"),
        *("ProxyJump gw", "ProxyCommand nc %h %p", "ProxyJump none", "IdentityAgent none"),
        *("IdentityFile /k/%n-%r", "ConnectTimeout 5", "HostKeyAlias fleet", "AddressFamily inet"),
    ]
    patterns = ["n1", "n2 n3", "n?", "* !n1", "*", "gw", "n* !n2 gw", "!n1"]
    asked = 0
    for number in range(25):
        file, text = tmp_path / f"config{number}", draw.sample(lines, draw.randint(0, 2))
        for _ in range(draw.randint(1, 5)):
            text.append(f"Host {draw.choice(patterns)}")
            text += ["  " + one for one in draw.sample(lines, draw.randint(1, 4))]
        file.write_text("\n".join(text) + "\n")
        config = SshConfig(str(file))
        for name in ("n1", "n2", "n3", "n4", "gw"):
            ours, theirs = both(config, file, name)
            assert ours == theirs, (name, text)
        asked += config.asked
    assert asked < 100, "of 125 questions"
