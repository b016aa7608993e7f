"""A client with other options for its tasks: `client.with_options(priority=2).submit(fn, …)`.

Options stand apart from the call, because every keyword of `submit` belongs to the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fsworker.client.idbook import TaskId
from fsworker.client.terms import Options, Terms

if TYPE_CHECKING:
    from fsworker.client import Client

Fn = str | Callable[..., Any] | None
"""A function as callers name it; None: the client's."""


class Variant:
    """Sends tasks through a client, which stays as it is."""

    def __init__(self, client: Client, options: Options) -> None:
        self._client = client
        self._options = options
        self._made: dict[str, Terms] = {}

    def submit(self, fn: Fn, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send one call, as `Client.submit` does."""
        return self._client._call(self._terms(fn), args, kwargs)

    def submit_as(self, task_id: TaskId, fn: Fn, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send one call under an id, as `Client.submit_as` does."""
        return self._client._call(self._terms(fn), args, kwargs, task_id)

    def map(
        self,
        fn: Fn,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
    ) -> Iterator[Any]:
        """The results of `fn` for each row of the iterables, as `Client.map` gives them."""
        return self._client._map(self._terms(fn), iterables, timeout, chunksize)

    def _terms(self, fn: Fn) -> Terms:
        name = self._client._terms(fn).fn
        return self._made.setdefault(name, Terms(name, self._options))
