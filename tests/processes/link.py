"""A proxy to a server that can be cut or stalled: stalled bytes arrive later, as after a network pause."""

from __future__ import annotations

import asyncio
import contextlib


class Link:
    def __init__(self) -> None:
        self.port = 0
        self.target = ("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._passing: dict[asyncio.Task[None], Passage] = {}

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def cut(self) -> None:
        """Closes every connection, even in the middle of a message."""
        for passage in list(self._passing.values()):
            passage.abort()

    def connections(self) -> list[Passage]:
        return list(self._passing.values())

    def hang(self, for_s: float, only: list[Passage] | None = None) -> None:
        """Stalls all traffic for a time; bytes sent meanwhile arrive afterwards."""
        for passage in self._passing.values() if only is None else only:
            passage.hang(for_s)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            there_reader, there_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        passage = self._passing[task] = Passage(writer, there_writer)
        ways = [
            asyncio.ensure_future(passage.carry(reader, there_writer)),
            asyncio.ensure_future(passage.carry(there_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            passage.abort()
            for way in ways:
                way.cancel()
            del self._passing[task]


class Passage:
    """One connection through the proxy."""

    def __init__(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter) -> None:
        self._ends = here, there
        self._open = asyncio.Event()
        self._open.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()

    def hang(self, for_s: float) -> None:
        self._open.clear()
        asyncio.get_running_loop().call_later(for_s, self._open.set)

    def abort(self) -> None:
        self._open.set()
        for end in self._ends:
            end.transport.abort()
