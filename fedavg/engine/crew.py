"""Some threads that work off a list in its order, and stop together.

Which thread does what is left to chance; that it does not matter is the caller's concern. torch is
kept from splitting operations over threads of its own meanwhile: pieces are small, and how it
splits a sum would decide how that is rounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def work_off(items: Iterable[T], make: Callable[[], Callable[[T], None]], threads: int) -> None:
    """Call a worker on every item; `make` gives each thread a worker with buffers of its own.

    Items are begun in order, and taken from `items` when they are. After an error nothing more is
    begun, and of all errors the one of the earliest item is raised: the same whatever the threads
    did.
    """
    crew = _Crew(items, make)
    with one_torch_thread():
        if threads <= 1:
            crew.work()
        else:
            crew.work_in(threads)
    crew.raise_first()


class _Crew(Generic[T]):
    def __init__(self, items: Iterable[T], make: Callable[[], Callable[[T], None]]) -> None:
        self._items, self._make = enumerate(items), make
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._errors: list[tuple[int, BaseException]] = []

    def work_in(self, threads: int) -> None:
        with ThreadPoolExecutor(threads, thread_name_prefix="merge") as pool:
            try:
                for future in [pool.submit(self.work) for _ in range(threads)]:
                    future.result()
            finally:
                self._stop.set()  # also when the wait is interrupted

    def work(self) -> None:
        index = -1
        try:
            do = self._make()
            while not self._stop.is_set():
                with self._lock:
                    taken = next(self._items, None)
                if taken is None:
                    return
                index, item = taken
                do(item)
        except Exception as error:
            self._stop.set()
            self._errors.append((index, error))

    def raise_first(self) -> None:
        if self._errors:
            raise min(self._errors, key=lambda e: e[0])[1]


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Have torch do each call by the thread that makes it, as merges do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class InOrder(Generic[R]):
    """Takes results in any order and hands them on in the order of their indices."""

    def __init__(self, take: Callable[[R], None]) -> None:
        self._take = take
        self._next = 0
        self._early: dict[int, R] = {}
        self._lock = threading.Lock()

    def put(self, index: int, result: R) -> None:
        """From any thread, each index from 0 on once."""
        with self._lock:
            self._early[index] = result
            while self._next in self._early:
                self._take(self._early.pop(self._next))
                self._next += 1
