"""The registry of open streams: one stream for each writer of a log, fences, and the end of all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from ottla.broker.wal_service.open_streams import OpenStreams
from ottla.machines.writers.rules import Fenced
from ottla.protocol.model.writer_ids import producer_id_of
from ottla.protocol.wire.wal_append import Code, WalFailure

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition


class Stream:
    def __init__(self) -> None:
        self.events: list[str] = []

    def stop(self) -> None:
        self.events.append("stop")

    def fence(self, failure: WalFailure) -> None:
        assert failure.code is Code.FENCED
        self.events.append("fence")

    def supersede(self) -> None:
        self.events.append("supersede")


LOG, OTHER_LOG = cast("Partition", object()), cast("Partition", object())


def test_a_second_stream_of_a_writer_supersedes_the_first() -> None:
    streams, first, second, elsewhere = OpenStreams(), Stream(), Stream(), Stream()
    streams.add_writer(first, LOG, 1)
    streams.add_writer(elsewhere, OTHER_LOG, 1)
    streams.add_writer(second, LOG, 1)
    assert (first.events, second.events, elsewhere.events) == (["supersede"], [], [])
    streams.forget_writer(first)  # it has ended, and is not the writer's stream any more
    streams.stop()
    assert (first.events, second.events, elsewhere.events) == (["supersede"], ["stop"], ["stop"])


def test_a_fence_ends_the_streams_of_earlier_writers_of_its_log() -> None:
    streams, earlier, current, elsewhere = OpenStreams(), Stream(), Stream(), Stream()
    streams.add_writer(earlier, LOG, producer_id_of(4))
    streams.add_writer(current, LOG, producer_id_of(5))
    streams.add_writer(elsewhere, OTHER_LOG, producer_id_of(4))
    streams.end_earlier(LOG, Fenced(5))
    assert (earlier.events, current.events, elsewhere.events) == (["fence"], [], [])


def test_streams_that_have_ended_are_not_stopped() -> None:
    streams, writer, reader, other_reader = OpenStreams(), Stream(), Stream(), Stream()
    streams.add_writer(writer, LOG, 1)
    streams.add_reader(reader)
    streams.add_reader(other_reader)
    streams.forget_writer(writer)
    streams.forget_reader(reader)
    streams.stop()
    assert (writer.events, reader.events, other_reader.events) == ([], [], ["stop"])


async def test_tasks_run_to_their_end() -> None:
    streams, done = OpenStreams(), asyncio.Event()

    async def work() -> None:
        done.set()

    await streams.start_task(work())
    assert done.is_set()
