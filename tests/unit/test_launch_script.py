from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctl.launchers import open_launcher
from ctl.launchers.base import ScriptLauncher, Timeouts
from ctl.launchers.errors import LaunchError, no_reply
from ctl.launchers.script import (
    REPLY_LIMIT,
    ReplyReader,
    begin_mark,
    build,
    clean,
    end_mark,
    hello_mark,
)
from fsworker.errors import Refused, UsageError

pytestmark = pytest.mark.unit
MARK = "0123abcd"
REPLY = b'\n<BEGIN 0123abcd>{"ok": true}<END 0123abcd>\n'
HELLO = b"\n<HELLO 0123abcd>\n"


def read(*pieces: bytes) -> ReplyReader:
    reader = ReplyReader(MARK)
    for piece in pieces:
        if reader.feed(piece):
            break
    return reader


def run_sh(body: bytes, shell: str = "sh") -> bytes:
    return subprocess.run([shell, "-s"], input=body, capture_output=True, check=False).stdout


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=30))
def test_the_reply_is_found_in_any_noise_and_any_pieces(noise: bytes, sizes: list[int]):
    whole, pieces = noise + HELLO + noise + REPLY + noise, []
    for size in sizes:
        pieces.append(whole[:size])
        whole = whole[size:]
    reader = read(*pieces, whole)
    assert reader.hello
    assert reader.reply == b'{"ok": true}'


def test_a_long_noise_is_not_kept():
    reader = ReplyReader(MARK)
    for _ in range(100):
        assert not reader.feed(b"x" * 65536)
    assert len(reader._tail) < 300_000
    assert reader.feed(HELLO + REPLY)
    assert reader.reply == b'{"ok": true}'


def test_a_reply_with_another_marker_is_noise():
    assert read(HELLO, REPLY.replace(b"0123abcd", b"deadbeef")).reply is None


def test_a_reply_without_end_stops_being_read():
    reader = ReplyReader(MARK)
    reader.feed(HELLO + begin_mark(MARK))
    pieces = 0
    while not reader.feed(b"x" * 100_000):
        pieces += 1
        assert pieces * 100_000 < 2 * REPLY_LIMIT
    assert reader.too_much


def test_the_marks_are_those_of_the_host_side():
    assert (hello_mark("a"), begin_mark("a"), end_mark("a")) == (
        b"<HELLO a>",
        b"<BEGIN a>",
        b"<END a>",
    )


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_every_value_arrives_as_it_was(tmp_path, shell):
    odd = "a 'b' \"c\" $(touch x) `id` \\ * ? ; & | > 1 \n é \x07 !x"
    package = tmp_path / "it's a path" / "fsworker"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "hostside.py").write_text("import sys, os; print(sys.argv[1], os.getcwd())")
    body = build(
        {"marker": MARK, "root": odd}, python=sys.executable, pythonpath=[str(package.parent)]
    )
    said = run_sh(body, shell).decode()
    assert said.startswith("\n<HELLO 0123abcd>\n")
    assert json.loads(said.splitlines()[2].removesuffix(" /"))["root"] == odd


def test_a_cut_script_runs_nothing(tmp_path):
    witness = tmp_path / "ran"
    body = build({"marker": MARK}, python=sys.executable, setup=[f"touch {witness}"])
    for size in range(len(body) - 1):
        if size % 7 == 0:
            run_sh(body[:size])
    assert not witness.exists()
    run_sh(body)
    assert witness.exists()


def test_setup_lines_cannot_eat_the_script_and_hold_for_what_follows():
    body = build(
        {"marker": MARK},
        python="/bin/sh\\-not-there",
        setup=["cat >/dev/null", "X=5; export X", 'echo "x is $X"'],
    )
    assert b"x is 5" in run_sh(body)


def test_a_shell_that_echoes_its_input_does_not_forge_a_mark():
    body = build({"marker": MARK}, python="/not/there")
    assert not any(m(MARK) in body for m in (hello_mark, begin_mark, end_mark))


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        (b"\x1b[2J\x1b[1;31mred\x1b[0m\r\n", "red"),
        (b"\x1b]0;title\x07shown", "shown"),
        (b"bad \xff\xfe bytes", "bad ?? bytes"),
        (b"one\n\n  two \t three\n", "one / two three"),
        (b"", ""),
        (b"\x00\x07", ""),
    ],
)
def test_words_are_fit_to_be_shown(raw, seen):
    assert clean(raw) == seen


def test_long_words_keep_their_end():
    shown = clean(b"x" * 100_000 + b" the end")
    assert shown.endswith("the end")
    assert len(shown) < 500


