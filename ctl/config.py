"""What is set, and where it was set: `fleet.toml`, environment, names of before, defaults.

Every setting has one row in `SETTINGS`, so that a flag, a `FLEET_…` variable and a key of
`fleet.toml` can never drift apart, and so that `ctl config` can say where a value came from. The
old variable names are read because people have them in their profiles; a note says so.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ctl import slotterms, units
from ctl.hostterms import Tables
from ctl.hostterms import read as read_tables
from ctl.tomlfile import read_toml
from fsworker.errors import UsageError
from fsworker.protocol.records import slots
from fsworker.protocol.records.needs import labels_of

FILE_NAME = "fleet.toml"
DEFAULT_FUNCTION = "areal.reward.gsm8k.gsm8k_reward_fn"
"""What a start without `--fn` serves: scripts of the controller before this one rely on it."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise ValueError(f"{value!r} is not a list of texts")


def _lines(value: object) -> tuple[str, ...]:
    return tuple(value.splitlines()) if isinstance(value, str) else _texts(value)


def _hosts(value: object) -> str:
    """Host lists stay text: `ctl.hosts` reads them, with their own errors."""
    return value if isinstance(value, str) else "\n".join(_texts(value))


def _table(value: object) -> dict[str, str]:
    if isinstance(value, str):
        return dict(units.env_pair(word) for word in shlex.split(value))
    if isinstance(value, dict):
        return dict(units.env_pair(f"{k}={_scalar(k, v)}") for k, v in value.items())
    raise ValueError(f'{value!r} is not a table of NAME = "value"')


def _scalar(name: str, value: object) -> str:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{name} must be a text or a number, not {value!r}")


@dataclass(frozen=True)
class Known:
    """One setting that exists: how its text is read, what holds without it, older names."""

    read: Callable[[Any], Any]
    default: Any = None
    old: str | None = None
    path: bool = False
    help: str = ""


SETTINGS: dict[str, Known] = {
    "hosts": Known(_hosts, old="SAO_REWARD_WORKER_HOSTS", help="hosts that may be contacted"),
    "hosts_file": Known(_text, path=True, help="a file that names them, one a line"),
    "workspace": Known(_text, old="SAO_WS", path=True, help="folder of the current-run file"),
    "root": Known(_text, old="REWARD_ROOT", path=True, help="prefix of all run roots"),
    "launcher": Known(_text, "ssh", help="how hosts are reached: ssh or local"),
    "launcher_options": Known(dict, {}, help="further options of the launcher"),
    "fn": Known(_texts, (DEFAULT_FUNCTION,), help="functions that the workers serve"),
    "allow": Known(_texts, (), help="patterns of functions that tasks may call besides"),
    "concurrency": Known(units.whole, 48, help="slots of a worker; 0: jobs alone"),
    "job_slots": Known(units.whole, 1, help="training jobs that a worker runs at once"),
    "pass_env": Known(_texts, (), help="variables of this machine that jobs may ask for"),
    "python": Known(_text, help="interpreter of the workers"),
    "venv": Known(_text, path=True, help="virtual environment of the workers"),
    "bundle": Known(units.yes_no, False, help="run workers from one file on the root"),
    "repo": Known(_text, path=True, help="folder added to their PYTHONPATH"),
    "setup": Known(_lines, (), help="shell lines that run on the host before the wrapper"),
    "env": Known(_table, {}, help="environment of the workers"),
    "group": Known(_text, help="group that shares the run root"),
    "task_timeout": Known(units.positive, help="seconds that one task may take"),
    "max_deaths": Known(units.count, 3, help="worker deaths before a task is given up"),
    "slot_start": Known(_text, "auto", help="fork or spawn; auto: spawn where GPUs are shared out"),
    "slot_mem": Known(slots.size, help="memory that a slot may use"),
    "gpus": Known(slots.gpus, help="GPUs that the slots of a worker share out"),
    "slots_per_gpu": Known(units.count, help="slots that may share a GPU"),
    "slot_async": Known(slotterms.coroutines, 1, help="coroutines that a slot runs at once"),
    "labels": Known(labels_of, (), help="what every worker offers to tasks that need it"),
    "attach": Known(_hosts, help="names under which workers may join by themselves"),
    "log_level": Known(_text, "INFO", help="log level of the workers"),
    "ready_timeout": Known(units.positive, 60.0, help="time for all workers to be ready"),
    "heartbeat_stale": Known(units.positive, 15.0, help="age at which a heartbeat is stale"),
    "grace": Known(units.duration, 60.0, help="time to end after TERM"),
    "connect_timeout": Known(units.positive, 20.0, help="time to connect to a host"),
    "start_timeout": Known(units.positive, 60.0, help="time for a start on a host"),
    "command_timeout": Known(units.positive, 120.0, help="time for any other command there"),
    "width": Known(units.count, 16, help="hosts that are contacted at once"),
    "ssh_config": Known(_text, path=True, help="file instead of ~/.ssh/config"),
    "accept_new": Known(units.yes_no, False, help="add unknown host keys to known_hosts"),
    "watch_stale": Known(units.positive, 60.0, help="heartbeat_stale of the watcher"),
    "interval": Known(units.positive, 10.0, help="time between two sweeps of the watcher"),
    "restart_cooldown": Known(units.duration, 30.0, help="time between restarts of a host"),
    "fence_after": Known(units.duration, 60.0, help="unreachable time before claims return"),
    "renew": Known(units.yes_no, True, help="a watcher keeps files from a purge of scratch"),
}


