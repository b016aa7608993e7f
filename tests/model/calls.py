"""A verb under way as a small value, and the real verb restored from it.

A process in a verb is (name, arguments, answers so far). The verb itself is the generator of
`ledger` or `stream`; it is restored by calling it again and feeding it the answers, so that states
can be compared and none is ever shared between two histories.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, NamedTuple

from fsworker.protocol import layout, ledger, stream
from fsworker.protocol.layout import Owner, Token
from fsworker.protocol.ledger import Expelled
from fsworker.protocol.ops import Op, RemoveFolder, Rename, Scan, Verb
from tests.model.disk import Lens

Verbs = dict[str, Callable[..., Verb[Any]]]
VERBS: Verbs = {
    f.__name__: f
    for f in (
        ledger.prepare_submission,
        ledger.enqueue,
        ledger.enlist,
        ledger.claim,
        ledger.adopt,
        ledger.prepare_result,
        ledger.commit,
        ledger.give_back,
        ledger.forward,
        stream.look,
        stream.collect,
        stream.forget,
    )
}
VERBS["reclaim"] = lambda owner, died: ledger.reclaim(owner, died=died)
TELLS_ABSENCE = ("claim", "reclaim")
"""Verbs that take "no such file" for something else than any other error."""


class Call(NamedTuple):
    """A verb under way; `begun` while it writes a file that is not closed yet."""

    verb: str
    args: tuple[Any, ...]
    answers: tuple[tuple[str, Any], ...] = ()
    begun: bool = False


class Verbatim:
    """Runs the verbs of a table, each call worked out once."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = {**VERBS, **verbs}
        self._known: dict[Call, tuple[Op | None, Any]] = {}

    def operation(self, call: Call) -> Op:
        """The operation that a verb wants next."""
        op = self.replay(call)[0]
        assert op is not None
        return op

    def replay(self, call: Call) -> tuple[Op | None, Any]:
        """(next operation, None), or (None, what the verb returned or raised)."""
        known = self._known.get(call)
        if known is None:
            known = self._known[call] = self._anew(call)
        return known

    def _anew(self, call: Call) -> tuple[Op | None, Any]:
        verb = self._verbs[call.verb](*call.args)
        try:
            op = next(verb)
            for kind, value in call.answers:
                if kind == "error":
                    op = verb.throw(OSError(value, errno.errorcode[value]))
                else:
                    op = verb.send(list(value) if isinstance(value, tuple) else value)
        except StopIteration as stop:
            return None, stop.value
        except (OSError, Expelled) as error:
            return None, error
        verb.close()
        return op, None


def condensed(call: Call, op: Op, answer: tuple[str, Any]) -> Call:
    """The call with one answer more, without those that its verb has forgotten.

    Which error a rename gave, and in which way a look showed nothing, is told apart only by the
    verbs in TELLS_ABSENCE. A reclaim only counts the rounds that are behind it.
    """
    absent = ("error", errno.ENOENT)
    answers = call.answers
    if call.verb not in ("claim", "adopt", "reclaim", "look", "enlist", "prepare_result"):
        if isinstance(op, Rename) and answer[0] == "error":
            answer = ("error", errno.EIO)
        elif isinstance(op, Scan) and answer == absent:
            answer = ("ok", ())
    if call.verb == "reclaim":
        if isinstance(op, Rename):
            answer = ("ok", None)
        elif isinstance(op, Scan) and answer[0] == "ok" and answers and answers[-1] == absent:
            answers = answers[:-1]
        elif isinstance(op, RemoveFolder) and answer == ("error", errno.ENOTEMPTY):
            rounds = 1 + answers.count(answer)
            return call._replace(answers=(("ok", ()), answer) * rounds)
    return call._replace(answers=(*answers, answer))


def lens_of(call: Call, who: str, hosts: tuple[str, ...]) -> Lens:
    """How a process sees the disk within the verb that it is in."""
    if call.verb in ("adopt", "reclaim", "look", "collect"):
        interest = None
    else:
        interest = frozenset(p.rpartition("/")[2] for p in _paths(call))
    return Lens(who, hosts, interest, call.verb in TELLS_ABSENCE)


def _paths(call: Call) -> list[str]:
    match call.verb, call.args:
        case "enqueue", (_, temp):
            return [temp]
        case "claim", (owner, token):
            return [layout.claim_path(owner, token.claimed())]
        case _, (Owner() as owner, Token() as token, *_):
            return [layout.claim_path(owner, token), layout.outcome(owner, token).done]
    return []
