"""A place's socket to the worker, on an event loop: ranges and requests in, results out."""

from __future__ import annotations

import asyncio
import os
import socket

from fsworker.slots import wire as slot_wire
from fsworker.slots.memory import Region


class PlaceLink:
    """What a place hears and says. Where the worker is gone, the process ends."""

    def __init__(self, sock: socket.socket, region: Region) -> None:
        sock.setblocking(False)
        self._sock, self._region = sock, region

    async def hear(self) -> slot_wire.Range:
        """The next range, or request to cancel one."""
        head = await self._receive(slot_wire.HEAD)
        return slot_wire.parse_range(head, await self._receive(slot_wire.size_behind(head)))

    async def keep(self, number: int, packed: bytes) -> None:
        """Keep a finished task of a range, an entry, until it is sent."""
        if self._region.append(packed):
            return
        await self.flush(number, slot_wire.RESULTS)
        if not self._region.append(packed):
            await self.say(slot_wire.RESULTS, number, packed)

    async def flush(self, number: int, kind: int) -> None:
        """Send what is kept."""
        data = self._region.unsent()
        if data or kind == slot_wire.FINISHED:
            await self.say(kind, number, data)
        self._region.clear()

    async def say(self, kind: int, number: int, data: bytes = b"") -> None:
        """Send one frame."""
        frame = slot_wire.pack_frame(kind, number, data)
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, frame)
        except OSError:
            os._exit(0)

    async def _receive(self, size: int) -> bytes:
        loop, data = asyncio.get_running_loop(), bytearray(size)
        view = memoryview(data)
        while view:
            try:
                got = await loop.sock_recv_into(self._sock, view)
            except OSError:
                got = 0
            if not got:
                os._exit(0)
            view = view[got:]
        return bytes(data)
