"""One contender of ssh.py, in a process of its own: one command on every host, first and again.

    python ssh_contender.py NAME FILE

FILE is JSON: `hosts` (name, address, port), `config` (an ssh_config), `key`, `known_hosts`. Prints
JSON: seconds of wall and of CPU (children included) for first contact, and for a second command
over the connections that were kept, where a contender keeps any. Imports only what it measures, so
that it runs in whatever environment has that.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

COMMAND = "true"
SHELL, SCRIPT = "/bin/sh -s", b"true\n"
"""What a launcher of ours runs on a host: a shell that reads a script. It costs the host a process
more, so the one that we measure ourselves against runs the same."""
Ask = Callable[[], Any]
Spec = dict[str, Any]


def measured(ask: Ask) -> list[float]:
    """[wall, CPU] of one call; it must have reached every host or raise."""
    before, began = _cpu(), time.monotonic()
    ask()
    return [time.monotonic() - began, _cpu() - before]


def _cpu() -> float:
    whole = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in whole)


def _ssh(spec: Spec, *options: str) -> list[str]:
    return ["ssh", "-F", spec["config"], "-o", "BatchMode=yes", *options]


CURVE = ("-o", "KexAlgorithms=curve25519-sha256")


def loop(spec: Spec, *options: str) -> tuple[Ask, Ask | None]:
    """One ssh after the other."""

    def ask() -> None:
        for host in spec["hosts"]:
            subprocess.run([*_ssh(spec, *options), host["name"], COMMAND], check=True)

    return ask, None


def parallel(spec: Spec, *options: str) -> tuple[Ask, Ask | None]:
    """32 ssh at once, by xargs."""
    names = "\n".join(host["name"] for host in spec["hosts"])
    argv = ["xargs", "-P", "32", "-I", "{}", *_ssh(spec, *options), "{}", COMMAND]

    def ask() -> None:
        subprocess.run(argv, input=names.encode(), check=True)

    return ask, None


def master(spec: Spec) -> tuple[Ask, Ask | None]:
    """The same, with connections kept by OpenSSH's own master processes."""
    # Of this process alone: masters outlive it, and the next repetition must not find them.
    place = os.path.join(os.path.dirname(spec["config"]), f"cm{os.getpid()}-%C")
    options = ("-o", "ControlMaster=auto", "-o", f"ControlPath={place}", "-o", "ControlPersist=30")
    ask, _ = parallel(spec, *options)
    return ask, ask


def clustershell(spec: Spec) -> tuple[Ask, Ask | None]:
    """ClusterShell's library, fan-out 32."""
    from ClusterShell.Task import task_self

    def ask() -> None:
        task = task_self()
        task.set_info("fanout", 32)
        task.set_info("ssh_options", f"-F {spec['config']} -oBatchMode=yes")
        task.run(COMMAND, nodes=",".join(h["name"] for h in spec["hosts"]))
        codes = [(code, list(nodes)) for code, nodes in task.iter_retcodes()]
        assert codes and all(code == 0 for code, _ in codes), codes

    return ask, None


def parallel_ssh(spec: Spec) -> tuple[Ask, Ask | None]:
    """parallel-ssh over libssh2."""
    from pssh.clients import ParallelSSHClient
    from pssh.config import HostConfig

    hosts = [host["address"] for host in spec["hosts"]]
    configs = [
        HostConfig(user="root", port=h["port"], private_key=spec["key"]) for h in spec["hosts"]
    ]
    client = ParallelSSHClient(hosts, host_config=configs, pool_size=32, allow_agent=False)

    def ask() -> None:
        output = client.run_command(COMMAND)
        client.join(output)
        assert all(one.exit_code == 0 for one in output)

    return ask, ask


def asyncssh(spec: Spec) -> tuple[Ask, Ask | None]:
    """asyncssh on one event loop."""
    import asyncio

    import asyncssh

    loop = asyncio.new_event_loop()
    kept: dict[str, Any] = {}

    async def one(host: dict[str, Any]) -> None:
        name = host["name"]
        if name not in kept:
            kept[name] = await asyncssh.connect(
                host["address"],
                host["port"],
                username="root",
                client_keys=[spec["key"]],
                known_hosts=spec["known_hosts"],
                agent_path=None,
            )
        done = await kept[name].run(COMMAND)
        assert done.exit_status == 0

    async def everyone() -> None:
        await asyncio.gather(*(one(host) for host in spec["hosts"]))

    def ask() -> None:
        loop.run_until_complete(everyone())

    return ask, ask


def bare_paramiko(spec: Spec) -> tuple[Ask, Ask | None]:
    """paramiko on 32 threads, told everything that has to be found out: no settings, no checks.

    It runs what ours runs, and sends small packets at once, or it would wait 40 ms for nothing.
    """
    import socket
    from concurrent.futures import ThreadPoolExecutor

    import paramiko

    key = paramiko.Ed25519Key.from_private_key_file(spec["key"])
    kept: dict[str, paramiko.Transport] = {}

    def one(host: dict[str, Any]) -> None:
        transport = kept.get(host["name"])
        if transport is None:
            sock = socket.create_connection((host["address"], host["port"]))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = paramiko.Transport(sock)
            transport.start_client()
            transport.auth_publickey("root", key)
            kept[host["name"]] = transport
        channel = transport.open_session()
        channel.exec_command(SHELL)
        channel.sendall(SCRIPT)
        channel.shutdown_write()
        assert channel.recv_exit_status() == 0

    pool = ThreadPoolExecutor(32)

    def ask() -> None:
        list(pool.map(one, spec["hosts"]))

    return ask, ask


def shardfleet(spec: Spec) -> tuple[Ask, Ask | None]:
    """Our launcher: settings by `ssh -G`, keys checked, bounded, one outcome a host."""
    from ctl.fleet import fan_out
    from ctl.launchers import open_launcher

    launcher: Any = open_launcher("ssh", {"ssh_config": spec["config"]})
    names = [host["name"] for host in spec["hosts"]]

    def one(host: str) -> int:
        status = launcher.run_script(host, SCRIPT, lambda data: False, 60.0)
        assert status == 0
        return 0

    def ask() -> None:
        outcomes = fan_out(names, one, width=32)
        assert all(outcome.ok for outcome in outcomes), outcomes

    return ask, ask


CONTENDERS: dict[str, Callable[[Spec], tuple[Ask, Ask | None]]] = {
    "ssh, one by one": loop,
    "ssh, one by one, curve25519": lambda spec: loop(spec, *CURVE),
    "xargs -P 32 ssh": parallel,
    "xargs -P 32 ssh, curve25519": lambda spec: parallel(spec, *CURVE),
    "ssh with ControlMaster": master,
    "ClusterShell": clustershell,
    "parallel-ssh": parallel_ssh,
    "asyncssh": asyncssh,
    "paramiko, 32 threads": bare_paramiko,
    "shardfleet": shardfleet,
}


def main() -> int:
    """Measure the contender that is named."""
    name, file = sys.argv[1:]
    with open(file) as stream:
        spec = json.load(stream)
    first, again = CONTENDERS[name](spec)
    found = {"first": measured(first), "again": measured(again) if again else None}
    print(json.dumps(found), flush=True)
    os._exit(0)  # kept connections are the rig's to end


if __name__ == "__main__":
    sys.exit(main())
