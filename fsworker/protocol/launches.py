"""Launch numbers: each is given out once, whatever a lock says.

A start of a host is told by its number: a stop covers numbers, a beat that carries a lower one is
an earlier life's. On a network filesystem a lock can lie, and two watchers that both find a host
dead would both number a launch and start it; one worker comes up, and the other's number is awaited
in vain. So there is a token a host, `ctl/<host>.launch-<n>-<unique>`, and a new number is given out
by the rename of that token, for which there is one source: who comes second has lost, and has left
nothing behind. `launch_meta.json` is written after it and may lag; readers believe the higher.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from fsworker.protocol import layout
from fsworker.protocol.layout import LaunchToken
from fsworker.protocol.ops import Put, Remove, Rename, Scan, Verb
from fsworker.protocol.records.run import LaunchMeta


def take(wanted: Mapping[str, int], unique: str) -> Verb[frozenset[str]]:
    """Give out the launch `wanted[host]` of each host; the hosts whose number somebody else took.

    Their numbers stay as they are, and nothing of ours is left. `unique` is new for each call.
    """
    known = _tokens((yield Scan(layout.CTL)), wanted)
    taken = {host for host, number in wanted.items() if _reached(known[host], number)}
    for host in wanted.keys() - taken:
        if not (yield from _move(LaunchToken(host, wanted[host], unique), known[host])):
            taken.add(host)
    known = _tokens((yield Scan(layout.CTL)), wanted)
    for host in wanted.keys() - taken:
        mine = LaunchToken(host, wanted[host], unique)
        others = [token for token in known[host] if token != mine]
        if _reached(others, mine.number):
            # Both made a token where there was none; who sees the other's gives way.
            taken.add(host)
            others = [mine]
        for token in others:
            yield Remove(token.path)
    return frozenset(taken)


def numbers(names: Iterable[str]) -> dict[str, int]:
    """The highest launch of each host by the tokens in a fresh listing of `ctl/`."""
    found: dict[str, int] = {}
    for token in filter(None, map(layout.parse_launch_token, names)):
        found[token.host] = max(token.number, found.get(token.host, 0))
    return found


def with_numbers(meta: LaunchMeta, numbered: Mapping[str, int]) -> LaunchMeta:
    """The launch meta with every number that was given out, also those not yet written there."""
    later = {h: n for h, n in numbered.items() if n > meta.launches.get(h, 0)}
    return replace(meta, launches={**meta.launches, **later}) if later else meta


def _move(mine: LaunchToken, known: Collection[LaunchToken]) -> Verb[bool]:
    """Bring about the token `mine`. False when somebody else has moved it on."""
    try:
        if known:
            yield Rename(max(known).path, mine.path)
        else:
            yield Put(mine.path, b"", durable=False)
    except OSError as error:
        # Look, do not conclude: the target holds a part that is ours alone.
        there = _tokens((yield Scan(layout.CTL)), (mine.host,))[mine.host]
        if mine in there:
            return True
        if isinstance(error, FileNotFoundError) or _reached(there, mine.number):
            return False
        raise
    return True


def _tokens(names: Iterable[str], hosts: Collection[str]) -> dict[str, list[LaunchToken]]:
    found: dict[str, list[LaunchToken]] = {host: [] for host in hosts}
    for token in filter(None, map(layout.parse_launch_token, names)):
        if token.host in found:
            found[token.host].append(token)
    return found


def _reached(tokens: Iterable[LaunchToken], number: int) -> bool:
    return any(token.number >= number for token in tokens)
