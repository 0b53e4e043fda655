"""The consumer: by record and by Arrow table, alone or as a member of a group."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ottla.client.brokers import Brokers
from ottla.client.consumer.arrivals import Arrivals
from ottla.client.consumer.fetcher import FetchSettings
from ottla.client.consumer.lookups import ConsumerLookups
from ottla.client.consumer.partition_reader import EARLIEST, LATEST
from ottla.client.consumer.settings import IsolationLevel, OffsetReset, isolation_number, reset_to
from ottla.client.consumer.subscription import Subscription
from ottla.client.consumer.types import READ_COMMITTED, ConsumerRecord, TopicPartition
from ottla.client.errors import (
    ClientError,
    CommitFailedError,
    CorruptBatchError,
    DeserializationError,
    RequestTimedOutError,
)
from ottla.client.groups.offsets import GroupProgress, OffsetAndMetadata
from ottla.client.groups.session import GroupSession, RebalanceCallback, open_session
from ottla.client.groups.settings import DEFAULT_ASSIGNORS, GroupProtocol, GroupSettings
from ottla.client.groups.steps import Identity
from ottla.client.metadata import Metadata
from ottla.client.serialization import Deserializer, converter
from ottla.net.security import NO_SECURITY, ConnectionSecurity
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    import pyarrow


class Consumer(ConsumerLookups):
    """Reads partitions. Start it with `async with`, or with `start` and `close`.

        async with Consumer("127.0.0.1:9092", group_id="billing", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            async for record in consumer:
                ...

    Data is prefetched in the background. `position` advances when records are returned, so a program that stores its
    positions together with its results resumes exactly where it stopped. With a `group_id`, the group stores the
    positions: returned records count as processed when the program asks for more (`GroupSettings` explains the group
    settings).

    With `client_rack`, partitions are read from in-sync followers in that rack, where the brokers allow it.
    """

    _group: GroupSession | None = None

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
        security: ConnectionSecurity = NO_SECURITY,
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
            security=security,
        )
        self._metadata = Metadata(self._brokers, allow_auto_create=False, max_age_ms=metadata_max_age_ms)
        self._subscription = Subscription(self._metadata, self._settings, has_group=group_id is not None)
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
        self._arrivals = Arrivals(self._settings, self._brokers, self._metadata, self._subscription, self._group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the consumer. After an exception, records that the program was working on are not committed."""
        await self._close(all_processed=error is None)

    async def start(self) -> None:
        """Connects. Raises NoBrokerError if no broker answers."""
        if self._arrivals.is_started:
            return
        try:
            await self._metadata.refresh()
        except BaseException:
            await self._brokers.disconnect()  # so that it can be started again
            raise
        self._arrivals.start()

    async def close(self) -> None:
        """Closes. In a group, first commits returned records (with `auto_commit`), calls `on_revoked`, and leaves."""
        await self._close(all_processed=True)

    async def _close(self, *, all_processed: bool) -> None:
        if self._arrivals.is_closed:
            return
        try:
            if self._group is not None and self._arrivals.is_started:
                await self._group.close(all_processed=all_processed)
        finally:
            await self._arrivals.close()
            await self._brokers.close()

    # Assignment and positions.

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Reads exactly these partitions. Partitions that were already assigned keep their position."""
        if self._group is not None:
            self._group.check_assignable()
        self._subscription.assign(TopicPartition(*each) for each in partitions)
        if self._group is not None:
            self._group.positions.look_up()
        self._arrivals.wake()

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Without a group, reads all partitions of these topics; those added later are read from their beginning.

        In a group, reads the partitions that the group assigns to this consumer. A compiled regular expression
        subscribes to all topics whose whole name matches. Callbacks receive a list of partitions while the program
        waits for records: `on_revoked` before partitions are given up, `on_lost` (else `on_revoked`) after they were
        taken away.
        """
        if isinstance(topics, str):
            raise TypeError("subscribe takes a list of topics")
        if self._group is not None:
            chosen = topics if isinstance(topics, re.Pattern) else frozenset(topics)
            self._group.subscribe(chosen, on_assigned, on_revoked, on_lost)
        elif isinstance(topics, re.Pattern) or on_assigned or on_revoked or on_lost:
            raise ValueError(
                "regular expressions and callbacks need a group; create the consumer with Consumer(..., group_id=...)"
            )
        else:
            self._subscription.subscribe(topics)
        self._arrivals.wake()

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, sorted."""
        return sorted(self._subscription.readers)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continues the partition at this offset or, if no record has it, at the next record."""
        if offset < 0:
            raise ValueError(f"an offset must not be negative: {offset}")
        self._subscription.reader(partition).seek(offset)
        self._arrivals.wake()

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Seeks to the first offset of these partitions, or of all assigned ones."""
        await self._seek_to(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Seeks to the end of these partitions as of this call, or of all assigned ones."""
        await self._seek_to(LATEST, partitions)

    async def seek_to_committed(self) -> None:
        """Returns to the committed offsets, else to the first returned record. For use after an aborted transaction."""
        positions = self._require_group().positions
        for reader in self._subscription.readers.values():
            reader.return_to_committed()
        positions.look_up()  # if the lookup fails here, it continues in the background
        await positions.find()
        self._arrivals.wake()

    def rewind(self, first: Mapping[TopicPartition, int]) -> None:
        """Returns records from these offsets on again, for partitions that are still assigned."""
        self._subscription.rewind(first)
        self._arrivals.wake()

    async def position(self, partition: tuple[str, int]) -> int:
        """Returns the offset of the next record to be returned."""
        reader = self._subscription.reader(partition)
        while reader.position is None:
            if reader.wants_committed:
                await self._require_group().positions.find()
                continue
            if reader.lookup is None:
                raise reader.failure or ClientError(f"{reader.at} has no position")
            await self._seek_to(reader.lookup, [partition])
        return reader.position

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Stops returning records from these partitions until `resume`. They stay assigned."""
        for each in partitions:
            self._subscription.reader(each).paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Returns records from these partitions again."""
        for each in partitions:
            self._subscription.reader(each).paused = False
        self._arrivals.wake()
        self._arrivals.notify()

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions, sorted."""
        return sorted(at for at, reader in self._subscription.readers.items() if reader.paused)

    # Groups.

    async def commit(self, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None) -> None:
        """Commits these offsets (of the next records to read), or by default the positions after all returned records.

        Raises CommitFailedError if the group continued without this consumer.
        """
        group = self._require_group()
        await group.commit(_to_commit(group, offsets))

    def commit_nowait(
        self, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None
    ) -> asyncio.Task[None]:
        """Commits in the background the offsets as of this call. Commits keep their order."""
        group = self._require_group()
        return asyncio.create_task(group.commit(_to_commit(group, offsets)))

    async def committed(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the group's committed offsets, or None, for these or else all assigned partitions."""
        chosen = self.assignment if partitions is None else [TopicPartition(*each) for each in partitions]
        return await self._require_group().committed(chosen)

    def progress(self, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None) -> GroupProgress:
        """Returns the offsets that a transaction commits for the group: these, or else the positions."""
        group = self._require_group()
        if group.settings.auto_commit or self._settings.isolation_level != READ_COMMITTED:
            raise ClientError(
                "committing offsets in a transaction requires a consumer without automatic commits that reads "
                'only committed records: Consumer(..., auto_commit=False, isolation_level="read_committed")'
            )
        chosen = _to_commit(group, offsets)
        if foreign := [str(at) for at in chosen if at not in self._subscription.readers]:
            message = f"{', '.join(foreign)} is no longer assigned to this consumer; its new owner commits for it"
            raise CommitFailedError(ErrorCode.unknown_member_id, message)
        return GroupProgress(group.settings.group_id, chosen, lambda: group.identity)

    @property
    def in_group(self) -> bool:
        """Whether this consumer is a member and has its whole assignment, which may be empty."""
        return self._group is not None and self._group.is_settled

    @property
    def group_identity(self) -> Identity | None:
        """The member id, generation and instance id that sign this consumer's commits. None if it is not a member."""
        return None if self._group is None else self._group.identity

    # Reading.

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        group = self._group
        while True:
            for reader in await self._arrivals.ready(None):
                for record in reader.each_record(check_crc=self._check_crcs, convert=self._convert):
                    yield record
                    if group is not None and group.done_with_one(reader):
                        break
                    if reader.paused:
                        break
                self._arrivals.wake()
                if group is not None and group.wants_user:
                    break

    async def fetch_records(self, max_records: int = 500, timeout_ms: float | None = None) -> list[ConsumerRecord]:
        """Waits for a record, then returns up to `max_records` available ones, or none after the timeout."""
        records: list[ConsumerRecord] = []
        deadline_s = _deadline_s(timeout_ms)
        while not records and (ready := await self._arrivals.ready(deadline_s)):
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
            self._arrivals.wake()
        return records

    async def fetch_table(self, max_bytes: int = 64 * 1024 * 1024, timeout_ms: float | None = None) -> pyarrow.Table:
        """Like `fetch_records`, but returns an Arrow table and applies no deserializers.

        The columns are topic, partition, offset, timestamp, key, value and headers. `max_bytes` counts batches as
        received (compressed, if they are); at least one batch is returned.
        """
        from ottla.client.consumer.read_tables import take_record_batch, to_table

        parts: list[pyarrow.RecordBatch] = []
        left_bytes = max_bytes
        deadline_s = _deadline_s(timeout_ms)
        while not parts and (ready := await self._arrivals.ready(deadline_s)):
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
            self._arrivals.wake()
        return to_table(parts)

    async def fetch_range(
        self, partition: tuple[str, int], until: int, *, max_bytes: int = 4 * 1024 * 1024, timeout_ms: float
    ) -> tuple[pyarrow.RecordBatch, bool] | None:
        """Returns the next rows of one partition before the offset `until`, or None once the position reaches it.

        The second result is whether the broker set the timestamps. Invisible records (markers, aborted or compacted
        records) are skipped. Raises RequestTimedOutError if no data arrives. Offsets from `until` on are not fetched
        until another read or a longer range asks for them.
        """
        from ottla.client.consumer.read_tables import take_typed_batch

        reader = self._subscription.reader(partition)
        if reader.fetch_end != until:
            reader.fetch_end = until
            self._arrivals.wake()
        deadline_s = _deadline_s(timeout_ms)
        if reader.position is None:  # it may turn out to be at the end, where no data would arrive
            await self.position(partition)
        while reader.position is None or reader.position < until:
            if not await self._arrivals.ready(deadline_s, keep_ends=True):
                raise RequestTimedOutError(
                    f"no records of {reader.at} arrived within {timeout_ms:g} ms, at position {reader.position}"
                )
            rows, by_broker = take_typed_batch(reader, max_bytes, check_crc=self._check_crcs)
            self._arrivals.wake()
            if rows is None or not rows.num_rows:
                continue
            offsets = rows.column("offset")
            if offsets[-1].as_py() >= until:
                inside = bisect_left(offsets, until, key=lambda each: each.as_py())
                rows = rows.slice(0, inside)
            if rows.num_rows:
                return rows, by_broker
        return None

    # Internals.

    async def _seek_to(self, end: int, partitions: Iterable[tuple[str, int]]) -> None:
        chosen = [TopicPartition(*each) for each in partitions] or self.assignment
        found = await self._list_offsets(dict.fromkeys(chosen, end))
        for at, result in found.items():
            self._subscription.reader(at).seek(result.offset)
        self._arrivals.wake()

    def _require_group(self) -> GroupSession:
        self._arrivals.require_open()
        if self._group is None:
            raise ClientError("this consumer has no group; create it with Consumer(..., group_id=...)")
        return self._group


def _to_commit(
    group: GroupSession, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None
) -> dict[TopicPartition, OffsetAndMetadata]:
    if offsets is None:
        return group.positions.handed_out()
    return {
        TopicPartition(*at): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        for at, offset in offsets.items()
    }


def _deadline_s(timeout_ms: float | None) -> float | None:
    return None if timeout_ms is None else asyncio.get_running_loop().time() + timeout_ms / 1000