@pytest.mark.parametrize(
    ("said", "status", "stage", "denied", "text"),
    [
        (b"access denied: no jobs\n", 254, "command", "access denied: no jobs", "no jobs"),
        (b"sftp only\n", 0, "command", "sftp only", "sftp only"),
        (b"", 1, "reply", None, "exit status 1"),
        (b"", None, "reply", None, "without a word"),
        (b"noise" + HELLO + b"sh: /p: not found\n", 127, "reply", None, "interpreter /p "),
        (HELLO + b"No module named fsworker\n", 1, "reply", None, "does not find the package"),
        (HELLO + b"Killed\n", 137, "reply", None, "Killed"),
        (HELLO + REPLY[:-20], 0, "reply", None, "cut off"),
    ],
)
def test_no_reply_says_why(said, status, stage, denied, text):
    error = no_reply("n1", read(said), status, "/p")
    assert (error.stage, error.denied, error.host) == (stage, denied, "n1")
    assert not error.transient
    assert "n1" in str(error)
    assert text in str(error)
    assert "noise" not in str(error)


def test_an_error_keeps_its_fields_when_words_are_added_and_when_it_travels():
    error = LaunchError("host n1: gone", host="n1", stage="command", transient=True, denied="no")
    said = error.with_words("help")
    assert error.with_words("") is error
    assert str(said) == "host n1: gone; its last words: help"
    back = pickle.loads(pickle.dumps(said))
    assert str(back) == str(said)
    for one in (said, back):
        assert (one.host, one.stage, one.transient, one.denied) == ("n1", "command", True, "no")


class Scripted(ScriptLauncher):
    """A launcher whose host does what a list says: raise an error, or print bytes."""

    name = "scripted"

    def __init__(self, *steps, **options):
        super().__init__(python="python", **options)
        self.steps = list(steps)

    def run_script(self, host, body, sink, timeout):
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        marker = re.search(rb"HELLO (\w+)", body)[1].decode()
        sink(step.encode().replace(b"MARK", marker.encode()))
        return 0


OK = '<BEGIN MARK>{"ok": true, "boot_id": "b"}<END MARK>'


def broken(**fields) -> LaunchError:
    return LaunchError("host n1: it broke", host="n1", stage="banner", **fields)


def test_what_passes_is_tried_again():
    launcher = Scripted(broken(transient=True), broken(transient=True), OK)
    assert launcher.probe("n1", "/r").boot_id == "b"


@pytest.mark.parametrize(
    "error", [broken(), broken(transient=True, timed_out=True)], ids=["lasting", "timed out"]
)
def test_what_does_not_pass_is_not_tried_again(error):
    launcher = Scripted(error, OK)
    with pytest.raises(LaunchError):
        launcher.probe("n1", "/r")
    assert launcher.steps == [OK]


def test_trying_again_ends():
    launcher = Scripted(*[broken(transient=True)] * 99, timeouts=Timeouts(retry=0.8))
    begun = time.monotonic()
    with pytest.raises(LaunchError):
        launcher.probe("n1", "/r")
    assert time.monotonic() - begun < 100
    assert len(launcher.steps) < 98


def test_closing_ends_the_waiting_for_another_try():
    launcher = Scripted(
        *[broken(transient=True)] * 99, timeouts=Timeouts(command=600.0, retry=600.0)
    )
    threading.Timer(0.2, launcher.close).start()
    begun = time.monotonic()
    with pytest.raises(LaunchError):
        launcher.probe("n1", "/r")
    assert time.monotonic() - begun < 100


def test_a_verb_that_is_not_there_is_refused():
    launcher = Scripted(OK)
    launcher.verbs = frozenset({"start"})
    with pytest.raises(Refused, match="probe"):
        launcher.probe("n1", "/r")


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("pbs", {}, "'pbs'"),
        ("local", {"colour": "red"}, "'colour'"),
        ("local", {"ssh_config": "x"}, "'ssh_config'"),
        ("ssh", {"ssh_config": "/not/there"}, "/not/there"),
        ("ssh", {"accept_new": "yes"}, "accept_new"),
        ("local", {"connect_timeout": "soon"}, "'connect_timeout'"),
        ("local", {"start_timeout": -1}, "'start_timeout'"),
        ("local", {"start_timeout": float("nan")}, "'start_timeout'"),
        ("local", {"setup": 5}, "'setup'"),
        ("local", {"python": 5}, "'python'"),
    ],
)
def test_wrong_options_are_named(name, options, text):
    with pytest.raises(UsageError) as caught:
        open_launcher(name, options)
    assert text in str(caught.value)


def test_the_registry_imports_no_transport():
    code = "import sys, ctl.launchers, ctl.fleet; assert 'paramiko' not in sys.modules"
    repo = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    subprocess.run([sys.executable, "-c", code], check=True, cwd=repo)
