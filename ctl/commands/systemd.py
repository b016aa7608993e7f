"""`ctl systemd`: units that keep a run's watcher, aggregator or worker alive over reboots."""

from __future__ import annotations

import os

import click

from ctl import roots, sdunits
from ctl.params import root_option
from ctl.session import Session
from fsworker.errors import Refused, StorageError, UsageError

services = click.argument(
    "services", nargs=-1, type=click.Choice(sdunits.SERVICES), metavar="[watch|aggregator|worker]…"
)


@click.group()
def command() -> None:
    """Units that keep a run's watcher, aggregator or worker alive over reboots."""


@command.command()
@services
def show(services: tuple[str, ...]) -> int:
    """Print the units as `install` would write them [default: watch]."""
    for service in services or ("watch",):
        print(sdunits.text(service), end="")
    return 0


@command.command()
@services
@root_option
@click.option(
    "--user/--system", default=True, help="For this user's manager (default) or the machine's."
)
@click.option("--dir", "folder", metavar="DIR", help="Write the units there instead.")
@click.option("--force", is_flag=True, help="Replace files that say something else.")
@click.pass_obj
def install(
    session: Session,
    services: tuple[str, ...],
    root: str | None,
    user: bool,
    folder: str | None,
    force: bool,
) -> int:
    """Write units for a run's watcher (default), aggregator or worker, and say how to start them.

    A worker is one that attaches from this machine, where there is no SSH to it. FLEET_HOSTS,
    FLEET_CONFIG, FLEET_WORKSPACE and FLEET_ROOT, where set, are written beside them, for a worker
    also FLEET_WORKER_TOKEN: a unit inherits nothing from a shell. Starts nothing itself. Exit code
    5: a file that is there says something else.
    """
    run = roots.open_run(*roots.find_root(root, session.config))
    wanted = services or ("watch",)
    names = [sdunits.instance(service, run.root) for service in wanted]
    config, units = _places(user, folder)
    files = {os.path.join(units, sdunits.template(s)): sdunits.text(s) for s in wanted}
    environment = sdunits.environment(os.environ, wanted)
    if environment:
        files[os.path.join(config, "shardfleet", "environment")] = environment
    for path, text in files.items():
        _check(path, text, force)
    for path, text in files.items():
        _write(path, text)
        session.say(f"wrote {path}")
    manager = "systemctl --user" if user else "systemctl"
    session.say(f"{manager} daemon-reload")
    for name in names:
        session.say(f"{manager} enable --now '{name}'")
    if user:
        session.say("loginctl enable-linger    # or it ends when you log out")
    return 0


def _places(user: bool, folder: str | None) -> tuple[str, str]:
    """The folders for settings and for units."""
    home = os.path.expanduser("~")
    config = (os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config") if user else "/etc"
    return config, folder or f"{config}/systemd/{'user' if user else 'system'}"


def _check(path: str, text: str, force: bool) -> None:
    if os.path.exists(path) and not os.path.isfile(path):
        # To read a pipe waits, and what is written to a device is gone; a masked unit is a link
        # to /dev/null.
        raise UsageError(f"{path} is there and is no regular file: remove it first", path=path)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            there = file.read()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}", path=path) from None
    if there != text and not force:
        raise Refused(f"{path} is there and says something else: look, then --force", path=path)


def _write(path: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Settings are for this account alone: a token among them lets a worker in.
        mode = 0o600 if os.path.basename(path) == "environment" else 0o644
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, os.fstat(fd).st_mode & mode)
            file.write(text)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", path=path) from None
