"""A host side that only says what it was asked, for tests of transports.

It stands in for `fsworker.hostside` by its place on the python path. What the root is called tells
it how to misbehave; each start is noted in a file, so that a test can see what was done twice.
"""

from __future__ import annotations

from pathlib import Path

_CODE = """
import json, os, sys, time

asked = json.loads(sys.argv[1])
mode, _, value = asked["root"].partition(":")
begin, end = "\\n<BEGIN %s>" % asked["marker"], "<END %s>\\n" % asked["marker"]
answer = {"ok": True, "asked": asked, "warnings": [os.uname().nodename]}
answer.update(wrapper={"pid": os.getpid(), "state": "alive"}, worker={"pid": 5, "state": "zombie"})
answer.update(wrap_pid=os.getpid(), worker_pid=5, boot_id="b", strays=[7, -1], launch=4)
answer["was_running"] = True
answer.update(left=[{"pid": 9, "role": "worker", "state": "stuck"}])
if asked["verb"] == "start":
    notes = os.path.join(os.path.dirname(__file__), "starts")
    with open(notes, "a") as stream:
        stream.write(asked["host"] + " " + str(asked["launch"]) + "\\n")
if mode == "meet":
    while len(open(notes).readlines()) < int(value):
        time.sleep(0.02)
if mode == "hang":
    print("thinking", flush=True)
    time.sleep(600)
if mode == "silent":
    sys.exit(3)
if mode == "crash":
    sys.exit("it broke")
if mode == "refuse":
    answer = {"ok": False, "code": "failed", "message": "no room\\nhere"}
if mode in ("again", "other"):
    launch = asked["launch"] + (mode == "other")
    answer.update(ok=False, code="already_running", message="it runs", launch=launch)
text = begin + json.dumps(answer) + end
if mode == "cut":
    text = text[:-30]
if mode == "garbage":
    text = begin + "{nonsense" + end
if mode == "large":
    answer["padding"] = "x" * 3_000_000
    text = begin + json.dumps(answer) + end
sys.stdout.write(text)
sys.stdout.flush()
if mode == "linger":
    time.sleep(600)
"""


class Stub:
    """The stand-in, laid below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "stub path"
        package = self.path / "fsworker"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "hostside.py").write_text(_CODE)
        self._starts = package / "starts"

    def starts(self) -> list[str]:
        """Every start that took effect, as `host launch`."""
        return self._starts.read_text().splitlines() if self._starts.exists() else []