@dataclass(frozen=True)
class Setting:
    """A value that holds, and the flag, variable, file or default it came from."""

    value: Any
    source: str


@dataclass(frozen=True)
class Config:
    """All settings of one command, and the notes that it owes the user."""

    settings: Mapping[str, Setting]
    file: str | None = None
    looked: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    tables: Tables = field(default_factory=Tables)
    """What the file says about single hosts."""

    def get(self, name: str) -> Any:
        """The value that holds for `name`."""
        return self.settings[name].value

    def source(self, name: str) -> str:
        """Where that value came from."""
        return self.settings[name].source

    def pick(self, name: str, flag: Any) -> Any:
        """What the command line said, or what is set when it said nothing."""
        return self.get(name) if flag is None or flag == () else flag


def load(
    path: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Config:
    """Read everything that is set. Raises UsageError naming file or variable, and the key."""
    environ = os.environ if environ is None else environ
    file, looked = find_file(path, environ, cwd or _here())
    table = _read_file(file) if file else {}
    tables = _take_tables(table, file) if file else Tables()
    notes: list[str] = []
    settings = {
        name: _resolve(name, known, environ, table, file, notes) for name, known in SETTINGS.items()
    }
    return Config(settings, file, looked, tuple(notes), tables)


def _take_tables(table: dict[str, Any], file: str) -> Tables:
    """Take the tables about hosts out of a file's settings; hosts that they name are allowed."""
    hosts = table.pop("hosts") if isinstance(table.get("hosts"), dict) else None
    tables = read_tables(table.pop("defaults", None), hosts, file)
    if hosts is not None:
        table["hosts"] = list(tables.names)
    return tables


def _here() -> str | None:
    """The folder that the command is called in; None when it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def find_file(
    path: str | None, environ: Mapping[str, str], cwd: str | None
) -> tuple[str | None, tuple[str, ...]]:
    """The configuration file that holds, and all places that were looked at, in order.

    A file that was asked for must exist; the others need not.
    """
    for asked, source in ((path, "--config"), (environ.get("FLEET_CONFIG"), "FLEET_CONFIG")):
        if asked:
            if not os.path.isfile(asked):
                raise UsageError(f"{source}: there is no file {asked}", path=asked)
            return os.path.abspath(asked), (asked,)
    home = environ.get("HOME") or os.path.expanduser("~")
    xdg = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    folders = ((cwd,) if cwd else ()) + (os.path.join(xdg, "shardfleet"),)
    places = tuple(os.path.join(folder, FILE_NAME) for folder in folders)
    return next((p for p in places if os.path.isfile(p)), None), places


def _read_file(path: str) -> dict[str, Any]:
    named = {key.replace("-", "_"): value for key, value in read_toml(path).items()}
    for key in named:
        if key not in SETTINGS and key != "defaults":
            import difflib  # lazily: only a typing error needs it

            near = difflib.get_close_matches(key, SETTINGS, 1)
            hint = f"did you mean {near[0]}?" if near else "`ctl config` lists the settings"
            raise UsageError(f"{path}: there is no setting {key!r}: {hint}", path=path)
    return named


def _resolve(
    name: str,
    known: Known,
    environ: Mapping[str, str],
    table: Mapping[str, Any],
    file: str | None,
    notes: list[str],
) -> Setting:
    variable = "FLEET_" + name.upper()
    if environ.get(variable):
        return _setting(known, environ[variable], variable, None)
    if known.old and environ.get(known.old):
        notes.append(f"{name} is taken from {known.old}, whose name is {variable} now")
        return _setting(known, environ[known.old], known.old, None)
    if name in table and file:
        return _setting(known, table[name], f"{file}: {name}", os.path.dirname(file))
    if name == "workspace":
        home = environ.get("HOME") or os.path.expanduser("~")
        return Setting(os.path.join(home, ".local", "state", "shardfleet"), "default")
    return Setting(known.default, "default")


def _setting(known: Known, raw: Any, source: str, base: str | None) -> Setting:
    try:
        value = known.read(raw)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{source}: {error}") from None
    if known.path:
        # A path in the file means the same from wherever a command is run.
        value = os.path.expanduser(value)
        if not os.path.isabs(value):
            value = os.path.join(base or os.getcwd(), value)
    return Setting(value, source)
