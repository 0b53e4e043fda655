"""The open streams of one broker: which writers append to its logs, who reads them, and the tasks of both."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Protocol

from ottla.broker.wal_service.logs import refusal_failure
from ottla.machines.writers.rules import Fenced
from ottla.protocol.model.writer_ids import producer_id_of
from ottla.protocol.wire.wal_append import WalFailure

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition


class OpenStream(Protocol):
    """A stream that ends when the broker stops."""

    def stop(self) -> None:
        """Ends the stream because the broker stops."""
        ...


class WriterStream(OpenStream, Protocol):
    """The stream of a writer."""

    def fence(self, failure: WalFailure) -> None:
        """Ends the stream because a later writer's fence is committed."""
        ...

    def supersede(self) -> None:
        """Ends the stream because the same writer has begun another one."""
        ...


class OpenStreams:
    """The open streams of one broker."""

    def __init__(self) -> None:
        self._writers: dict[tuple[Partition, int], WriterStream] = {}
        self._readers: set[OpenStream] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start_task(self, coroutine: Coroutine[object, None, None]) -> asyncio.Task[None]:
        """Starts a task, and keeps a reference to it until it has ended."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def add_writer(self, stream: WriterStream, partition: Partition, writer_id: int) -> None:
        """Adds the stream of a writer. A writer has one stream into a log: an earlier one is superseded."""
        earlier = self._writers.pop((partition, writer_id), None)
        if earlier is not None:
            earlier.supersede()
        self._writers[partition, writer_id] = stream

    def forget_writer(self, stream: WriterStream) -> None:
        """Removes the stream of a writer. Does nothing if a later stream of the same writer has superseded it."""
        for key in [key for key, each in self._writers.items() if each is stream]:
            del self._writers[key]

    def add_reader(self, stream: OpenStream) -> None:
        """Adds the stream of a reader, so that it ends when the broker stops."""
        self._readers.add(stream)

    def forget_reader(self, stream: OpenStream) -> None:
        """Removes the stream of a reader."""
        self._readers.discard(stream)

    def end_earlier(self, partition: Partition, fenced: Fenced) -> None:
        """Ends the streams of writers that a fence excludes, without waiting for them to ask."""
        current = producer_id_of(fenced.epoch)
        for (of, writer_id), stream in list(self._writers.items()):
            if of is partition and writer_id != current:
                stream.fence(refusal_failure(fenced))

    def stop(self) -> None:
        """Ends all streams because the broker stops."""
        for stream in [*self._writers.values(), *self._readers]:
            stream.stop()
