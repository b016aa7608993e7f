"""Functions that tasks of tests call: good ones, and every way of going wrong that we know."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

LIMIT = 5


def echo(value: Any = None, **extra: Any) -> Any:
    return {"value": value, **extra} if extra else value


def noop(*_: Any, **__: Any) -> None:
    return None


def double(x: int) -> int:
    return 2 * x


async def double_async(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


async def raise_async(kind: str) -> None:
    asyncio.get_running_loop().create_task(asyncio.sleep(3600))
    raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "value": ValueError("no")}[kind]


def pid() -> int:
    return os.getpid()


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def environment(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


def append(path: str, name: str, seconds: float) -> None:
    with open(path, "a") as file:
        file.write(f"{name}\n")
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write(f"/{name}\n")


def kill_worker(index: int) -> int:
    """Task 2 ends its slot, the zygote and the worker, as a machine that crashes would."""
    if index == 2:
        zygote = os.getppid()
        with open(f"/proc/{zygote}/stat") as file:
            worker = int(file.read().rpartition(")")[2].split()[1])
        os.kill(worker, signal.SIGKILL)
        time.sleep(60)
    return index


class _Odd(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__("odd one")

    def __reduce__(self) -> Any:
        raise TypeError("not me")


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def misbehave(how: str, *args: Any) -> Any:
    return _WAYS[how](*args)


def _segfault() -> None:
    ctypes.string_at(0)


def _kill_self(signum: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), signum)
    time.sleep(60)


def _raise(error: BaseException) -> Any:
    raise error


def _alarm() -> str:
    """What graders do: set an alarm in the main thread, and leave it set."""

    def fired(*_: Any) -> None:
        raise TimeoutError("soft timeout")

    signal.signal(signal.SIGALRM, fired)
    signal.alarm(1)
    assert threading.current_thread() is threading.main_thread()
    return "alarm set"


def _alarm_default(seconds: float) -> str:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    return "left"


def _spin_in_c() -> None:
    """Hold the interpreter lock in C: the program library is called without releasing it."""
    ctypes.PyDLL(None).sleep(3600)


def _backtrack() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


def _deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _close_std() -> str:
    for fd in (0, 1, 2):
        try:
            os.close(fd)
        except OSError:
            pass
    return "closed"


def _print_garbage() -> str:
    os.write(1, b"\x00\xff\x03\x00 garbage " * 20 + b"\n")
    os.write(2, b"\x04\x00\x00\x00\x00 garbage\n")
    print("\x00" * 30, file=sys.stderr)
    return "printed"


def _fork_and_return() -> int:
    """Both processes return from the task: only one of them may answer."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return 7


def _helpers(marker: str) -> None:
    """Children that ignore TERM, one in a session of its own and one twice forked, then hang."""
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    argv = [sys.executable, "-c", code, marker]
    subprocess.Popen(argv)
    subprocess.Popen(argv, start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(argv[0], argv)
        os._exit(0)
    time.sleep(600)


def _garble(data: bytes, seconds: float = 0.0) -> str:
    """Write to every socket that this process has, the slot's own among them."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                os.write(fd, data)
        except OSError:
            pass
    time.sleep(seconds)
    return "written"


def _stop_zygote(seconds: float = 0.0) -> str:
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(seconds)
    return "stopped"


def _within_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _random_numbers(seconds: float) -> list[float]:
    time.sleep(seconds)  # long enough that two slots are at it
    return [numpy.random.random() for _ in range(4)] if numpy else [random.random()]


_WAYS: dict[str, Any] = {
    "random_numbers": _random_numbers,
    "segfault": _segfault,
    "os_exit": lambda: os._exit(0),
    "sys_exit": lambda: sys.exit(3),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "odd_exception": lambda: _raise(_Odd(1, 2)),
    "mute_exception": lambda: _raise(_Mute()),
    "value_error": lambda: _raise(ValueError("plainly wrong")),
    "surrogate": lambda: _raise(ValueError("bad \ud800 text")),
    "lambda": lambda: lambda: None,
    "circular": _within_itself,
    "big_int": lambda: 2**80,
    "kill_self": _kill_self,
    "abort": os.abort,
    "alarm": _alarm,
    "alarm_default": _alarm_default,
    "spin_in_c": _spin_in_c,
    "backtrack": _backtrack,
    "deadlock": _deadlock,
    "close_std": _close_std,
    "print_garbage": _print_garbage,
    "fork_and_return": _fork_and_return,
    "helpers": _helpers,
    "garble": _garble,
    "stop_zygote": _stop_zygote,
    "big": lambda n: b"x" * n,
    "recurse": lambda: _raise(RecursionError("deep")),
}
