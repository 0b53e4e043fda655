"""A proxy that is open, shut (connections are closed and rejected) or held (connections stay open without traffic)."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

BLOCK_BYTES = 65536


class Gate:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._open = asyncio.Event()
        self._open.set()
        self._is_shut = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self.cut()

    async def shut(self) -> None:
        self._is_shut = True
        await self.cut()

    def hold(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._is_shut = False
        self._open.set()

    async def cut(self) -> None:
        """Closes the current connections with all bytes in flight."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._is_shut:
                return
            other_reader, other_writer = await asyncio.open_connection(*self._target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass_on(reader, other_writer))
                    group.create_task(self._pass_on(other_reader, writer))
            finally:
                other_writer.transport.abort()
        except (ExceptionGroup, OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(BLOCK_BYTES):
            await self._open.wait()
            writer.write(block)
        raise ConnectionResetError("the other side is gone")
