"""A proxy between a client and its brokers that closes connections in the middle of messages."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from types import TracebackType
from typing import Self

from ottla.client import Producer
from ottla.net.connection import Address

BLOCK_BYTES = 4096


class CuttingProxy:
    """Forwards bytes in both directions; after a random number of them it closes both sides."""

    def __init__(self, bootstrap: str, chance: random.Random, bytes_between_cuts: int) -> None:
        self._targets = [address.rpartition(":") for address in bootstrap.split(",")]
        self._chance = chance
        self._bytes_between_cuts = bytes_between_cuts
        self._left = self._next_distance()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self._servers: list[asyncio.Server] = []
        self._places: dict[Address, Address] = {}
        """The proxy's address for each broker."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{place.host}:{place.port}" for place in self._places.values())

    async def __aenter__(self) -> Self:
        for host, _, port in self._targets:
            target = Address(host, int(port))
            server = await asyncio.start_server(partial(self._accept, target), "127.0.0.1", 0)
            self._servers.append(server)
            self._places[target] = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def take_over(self, producer: Producer) -> None:
        """Routes every connection of the producer through the proxy, whatever the metadata say."""
        brokers = producer._brokers
        update = brokers.update_nodes
        brokers.update_nodes = lambda nodes: update((node, self._places[address]) for node, address in nodes)  # type: ignore[method-assign] # redirects the client

    def _next_distance(self) -> int:
        return self._chance.randrange(1, 2 * self._bytes_between_cuts)

    async def _accept(self, target: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            other_reader, other_writer = await asyncio.open_connection(target.host, target.port)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass_on(reader, other_writer))
                    group.create_task(self._pass_on(other_reader, writer))
            finally:
                other_writer.transport.abort()
        except (ExceptionGroup, OSError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(BLOCK_BYTES):
            if len(block) > self._left:
                writer.write(block[: self._left])
                self.cuts += 1
                self._left = self._next_distance()
                raise ConnectionResetError("cut")
            self._left -= len(block)
            writer.write(block)
        raise ConnectionResetError("the other side is gone")
