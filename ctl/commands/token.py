"""`ctl token`: let workers join a run that the controller does not start."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from ctl import beats, render, roots
from ctl.hosts import names_of
from ctl.params import POSITIVE, Read, json_option, root_option
from ctl.roots import Run
from ctl.session import Session
from fsworker.errors import FormatError, NotRunning, UsageError
from fsworker.protocol import membership
from fsworker.protocol.fsops import storage_error
from fsworker.protocol.layout.members import TOKENS, parse_token_name, token_path
from fsworker.protocol.records.member import JoinToken, digest, new_token
from fsworker.protocol.records.needs import labels_of


@click.group()
def command() -> None:
    """Let workers join a run that the controller does not start.

    Whoever has a token can run `fsworker attach` on a machine that mounts the root. Only a digest
    of it is kept.
    """


@command.command()
@root_option
@click.option("--name", "names", metavar="SET", help="Names that may use it [default: any].")
@click.option(
    "--labels",
    type=Read("labels", labels_of),
    default="",
    help="Labels that it grants, with commas between.",
)
@click.option("--expires", type=POSITIVE, help="Time until it is void [default: never].")
@json_option
@click.pass_obj
def create(
    session: Session,
    root: str | None,
    names: str | None,
    labels: tuple[str, ...],
    expires: float | None,
    as_json: bool,
) -> int:
    """Make a token and print it, once."""
    run = roots.open_run(*roots.find_root(root, session.config))
    public, secret = new_token()
    try:
        end = beats.server_now(run.store) + expires if expires else None
        record = JoinToken(
            public,
            digest(secret),
            tuple(names_of(names, "--name")) if names else (),
            labels,
            end,
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        run.store.mkdir(TOKENS)
        run.store.publish(token_path(public), record.to_json())
    except OSError as error:
        raise storage_error(error, "write", run.store.path(TOKENS)) from None
    if as_json:
        render.document({"root": run.root, "id": public, "token": f"{public}.{secret}"})
    else:
        print(f"{public}.{secret}")
    return 0


@command.command("list")
@root_option
@json_option
@click.pass_obj
def list_(session: Session, root: str | None, as_json: bool) -> int:
    """List the tokens, and who joined by them."""
    run = roots.open_run(*roots.find_root(root, session.config))
    found = [_fields(run, record) for record in _all(run)]
    if as_json:
        render.document({"root": run.root, "tokens": found})
    elif found:
        render.table(("token", "names", "labels", "expires", "members"), list(map(_row, found)))
    else:
        session.say(f"no token lets anybody join {run.root}")
    return 0


@command.command()
@click.argument("tokens", nargs=-1, required=True, metavar="ID…")
@root_option
@click.pass_obj
def revoke(session: Session, tokens: tuple[str, ...], root: str | None) -> int:
    """Make tokens void. Who has joined by them stays; `ctl drain` ends a member."""
    run = roots.open_run(*roots.find_root(root, session.config))
    known = {record.id for record in _all(run)}
    wanted = list(map(_public, tokens))
    missing = [token for token in wanted if token not in known]
    if missing:
        raise NotRunning(f"there is no token {missing[0]!r}: see ctl token list")
    for token in wanted:
        try:
            run.store.remove(token_path(token))
        except OSError as error:
            raise storage_error(error, "remove", run.store.path(token_path(token))) from None
        session.say(f"revoked {token}")
    return 0


def _public(text: str) -> str:
    """The id in what was given, which may be the whole token. UsageError."""
    public = text.partition(".")[0]  # never more of it: the rest is the secret
    if parse_token_name(f"{public}.json") is None:
        raise UsageError(
            f"{public or text[:40]!r} is no id of a token, which is 12 hex digits: "
            "see ctl token list"
        )
    return public


def _all(run: Run) -> list[JoinToken]:
    try:
        names = run.store.scan(TOKENS)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(error, "list", run.store.path(TOKENS)) from None
    found = []
    for public in sorted(filter(None, map(parse_token_name, names))):
        try:
            record = membership.read_token(run.store, public)
        except FormatError as error:
            click.echo(f"warning: {error}", err=True)
            continue
        if record is not None:
            found.append(record)
    return found


def _fields(run: Run, record: JoinToken) -> dict[str, object]:
    now = beats.server_now(run.store)
    return {
        "id": record.id,
        "names": list(record.names),
        "labels": list(record.labels),
        "created_at": record.created_at,
        "expires_at": render.iso(record.expires_at),
        "expired": record.expires_at is not None and now >= record.expires_at,
        "members": [m.host for m in run.members if m.token == record.id],
    }


def _row(fields: dict[str, object]) -> tuple[object, ...]:
    ends = fields["expires_at"] or "-"
    return (
        fields["id"],
        _words(fields["names"]) or "any",
        _words(fields["labels"]) or "-",
        f"{ends} (expired)" if fields["expired"] else ends,
        _words(fields["members"]) or "-",
    )


def _words(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else ""
