"""The consumer: by record and by Arrow table, alone or as a member of a group.

    async with Consumer("127.0.0.1:9092", group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            ...

Data is fetched ahead in the background. `position` moves when records are handed out, so a program that stores
its positions together with its results goes on exactly where it stopped. With a `group_id` the group stores them:
what was handed out counts as processed when the program asks for more.

With `client_rack`, partitions are read from in-sync followers in that rack, where the brokers allow it.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ottla.client.brokers import Brokers
from ottla.client.consumer_lookups import ConsumerLookups
from ottla.client.consumer_settings import IsolationLevel, OffsetReset, isolation_number, reset_to
from ottla.client.errors import (
    ClientClosedError,
    ClientError,
    CommitFailedError,
    CorruptBatchError,
    DeserializationError,
    RequestTimedOutError,
)
from ottla.client.fetched import READ_COMMITTED, ConsumerRecord, TopicPartition
from ottla.client.fetcher import Fetcher, FetchSettings
from ottla.client.group_offsets import GroupProgress, OffsetAndMetadata
from ottla.client.group_session import GroupSession, RebalanceCallback, open_session
from ottla.client.group_settings import DEFAULT_ASSIGNORS, GroupProtocol, GroupSettings
from ottla.client.group_steps import Identity
from ottla.client.metadata import Metadata
from ottla.client.partition_reader import EARLIEST, LATEST, PartitionReader
from ottla.client.serialization import Deserializer, converter
from ottla.client.subscription import Subscription
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    import pyarrow


class Consumer(ConsumerLookups):
    """Start it with `async with`, or with `start` and `close`. `GroupSettings` explains what concerns groups."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        group_protocol: GroupProtocol = "classic",
        assignors: Sequence[str] = DEFAULT_ASSIGNORS,
        remote_assignor: str | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        auto_offset_reset: OffsetReset = "latest",
        isolation_level: IsolationLevel = "read_uncommitted",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        check_crcs: bool = True,
        fetch_max_wait_ms: int = 500,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        buffer_bytes_per_partition: int = 4 * 1024 * 1024,
        client_id: str = "ottla-consumer",
        client_rack: str = "",
        connect_timeout_ms: int = 10_000,
        request_timeout_ms: int = 30_000,
        metadata_max_age_ms: int = 300_000,
    ) -> None:
        self._settings = FetchSettings(
            max_wait_ms=fetch_max_wait_ms,
            min_bytes=fetch_min_bytes,
            max_bytes=fetch_max_bytes,
            partition_bytes_max=max_partition_fetch_bytes,
            buffer_bytes_max=buffer_bytes_per_partition,
            isolation_level=isolation_number(isolation_level),
            reset_to=reset_to(auto_offset_reset),
            request_timeout_ms=request_timeout_ms,
            rack=client_rack,
            replica_lease_ms=metadata_max_age_ms,
        )
        self._check_crcs = check_crcs
        self._convert = converter(key_deserializer, value_deserializer)
        self._brokers = Brokers(
            bootstrap_servers,
            client_id=client_id,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=request_timeout_ms,
        )
        self._metadata = Metadata(self._brokers, allow_auto_create=False, max_age_ms=metadata_max_age_ms)
        self._subscription = Subscription(self._metadata, self._settings, has_group=group_id is not None)
        self._group: GroupSession | None = None
        if group_id is not None:
            settings = GroupSettings(
                group_id=group_id,
                instance_id=group_instance_id,
                protocol=group_protocol,
                assignors=tuple(assignors) if not isinstance(assignors, str) else assignors,
                remote_assignor=remote_assignor,
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=heartbeat_interval_ms,
                max_poll_interval_ms=max_poll_interval_ms,
                auto_commit=auto_commit,
                auto_commit_interval_ms=auto_commit_interval_ms,
                rack=client_rack,
            )
            self._group = open_session(settings, self._settings, self._brokers, self._metadata, self._subscription)
        self._fetcher: Fetcher | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After a failure of the program, what it was working on is not committed."""
        await self._close(all_processed=error is None)

    async def start(self) -> None:
        """Connects. NoBrokerError if nobody answers."""
        if self._fetcher is not None:
            return
        try:
            await self._metadata.refresh()
        except BaseException:
            await self._brokers.disconnect()  # it may be started again
            raise
        self._fetcher = Fetcher(
            self._settings, self._brokers, self._metadata, self._subscription.readers, self._on_metadata
        )
        if self._group is not None:
            self._group.start(self._fetcher.notify, self._fetcher.wake)

    async def close(self) -> None:
        """In a group: commits (with `auto_commit`) what was handed out, calls `on_revoked`, and leaves."""
        await self._close(all_processed=True)

    async def _close(self, *, all_processed: bool) -> None:
        if self._closed:
            return
        try:
            if self._group is not None and self._fetcher is not None:
                await self._group.close(all_processed=all_processed)
        finally:
            self._closed = True
            if self._fetcher is not None:
                await self._fetcher.close()
            await self._brokers.close()

    # What to read.

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Reads exactly these partitions. Those that were assigned before keep their position."""
        if self._group is not None:
            self._group.check_assignable()
        self._subscription.assign(TopicPartition(*each) for each in partitions)
        if self._group is not None:
            self._group.positions.look_up()
        self._wake()

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Without a group: every partition of these topics, also those that are added later (from their beginning).

        In a group: those that the group gives to this consumer. A compiled regular expression subscribes to all topics
        whose whole name matches. The callbacks get a list of partitions while the program waits for records:
        `on_revoked` before they are given up, `on_lost` (else `on_revoked`) when they were taken away.
        """
        if isinstance(topics, str):
            raise TypeError("subscribe takes a list of topics")
        if self._group is not None:
            chosen = topics if isinstance(topics, re.Pattern) else frozenset(topics)
            self._group.subscribe(chosen, on_assigned, on_revoked, on_lost)
        elif isinstance(topics, re.Pattern) or on_assigned or on_revoked or on_lost:
            raise ValueError("regular expressions and callbacks need a group: Consumer(..., group_id=...)")
        else:
            self._subscription.subscribe(topics)
        self._wake()

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted(self._subscription.readers)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """The next record from this partition is the one at this offset or, if it is not there, the next one."""
        if offset < 0:
            raise ValueError(f"an offset is not negative: {offset}")
        self._reader(partition).seek(offset)
        self._wake()

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """All assigned partitions unless some are named."""
        await self._seek_to(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """The end at the moment of this call."""
        await self._seek_to(LATEST, partitions)

    async def seek_to_committed(self) -> None:
        """What was handed out since the last commit comes again: for a program whose transaction was aborted.

        Where nothing is committed yet, from the first record that was handed out.
        """
        positions = self._require_group().positions
        for reader in self._subscription.readers.values():
            reader.return_to_committed()
        positions.look_up()  # what does not work out here goes on in the background
        await positions.find()
        self._wake()

    def rewind(self, first: Mapping[TopicPartition, int]) -> None:
        """Hands out again what was handed out from these offsets on, in partitions that are still assigned."""
        self._subscription.rewind(first)
        self._wake()

    async def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that will be handed out."""
        reader = self._reader(partition)
        while reader.position is None:
            if reader.wants_committed:
                await self._require_group().positions.find()
                continue
            if reader.lookup is None:
                raise reader.failure or ClientError(f"{reader.at} has no position")
            await self._seek_to(reader.lookup, [partition])
        return reader.position

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Nothing is handed out from these partitions until `resume`. They stay assigned."""
        for each in partitions:
            self._reader(each).paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        for each in partitions:
            self._reader(each).paused = False
        self._wake()
        if self._fetcher is not None:
            self._fetcher.notify()

    @property
    def paused(self) -> list[TopicPartition]:
        return sorted(at for at, reader in self._subscription.readers.items() if reader.paused)

    # Groups.

    async def commit(self, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None) -> None:
        """Returns when the group has these offsets, or else the positions: after all that was handed out.

        An offset is that of the next record to read. CommitFailedError: the group has gone on without this consumer.
        """
        await self._require_group().commit(self._to_commit(offsets))

    def commit_nowait(
        self, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None
    ) -> asyncio.Task[None]:
        """The same in the background: what is there to be committed is settled now. Commits keep their order."""
        return asyncio.create_task(self._require_group().commit(self._to_commit(offsets)))

    async def committed(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed, of the assigned partitions unless some are named; None if there is nothing."""
        chosen = self.assignment if partitions is None else [TopicPartition(*each) for each in partitions]
        return await self._require_group().committed(chosen)

    def progress(self, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None) -> GroupProgress:
        """What a transaction commits for the group: these offsets, or else the positions."""
        group = self._require_group()
        if group.settings.auto_commit or self._settings.isolation_level != READ_COMMITTED:
            raise ClientError(
                "offsets in a transaction are for a consumer that neither commits them by itself nor reads what is not "
                'committed: Consumer(..., auto_commit=False, isolation_level="read_committed")'
            )
        chosen = self._to_commit(offsets)
        if foreign := [str(at) for at in chosen if at not in self._subscription.readers]:
            message = f"{', '.join(foreign)} is not assigned to this consumer any more: somebody else commits for it"
            raise CommitFailedError(ErrorCode.unknown_member_id, message)
        return GroupProgress(group.settings.group_id, chosen, lambda: group.identity)

    @property
    def in_group(self) -> bool:
        """Whether this consumer is a member now and has all that its group gave it, which may be nothing."""
        return self._group is not None and self._group.is_settled

    @property
    def group_identity(self) -> Identity | None:
        """With what this consumer signs its commits: member id, generation and instance id. None if it is no member."""
        return None if self._group is None else self._group.identity

    def _to_commit(
        self, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return self._require_group().positions.handed_out()
        return {
            TopicPartition(*at): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for at, offset in offsets.items()
        }

    def _require_group(self) -> GroupSession:
        self._require_fetcher()
        if self._group is None:
            raise ClientError("this consumer is in no group: Consumer(..., group_id=...)")
        return self._group

    # Reading.

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        group = self._group
        while True:
            for reader in await self._ready(None):
                for record in reader.each_record(check_crc=self._check_crcs, convert=self._convert):
                    yield record
                    if group is not None and group.done_with_one(reader):
                        break
                    if reader.paused:
                        break
                self._wake()
                if group is not None and group.wants_user:
                    break

    async def fetch_records(self, max_records: int = 500, timeout_ms: float | None = None) -> list[ConsumerRecord]:
        """Waits until there is a record, then returns what is there, at most `max_records`. Empty after the timeout."""
        records: list[ConsumerRecord] = []
        deadline_s = _deadline_s(timeout_ms)
        while not records and (ready := await self._ready(deadline_s)):
            for reader in ready:
                try:
                    while len(records) < max_records and reader.has_data:
                        records += reader.take_records(
                            max_records - len(records), check_crc=self._check_crcs, convert=self._convert
                        )
                except (CorruptBatchError, DeserializationError):
                    if not records:
                        raise
            self._subscription.rotate()
            self._wake()
        return records

    async def fetch_table(self, max_bytes: int = 64 * 1024 * 1024, timeout_ms: float | None = None) -> pyarrow.Table:
        """The same as an Arrow table: topic, partition, offset, timestamp, key, value, headers, without deserializers.

        `max_bytes` counts batches as they came (compressed, if they are); at least one batch is returned.
        """
        from ottla.client.read_tables import take_record_batch, to_table

        parts: list[pyarrow.RecordBatch] = []
        left_bytes = max_bytes
        deadline_s = _deadline_s(timeout_ms)
        while not parts and (ready := await self._ready(deadline_s)):
            for reader in ready:
                try:
                    part, size_bytes = take_record_batch(reader, left_bytes, check_crc=self._check_crcs)
                except CorruptBatchError:
                    if not parts:
                        raise
                    continue
                if part is not None:
                    parts.append(part)
                left_bytes -= size_bytes
                if left_bytes <= 0:
                    break
            self._subscription.rotate()
            self._wake()
        return to_table(parts)

    async def fetch_range(
        self, partition: tuple[str, int], until: int, *, max_bytes: int = 4 * 1024 * 1024, timeout_ms: float
    ) -> tuple[pyarrow.RecordBatch, bool] | None:
        """The next rows of one partition before the offset `until`; None when the position has come there.

        With them comes whether their timestamps are the broker's. What a reader does not see (markers, what was
        aborted, what compaction removed) is passed over. RequestTimedOutError if nothing comes. What is after `until`
        is not asked for, until something else is read or a range that is longer.
        """
        from ottla.client.read_tables import take_typed_batch

        reader = self._reader(partition)
        if reader.fetch_end != until:
            reader.fetch_end = until
            self._wake()
        deadline_s = _deadline_s(timeout_ms)
        if reader.position is None:  # it may come to be at the end, where nothing more comes
            await self.position(partition)
        while reader.position is None or reader.position < until:
            if not await self._ready(deadline_s, keep_ends=True):
                raise RequestTimedOutError(f"no records of {reader.at} came in {timeout_ms:g} ms, at {reader.position}")
            rows, by_broker = take_typed_batch(reader, max_bytes, check_crc=self._check_crcs)
            self._wake()
            if rows is None or not rows.num_rows:
                continue
            offsets = rows.column("offset")
            if offsets[-1].as_py() >= until:
                inside = bisect_left(offsets, until, key=lambda each: each.as_py())
                rows = rows.slice(0, inside)
            if rows.num_rows:
                return rows, by_broker
        return None

    async def _ready(self, deadline_s: float | None, *, keep_ends: bool = False) -> list[PartitionReader]:
        """The partitions that have data, as soon as one has. Empty when the time is over.

        `keep_ends`: those of ranges hold.
        """
        if not keep_ends:
            self._lift_ends()
        if self._group is None:
            return await self._wait_ready(deadline_s, None)
        self._require_fetcher()
        self._group.user_came()
        try:
            return await self._wait_ready(deadline_s, self._group)
        finally:
            self._group.user_went()

    async def _wait_ready(self, deadline_s: float | None, group: GroupSession | None) -> list[PartitionReader]:
        loop = asyncio.get_running_loop()
        while True:
            fetcher = self._require_fetcher()
            if group is not None:
                await group.attend()
            failure = self._subscription.take_failure()
            if failure is not None:
                fetcher.wake()  # what failed is tried again, and nobody else says so
                raise failure
            ready = [each for each in self._subscription.readers.values() if each.has_data and not each.paused]
            if ready:
                return ready
            left_s = None if deadline_s is None else deadline_s - loop.time()
            if left_s is not None and left_s <= 0:
                return []
            await fetcher.wait_arrived(left_s)

    def _lift_ends(self) -> None:
        limited = [each for each in self._subscription.readers.values() if each.fetch_end is not None]
        for reader in limited:
            reader.fetch_end = None
        if limited:
            self._wake()

    # The rest.

    async def _seek_to(self, end: int, partitions: Iterable[tuple[str, int]]) -> None:
        chosen = [TopicPartition(*each) for each in partitions] or self.assignment
        found = await self._list_offsets(dict.fromkeys(chosen, end))
        for at, result in found.items():
            self._reader(at).seek(result.offset)
        self._wake()

    def _reader(self, partition: tuple[str, int]) -> PartitionReader:
        reader = self._subscription.readers.get(TopicPartition(*partition))
        if reader is None:
            raise ClientError(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return reader

    def _on_metadata(self) -> None:
        self._subscription.discover()
        assert self._fetcher is not None
        if self._group is not None:
            self._group.on_metadata()
        self._subscription.note_unknown_topics(asyncio.get_running_loop().time(), self._fetcher.notify)

    def _wake(self) -> None:
        if self._fetcher is not None:
            self._fetcher.wake()

    def _require_fetcher(self) -> Fetcher:
        if self._closed:
            raise ClientClosedError("the consumer is closed")
        if self._fetcher is None:
            raise ClientClosedError("the consumer was not started: use `async with Consumer(...)` or `await start()`")
        return self._fetcher


def _deadline_s(timeout_ms: float | None) -> float | None:
    return None if timeout_ms is None else asyncio.get_running_loop().time() + timeout_ms / 1000
