"""The rule on host keys: what is not known stops that host, in a sentence that says what to do.

Nothing is ever added to known_hosts unless the operator asked for it, and then only for a host of
which nothing at all is known.
"""

from __future__ import annotations

import logging

from ctl.launchers import hostkeys
from ctl.launchers.errors import LaunchError
from ctl.launchers.sshconfig import Settings

log = logging.getLogger(__name__)


def known_kinds(settings: Settings) -> list[str]:
    """The key types that are recorded for the host."""
    return hostkeys.kinds(_entries(settings), settings.known_as)


def require_trust(settings: Settings, kind: str, key: bytes, *, accept_new: bool) -> None:
    """Raise LaunchError, stage hostkey, unless this is the host's key."""
    found = hostkeys.verdict(_entries(settings), settings.known_as, kind, key)
    if found.state == "known":
        return
    shown = f"{kind} key {hostkeys.fingerprint(key)}"
    name = settings.known_as[0]
    if found.state == "unknown":
        if accept_new:
            _accept(settings, kind, key)
            return
        raise _unknown(settings, shown, found.entry)
    assert found.entry is not None
    place = found.entry.place
    text = {
        "revoked": f"its {shown} is revoked by {place}",
        "changed": f"its {shown} is not the one in {place}: the host was reinstalled or is not "
        f"who it claims to be; if you know why, remove that line (ssh-keygen -R {name!r})",
        "other": f"its {shown} is not known, while {place} has a {found.entry.kind} key that it "
        "did not show: check it and add the new one",
    }[found.state]
    raise _refuse(settings, text, found.entry.file)


def _entries(settings: Settings) -> list[hostkeys.Entry]:
    files = (*settings.user_known_hosts, *settings.global_known_hosts)
    return hostkeys.read(files, settings.known_as)


def _accept(settings: Settings, kind: str, key: bytes) -> None:
    if not settings.user_known_hosts:
        raise _refuse(settings, "there is no user's known_hosts file to add its key to", None)
    file, name = settings.user_known_hosts[0], settings.known_as[0]
    try:
        hostkeys.add(file, name, kind, key, hashed=settings.hash_known_hosts)
    except OSError as error:
        raise _refuse(settings, f"its key cannot be added to {file}: {error}", file) from error
    log.warning("added %s to %s: %s %s", name, file, kind, hostkeys.fingerprint(key))


def _unknown(settings: Settings, shown: str, authority: hostkeys.Entry | None) -> LaunchError:
    files = " or ".join(settings.user_known_hosts[:1] + settings.global_known_hosts[:1])
    name = settings.known_as[0]
    text = f"its {shown} is not in {files or 'any file'} under {name}"
    if authority:
        text += f" ({authority.place} names an authority, but host certificates are not supported)"
    port = f"-p {settings.port} " if settings.port != 22 else ""
    text += f"; compare and add it: ssh-keyscan {port}{settings.hostname}"
    return _refuse(settings, text, settings.user_known_hosts[0] if files else None)


def _refuse(settings: Settings, text: str, path: str | None) -> LaunchError:
    return LaunchError(
        f"host {settings.host}: {text}",
        host=settings.host,
        stage="hostkey",
        path=path,
        action="compare the key and correct known_hosts",
    )
