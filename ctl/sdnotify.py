"""Tells the service manager that we are up and alive, where one asked to be told.

The protocol is sd_notify(3): a datagram to the socket that NOTIFY_SOCKET names. Failing to tell is
no reason to end: then the manager acts as if we were silent, which is its task.
"""

from __future__ import annotations

import os
import socket


class Manager:
    """The service manager of this process, if there is one.

    The variable is taken out of the environment: what we start must not speak in our name.
    """

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")
        # A name that begins with @ is an abstract one.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def ready(self) -> None:
        """We do our work from now on."""
        self._tell("READY=1")

    def alive(self) -> None:
        """The watchdog need not bite."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """We are about to end."""
        self._tell("STOPPING=1")

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def _tell(self, text: str) -> None:
        if self._socket:
            try:
                self._socket.sendto(text.encode(), self._address)
            except OSError:
                pass  # see the module docstring
