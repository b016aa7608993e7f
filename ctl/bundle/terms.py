"""Which hosts of a run start from a bundle, and by which Python. Pure.

A run names one bundle. `from_bundle` says whether hosts of which nothing else is said run from it;
the terms of a host may say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fsworker.protocol.layout import parse_bundle_name
from fsworker.protocol.records.hostterms import HostTerms
from fsworker.protocol.records.run import Heartbeat, LaunchMeta

PYTHON = "python3"
"""What a host without packages is asked for, where nobody named an interpreter."""


@dataclass(frozen=True)
class Choice:
    """Who runs from a bundle: `usual` unless a host's terms say otherwise; `any`: somebody does."""

    usual: bool
    any: bool
    terms: dict[str, HostTerms]
    python: str
    unbundled: bool
    """Whether somebody does not."""


def choose(
    usual: bool,
    terms: Mapping[str, HostTerms],
    hosts: Iterable[str],
    named: str | None,
    here: str,
) -> Choice:
    """Settle who runs from the bundle, and each one's Python. `named`: the interpreter that
    somebody asked for, `here`: the one of this process, for hosts that share the head's."""
    found = dict(terms)
    wants = {host: runs_from(terms.get(host), usual) for host in hosts}
    python = named or (PYTHON if usual else here)
    for host, bundled in wants.items():
        own = found.get(host, HostTerms())
        if bundled is not usual and own.python is None and named is None:
            found[host] = replace(own, python=PYTHON if bundled else here)
    who = list(wants.values()) or [usual]
    return Choice(usual, any(who), found, python, not all(who))


def runs_from(terms: HostTerms | None, usual: bool) -> bool:
    """Whether a host of these terms runs from the bundle."""
    return usual if terms is None or terms.bundle is None else terms.bundle


def bundle_of(meta: LaunchMeta, host: str) -> str | None:
    """The bundle that a host runs from, as a path on it; None where it has the package."""
    if meta.bundle is None or not runs_from(meta.host_terms.get(host), meta.from_bundle):
        return None
    return f"{meta.root}/{meta.bundle}"


def summary(
    meta: LaunchMeta | None, beats: Mapping[str, Heartbeat | None]
) -> dict[str, Any] | None:
    """What a look tells of bundles: the one that starts use (`path`), its digest, and the release
    and digest that each worker runs from (`hosts`). None for a run that has to do with none."""
    running = {
        host: {"release": beat.versions.get("shardfleet", ""), "digest": beat.versions["bundle"]}
        for host, beat in beats.items()
        if beat and "bundle" in beat.versions
    }
    path = meta.bundle if meta else None
    if path is None and not running:
        return None
    return {"path": path, "digest": path and parse_bundle_name(path), "hosts": running}


def lines(told: Mapping[str, Any] | None) -> Iterator[str]:
    """The summary for people, a line for each bundle that workers run from."""
    found: dict[tuple[str, str], list[str]] = {}
    for host, one in (told or {}).get("hosts", {}).items():
        found.setdefault((one["release"], one["digest"]), []).append(host)
    for (release, digest), hosts in sorted(found.items()):
        who = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
        old = told and told["digest"] not in (None, digest)
        note = f"; starts are from {told['digest']}" if told and old else ""
        yield f"{who} from bundle {digest} (release {release}){note}"
