"""What a start is going to be, decided and checked before anything is touched.

A start that fails half-way leaves workers on other machines, so all that can be known to be wrong
is found here: pure functions from options, settings and host lists to the two records of a run.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ctl import passing, slotterms
from ctl.bundle import onroot
from ctl.bundle import terms as bundle_terms
from ctl.config import Config
from ctl.hosts import Allowed, names_of
from ctl.launchers import LAUNCHERS
from ctl.roots import Run
from ctl.workers import choose_workers, count_shards
from fsworker import errors, patterns
from fsworker.errors import Refused, UsageError
from fsworker.protocol.records.hostterms import HostTerms
from fsworker.protocol.records.needs import labels_of
from fsworker.protocol.records.run import LOG_LEVELS, LaunchMeta, Manifest, WorkerSpec

_FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*(?:[.:][^\W\d]\w*)(?:\.[^\W\d]\w*)*")
_TIMEOUTS = ("connect_timeout", "start_timeout", "command_timeout")


@dataclass(frozen=True)
class Wish:
    """What the command line said; None and empty stand for nothing said."""

    workers_json: str | None = None
    hosts: str | None = None
    shard_count: int | None = None
    functions: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    experiment: str | None = None
    trial: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    respawn: bool = True
    flags: dict[str, Any] = field(default_factory=dict)
    """Values of flags that override the setting of the same name."""


@dataclass(frozen=True)
class Plan:
    """A start that passed every check that needs no disk."""

    root: str
    manifest: Manifest
    meta: LaunchMeta

    @property
    def hosts(self) -> list[str]:
        """The hosts to start, in order."""
        return [worker.host for worker in self.manifest.workers]


def make(
    wish: Wish,
    config: Config,
    allowed: Allowed,
    root: str,
    run_id: str,
    before: Run | None = None,
) -> Plan:
    """The plan for a run at `root`; `before` is the run that is there already, if any."""

    def pick(name: str) -> Any:
        return config.pick(name, wish.flags.get(name))

    launcher = check_choice("launcher", pick("launcher"), tuple(LAUNCHERS))
    usual = WorkerSpec("", 0, pick("concurrency"), slotterms.usual(pick), pick("job_slots"))
    workers = choose_workers(
        wish.workers_json, wish.hosts, wish.shard_count, allowed, usual, launcher
    )
    shard_count = count_shards(workers, wish.shard_count)
    functions = check_functions(wish.functions or config.get("fn"))
    manifest = Manifest(
        run_id=run_id,
        reward_fn=functions[0],
        shard_count=shard_count,
        workers=workers,
        functions=functions,
        allow=patterns.checked(wish.allow or config.get("allow")),
        experiment_name=wish.experiment,
        trial_name=wish.trial,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        owner=os.getuid(),
        group=pick("group") or (before.manifest.group if before else None),
        task_timeout=pick("task_timeout"),
        max_deaths=pick("max_deaths"),
        slot_start=check_choice("slot_start", pick("slot_start"), ("auto", "fork", "spawn")),
    )
    launches = dict(before.meta.launches) if before and before.meta else {}
    for worker in workers:
        launches[worker.host] = launches.get(worker.host, 0) + 1
    return Plan(root, manifest, _meta(wish, config, root, manifest, launcher, launches))


def _meta(
    wish: Wish,
    config: Config,
    root: str,
    manifest: Manifest,
    launcher: str,
    launches: dict[str, int],
) -> LaunchMeta:
    """What a restart needs so that it starts the same again."""

    def pick(name: str) -> Any:
        return config.pick(name, wish.flags.get(name))

    workspace = os.path.abspath(os.path.expanduser(pick("workspace")))
    own_workspace = config.source("workspace") == "default" and "workspace" not in wish.flags
    home = None if own_workspace else workspace
    hosts = [w.host for w in manifest.workers]
    named = choose_python(pick("python"), pick("venv"))
    choice = bundle_terms.choose(
        pick("bundle"), host_terms(config, wish, hosts), hosts, named, sys.executable
    )
    return LaunchMeta(
        root=root,
        run_id=manifest.run_id,
        workers=manifest.workers,
        shard_count=manifest.shard_count,
        reward_fn=manifest.reward_fn,
        respawn=wish.respawn,
        experiment_name=wish.experiment,
        trial_name=wish.trial,
        launcher=launcher,
        launcher_options=launcher_options(config, wish, launcher),
        python=choice.python,
        pythonpath=python_path(pick("repo"), own=choice.unbundled),
        bundle=_bundle() if choice.any else None,
        from_bundle=choice.usual,
        workspace=workspace,
        setup=setup_lines(config.get("setup"), pick("venv"), home),
        env=worker_env(config.get("env"), wish.env, home),
        may_attach=tuple(names_of(pick("attach"), "--attach")) if pick("attach") else (),
        host_terms=choice.terms,
        log_level=check_choice("log_level", str(pick("log_level")).upper(), LOG_LEVELS),
        ready_timeout=pick("ready_timeout"),
        heartbeat_stale=pick("heartbeat_stale"),
        launches=launches,
        pass_env=passing.check(pick("pass_env"), os.environ),
        labels=check_labels(pick("labels")),
    )


def _bundle() -> str:
    """Where the bundle of this release is to be on the root."""

    return onroot.path_here()


FLAGS = (
    "concurrency",
    "job_slots",
    "pass_env",
    "ready_timeout",
    "heartbeat_stale",
    "task_timeout",
    "max_deaths",
    "launcher",
    "ssh_config",
    "accept_new",
    "workspace",
    "venv",
    "python",
    "repo",
    "bundle",
    "group",
    "log_level",
    "slot_start",
    "attach",
    "labels",
    *slotterms.NAMES,
)
"""The options of `start` that override the setting of the same name."""


def host_terms(config: Config, wish: Wish, hosts: Sequence[str]) -> dict[str, HostTerms]:
    """What holds for each host of a run; what the command line says wins over all tables."""
    found = {host: config.tables.terms(host) for host in hosts}
    if wish.flags.get("python") or wish.flags.get("venv"):
        found = {host: replace(terms, python=None) for host, terms in found.items()}
    if wish.flags.get("bundle") is not None:
        found = {host: replace(terms, bundle=None) for host, terms in found.items()}
    for terms in found.values():
        worker_env(terms.env, (), None)
    return {host: terms for host, terms in found.items() if terms != HostTerms()}


def check_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """`value` if it is one of `choices`."""
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def check_labels(words: Sequence[str]) -> tuple[str, ...]:
    """What every worker offers; a word may hold several, with commas between."""
    try:
        return labels_of(",".join(words))
    except ValueError as error:
        raise UsageError(f"--label: {error}") from None


def check_functions(names: Sequence[str]) -> tuple[str, ...]:
    """The functions, each once; their modules need not exist here, only on the hosts."""
    for name in names:
        module, colon, _ = name.strip().partition(":")
        if colon and (module.endswith(".py") or "/" in module):
            stem = os.path.basename(module).removesuffix(".py")
            raise UsageError(
                f"--fn {name!r} names a file: name its module, as {stem}:{name.partition(':')[2]}, "
                "and give the folder that it lies in with --repo"
            )
        if not _FUNCTION.fullmatch(name.strip()):
            raise UsageError(f"--fn {name!r} is not of the form package.module:function")
    if not names:
        raise UsageError("no function is named: give --fn package.module:function")
    return tuple(dict.fromkeys(name.strip() for name in names))


def choose_python(python: str | None, venv: str | None) -> str | None:
    """The interpreter that was asked for, as an absolute path where one can be told."""
    if python:
        return os.path.abspath(os.path.expanduser(python)) if "/" in python else python
    if venv:
        return os.path.join(os.path.abspath(os.path.expanduser(venv)), "bin", "python")
    return None


def python_path(repo: str | None, *, own: bool = True) -> tuple[str, ...]:
    """What goes in front of PYTHONPATH: the repo, and this checkout where it is not installed.

    `own`: whether hosts run this package from where it is here, as they do without a bundle.
    """
    found = [os.path.abspath(os.path.expanduser(repo))] if repo else []
    home = os.path.dirname(os.path.dirname(os.path.abspath(errors.__file__)))
    if own and os.path.basename(home) not in ("site-packages", "dist-packages"):
        found.append(home)
    return tuple(dict.fromkeys(found))


def setup_lines(lines: Sequence[str], venv: str | None, home: str | None) -> tuple[str, ...]:
    """Shell lines that run on the host before the wrapper."""
    found = []
    if home:
        folders = (shlex.quote(os.path.join(home, part)) for part in ("home", "tmp"))
        found.append(f"mkdir -p -- {' '.join(folders)}")
    if venv:
        folder = shlex.quote(os.path.join(os.path.abspath(os.path.expanduser(venv)), "bin"))
        found.append(f'PATH={folder}:"$PATH"; export PATH')
    return (*found, *lines)


def worker_env(
    table: dict[str, str], pairs: Sequence[tuple[str, str]], home: str | None
) -> dict[str, str]:
    """The workers' own environment. What the user says wins over what the workspace says."""
    own = {"HOME": os.path.join(home, "home"), "TMPDIR": os.path.join(home, "tmp")} if home else {}
    found = {**own, **table, **dict(pairs)}
    for name in found:
        if name in _RESERVED:
            raise Refused(f"--env {name} is set by the worker's own wrapper: leave it out")
    return found


_RESERVED = frozenset(
    f"FLEET_{name}" for name in ("RUN", "HOST", "SHARD", "LAUNCH", "INCARNATION", "LIFE_FD")
)


def launcher_options(config: Config, wish: Wish, launcher: str) -> dict[str, Any]:
    """What the launcher needs besides interpreter and setup, so that a restart has it too."""
    options: dict[str, Any] = dict(config.get("launcher_options"))
    for name in _TIMEOUTS:
        options.setdefault(name, config.get(name))
    if launcher == "ssh":
        ssh_config = config.pick("ssh_config", wish.flags.get("ssh_config"))
        if ssh_config:
            options["ssh_config"] = os.path.abspath(os.path.expanduser(ssh_config))
        if config.pick("accept_new", wish.flags.get("accept_new")):
            options["accept_new"] = True
    return options
