"""Queries brokers for partitions and offsets, and commits a query's progress to a consumer group."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.client import Consumer, TopicPartition
from ottla.client.errors import ClientError
from ottla.spark.loop_thread import LoopThread
from ottla.spark.source.offsets import Offsets
from ottla.spark.source.options import EARLIEST, LATEST, Bound, SourceOptions

if TYPE_CHECKING:
    from ottla.client import Admin

DISCOVERY_S = 1.0
"""How long a list of partitions is cached; an idle query asks a hundred times a second."""


class MissingTopicError(ClientError):
    """A topic or partition that the job names does not exist."""


class UnmatchedTimeError(ClientError):
    """No record is at or after the time at which the job starts."""


class Lookups:
    """Blocking queries to brokers. Connects on first use."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._thread: LoopThread | None = None
        self._admin: Admin | None = None
        self._consumer: Consumer | None = None
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._partitions_at_s = float("-inf")

    def close(self) -> None:
        """Disconnects and ends the thread, if it was started. A later query connects again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.run(self._disconnect())
            finally:
                thread.close()

    # Queries.

    def partitions(self) -> frozenset[TopicPartition]:
        """Returns the current partitions of the job's subscription. Topics that do not exist have none."""
        if time.monotonic() - self._partitions_at_s > DISCOVERY_S:
            found = self._run().run(self._discover())
            if found != self._partitions:
                self._run().run(self._close_consumer())  # its metadata does not have the new partitions
            self._partitions, self._partitions_at_s = found, time.monotonic()
        return self._partitions

    def required_partitions(self) -> frozenset[TopicPartition]:
        """Returns the same as `partitions`. Raises MissingTopicError if a topic or partition that the job names does
        not exist."""
        found = self.partitions()
        wanted = self._options.subscription
        topics = {at.topic for at in found}
        if missing := [topic for topic in wanted.topics if topic not in topics]:
            raise MissingTopicError(f"there is no topic {', '.join(missing)} at {self._options.servers}")
        if gone := [str(at) for at in wanted.partitions if at not in found]:
            raise MissingTopicError(f"there is no partition {', '.join(gone)} at {self._options.servers}")
        if not found:
            raise MissingTopicError(f"no topic at {self._options.servers} matches {wanted.pattern!r}")
        return found

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Returns the first offset of each partition."""
        return self._run().run(self._ends(partitions, EARLIEST)) if partitions else {}

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Returns the end offsets that a reader sees; with read_committed, records of open transactions are beyond
        them."""
        return self._run().run(self._ends(partitions, LATEST)) if partitions else {}

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Returns the first offset at or after each time; None if there is none."""
        return self._run().run(self._times(times_ms)) if times_ms else {}

    def resolve(self, bound: Bound, option: str) -> Offsets:
        """Resolves an option to the current offset of each existing partition."""
        partitions = self.required_partitions()
        if bound.kind in {"earliest", "latest"}:
            return self.earliest(partitions) if bound.kind == "earliest" else self.latest(partitions)
        if bound.kind != "time" and set(bound.numbers) != partitions:
            names = ", ".join(map(str, sorted(partitions)))
            raise MissingTopicError(f"option {option} must have a number for each of the partitions {names}")
        if bound.kind == "offsets":
            return self._resolve_ends(bound.numbers)
        times = dict.fromkeys(partitions, bound.time_ms) if bound.kind == "time" else dict(bound.numbers)
        found = self.at_times(times)
        unmatched = [at for at, offset in found.items() if offset is None]
        if unmatched and not bound.or_latest:
            raise UnmatchedTimeError(
                f"no record of {unmatched[0]} is at or after {times[unmatched[0]]} ms, the starting timestamp; "
                "with startingOffsetsByTimestampStrategy=latest, the query starts at the end"
            )
        return self._resolve_ends({at: LATEST if offset is None else offset for at, offset in found.items()})

    def _resolve_ends(self, numbers: Mapping[TopicPartition, int]) -> Offsets:
        first = self.earliest([at for at, offset in numbers.items() if offset == EARLIEST])
        last = self.latest([at for at, offset in numbers.items() if offset == LATEST])
        return {**numbers, **first, **last}

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commits offsets to a group, so that lag monitoring sees the query.

        Raises GroupNotEmptyError if the group has members.
        """
        self._run().run(self._commit(group, offsets))

    # Coroutines, which run on the loop.

    def _run(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread()
        return self._thread

    async def _discover(self) -> frozenset[TopicPartition]:
        admin = await self._get_admin()
        wanted = self._options.subscription
        counts = {each.name: each.partition_count for each in await admin.list_topics(internal=wanted.pattern is None)}
        if wanted.partitions:
            return frozenset(at for at in wanted.partitions if at.partition < counts.get(at.topic, 0))
        return frozenset(
            TopicPartition(name, index)
            for name, count in counts.items()
            if wanted.matches(name)
            for index in range(count)
        )

    async def _ends(self, partitions: Iterable[TopicPartition], which: int) -> Offsets:
        consumer = await self._get_consumer()
        return await (consumer.beginning_offsets if which == EARLIEST else consumer.end_offsets)(partitions)

    async def _times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        consumer = await self._get_consumer()
        found = await consumer.offsets_for_time({(at.topic, at.partition): each for at, each in times_ms.items()})
        return {at: None if result is None else result.offset for at, result in found.items()}

    async def _commit(self, group: str, offsets: Offsets) -> None:
        admin = await self._get_admin()
        refused = await admin.alter_group_offsets(
            group, {(at.topic, at.partition): each for at, each in offsets.items()}
        )
        for failure in refused.values():
            raise failure

    async def _get_admin(self) -> Admin:
        if self._admin is None:
            # Only the driver needs it; a task, which uses only the consumer, starts faster without.
            from ottla.client import Admin

            admin = Admin(self._options.servers, client_id=self._options.consumer.get("client_id", "ottla-spark"))
            await admin.start()
            self._admin = admin
        return self._admin

    async def _get_consumer(self) -> Consumer:
        if self._consumer is None:
            consumer = new_consumer(self._options)
            await consumer.start()
            self._consumer = consumer
        return self._consumer

    async def _close_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def _disconnect(self) -> None:
        await self._close_consumer()
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()


def new_consumer(options: SourceOptions) -> Consumer:
    """Returns a consumer for a task or for the driver. It never skips records by resetting its position."""
    chosen = {
        "client_id": "ottla-spark",
        "max_partition_fetch_bytes": 4 * 1024 * 1024,
        "buffer_bytes_per_partition": 16 * 1024 * 1024,
        **options.consumer,
    }
    return Consumer(options.servers, auto_offset_reset="none", **chosen)
