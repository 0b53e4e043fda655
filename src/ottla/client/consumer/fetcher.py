"""Keeps a consumer's buffers filled, with one loop for each broker that assigned partitions are read from.

A loop requests the partitions whose buffer has room, waits for the reply, fills the buffers and repeats, while the user
processes buffered records. Brokers delay a fetch until there is data to send (a long poll).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from ottla.client.brokers import Brokers, new_backoff
from ottla.client.consumer.list_offsets import list_offsets
from ottla.client.consumer.partition_reader import LATEST, PartitionReader
from ottla.client.consumer.read_replicas import ReadReplicas
from ottla.client.consumer.types import READ_COMMITTED, TopicPartition, visible_batches
from ottla.client.errors import BrokerRefusedError, ClientError, UnsupportedByBrokerError, refused
from ottla.client.metadata import PASSING_FAILURES, Metadata
from ottla.client.producer.outcomes import LEADER_MOVED, error_code
from ottla.net.apis import FETCH
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import split_batches
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.wire.fetch import TOPIC_IDS_FROM, FetchPartition, FetchRequest
from ottla.protocol.wire.fetch_client import FetchedPartition, encode_fetch_request, parse_fetch_response
from ottla.protocol.wire.primitives import MalformedRequest
from ottla.protocol.wire.produce import TopicKey

PURPOSE = "fetch"
RETRY_PAUSE_S = 0.1
FOLLOWER_TIMEOUT_MS = 5000
"""Timeout of a fetch from a follower, beyond the long poll. Short, because the leader has the same records."""
BUSY_WAIT_MS = 20
"""The long poll while another partition of the same broker has a full buffer and may need data any moment."""
_NO_SESSION, _FULL_FETCH = 0, -1


class FetchSettings(NamedTuple):
    """The consumer settings that concern fetches."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_bytes_max: int
    buffer_bytes_max: int
    isolation_level: int
    reset_to: int | None
    """The timestamp to look up for a partition without a usable offset; None raises OffsetOutOfRangeError."""
    request_timeout_ms: int
    rack: str = ""
    replica_lease_ms: int = 300_000


class _RequestedPartition(NamedTuple):
    reader: PartitionReader
    generation: int
    offset: int
    of_follower: bool


class Fetcher:
    """Fetches in the background. The consumer owns `readers`, adds and removes partitions, and calls `wake`.

    `on_metadata` is called after each metadata refresh.
    """

    def __init__(
        self,
        settings: FetchSettings,
        brokers: Brokers,
        metadata: Metadata,
        readers: dict[TopicPartition, PartitionReader],
        on_metadata: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._brokers = brokers
        self._metadata = metadata
        self._readers = readers
        self._on_metadata = on_metadata
        self._loop = asyncio.get_running_loop()
        self._replicas = ReadReplicas(metadata, settings.rack, settings.replica_lease_ms / 1000, self._loop.time)
        self._loops: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self._changed = asyncio.Event()
        self._arrived = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise())
        self._supervisor.add_done_callback(self._on_task_ended)

    def wake(self) -> None:
        """Wakes all loops, because a partition needs data or an offset lookup."""
        self._changed.set()
        self._wake_loops()

    def _wake_loops(self) -> None:
        for _, event in self._loops.values():
            event.set()

    def notify(self) -> None:
        """Makes waiting readers check again, for instance because there is a failure to report."""
        self._arrived.set()

    async def wait_arrived(self, timeout_s: float | None) -> bool:
        """Waits until data arrives or a partition fails. Returns False after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return False
        self._arrived.clear()
        return True

    async def close(self) -> None:
        """Stops all loops."""
        tasks = [self._supervisor, *(task for task, _ in self._loops.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        """Reports the failure of a loop to the readers. Loops never end by themselves."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            failure = ClientError(f"the consumer's background task failed: {type(fault).__name__}: {fault}")
            failure.__cause__ = fault
            self._fail_all(failure)

    # Leaders and initial offsets.

    async def _supervise(self) -> None:
        """Finds leaders and offsets, and starts a loop for each leader."""
        backoff = new_backoff(min_ms=50)
        while True:
            self._changed.clear()
            try:
                if self._metadata.needs_refresh:
                    await self._metadata.refresh()
                    self._on_metadata()
                    self._wake_loops()  # a partition without a leader may have one now
                await self._look_up()
                backoff.reset()
            except PASSING_FAILURES:
                self._metadata.mark_stale()
            except ClientError as failure:
                self._fail_all(failure)
            if self._replicas.expire():
                self._wake_loops()
            self._start_loops()
            if any(self._metadata.leader(*at) is None for at in self._readers):
                self._metadata.mark_stale()  # it will get a leader, but no event says when
            pause_s = backoff.next_s() if self._unsettled() else 1.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    def _unsettled(self) -> bool:
        if self._metadata.needs_refresh:
            return True
        return any(reader.lookup is not None and reader.failure is None for reader in self._readers.values())

    async def _look_up(self) -> None:
        wanted = {
            at: reader.lookup
            for at, reader in self._readers.items()
            if reader.lookup is not None and reader.failure is None and self._metadata.leader(*at) is not None
        }
        if not wanted:
            return
        asked = {at: self._readers[at].generation for at in wanted}
        found = await list_offsets(
            self._brokers,
            self._metadata,
            wanted,
            isolation_level=self._settings.isolation_level,
            timeout_ms=self._settings.request_timeout_ms,
        )
        for at, result in found.items():
            reader = self._readers.get(at)
            if reader is None or reader.generation != asked[at] or reader.lookup != wanted[at]:
                continue  # the position has changed meanwhile
            if result.offset < 0:
                reader.lookup = LATEST  # no record is as late as the requested time
            else:
                reader.looked_up(result.offset)
        self.wake()

    def _start_loops(self) -> None:
        for at in self._readers:
            broker_id = self._replicas.broker_for(at)
            if broker_id is not None and broker_id not in self._loops:
                event = asyncio.Event()
                task = asyncio.create_task(self._fetch_from(broker_id, event))
                task.add_done_callback(self._on_task_ended)
                self._loops[broker_id] = (task, event)

    # Fetches from one broker.

    async def _fetch_from(self, broker_id: int, event: asyncio.Event) -> None:
        backoff = new_backoff()
        while True:
            event.clear()
            now_s = self._loop.time()
            asked, some_full = self._wanted(broker_id, now_s)
            if not asked:
                pause_s = self._until_retry_s(broker_id, now_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await event.wait()
                continue
            try:
                await self._fetch_once(broker_id, asked, some_full)
                backoff.reset()
            except (*PASSING_FAILURES, MalformedRequest):
                self._metadata.mark_stale()
                self._replicas.leave_broker(broker_id)
                self.wake()
                await asyncio.sleep(backoff.next_s())
            except ClientError as failure:
                self._fail_all(failure)
                await asyncio.sleep(RETRY_PAUSE_S)

    def _wanted(self, broker_id: int, now_s: float) -> tuple[dict[TopicPartition, _RequestedPartition], bool]:
        """Returns the partitions to request from this broker, and whether some were omitted due to full buffers."""
        asked: dict[TopicPartition, _RequestedPartition] = {}
        some_full = False
        for at, reader in self._readers.items():
            if reader.fetch_offset is None or reader.failure is not None or reader.paused or reader.is_at_end:
                continue
            if self._replicas.broker_for(at) != broker_id:
                continue
            if reader.buffered_bytes >= self._settings.buffer_bytes_max:
                some_full = True
            elif reader.not_before_s <= now_s:
                of_follower = self._replicas.is_follower(at, broker_id)
                asked[at] = _RequestedPartition(reader, reader.generation, reader.fetch_offset, of_follower)
        return asked, some_full

    def _until_retry_s(self, broker_id: int, now_s: float) -> float | None:
        """Returns the time from `now_s` to the next retry, so that a partition due since then is not missed."""
        pauses = [
            reader.not_before_s - now_s
            for at, reader in self._readers.items()
            if reader.not_before_s > now_s and self._replicas.broker_for(at) == broker_id
        ]
        return min(pauses, default=None)

    async def _fetch_once(
        self, broker_id: int, asked: dict[TopicPartition, _RequestedPartition], some_full: bool
    ) -> None:
        connection = await self._brokers.connection(broker_id, PURPOSE)
        version = connection.version_for(FETCH.key, FETCH.versions, FETCH.name)
        topics, names = self._request_topics(asked, version)
        wait_ms = min(BUSY_WAIT_MS, self._settings.max_wait_ms) if some_full else self._settings.max_wait_ms
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=wait_ms,
            min_bytes=self._settings.min_bytes,
            max_bytes=self._settings.max_bytes,
            isolation_level=self._settings.isolation_level,
            session_id=_NO_SESSION,
            session_epoch=_FULL_FETCH,
            topics=topics,
            forgotten=[],
            rack_id=self._replicas.rack_for(asked),
        )
        timeout_ms = self._settings.request_timeout_ms + wait_ms
        if all(each.of_follower for each in asked.values()):
            timeout_ms = min(timeout_ms, FOLLOWER_TIMEOUT_MS + wait_ms)
        body = encode_fetch_request(version, request)
        reply = await connection.request(FETCH.key, version, [body], what="fetching", timeout_ms=timeout_ms)
        response = parse_fetch_response(reply, version)
        if response.error:
            raise refused(error_code(response.error), "fetching")
        for key, partitions in response.topics:
            for result in partitions:
                at = TopicPartition(names[key], result.partition) if key in names else None
                if at is not None and at in asked:
                    self._on_partition(asked[at], result)

    def _request_topics(
        self, asked: dict[TopicPartition, _RequestedPartition], version: int
    ) -> tuple[list[tuple[TopicKey, list[FetchPartition]]], dict[TopicKey, str]]:
        topics: dict[TopicKey, list[FetchPartition]] = {}
        names: dict[TopicKey, str] = {}
        for at, (reader, _, offset, _) in asked.items():
            view = self._metadata.cached(at.topic)
            if view is None or at.partition not in view.partitions:
                continue
            key: TopicKey = at.topic
            if version >= TOPIC_IDS_FROM:
                if view.id is None:
                    raise UnsupportedByBrokerError(f"the broker's metadata has no id for topic {at.topic}")
                key = view.id
            names[key] = at.topic
            epoch = view.partitions[at.partition].leader_epoch
            entry = FetchPartition(at.partition, epoch, offset, -1, -1, reader.fetch_bytes_max)
            topics.setdefault(key, []).append(entry)
        return list(topics.items()), names

    def _on_partition(self, asked: _RequestedPartition, result: FetchedPartition) -> None:
        reader = asked.reader
        if reader.generation != asked.generation or reader.fetch_offset != asked.offset:
            return  # the position has changed; this replies to an older request
        if result.error:
            self._on_error(asked, error_code(result.error))
            return
        reader.high_watermark = result.high_watermark
        if result.preferred_read_replica >= 0 and not asked.of_follower:
            self._replicas.use(reader.at, result.preferred_read_replica)
            self.wake()
            return
        if not result.records:
            return
        aborted = result.aborted if self._settings.isolation_level == READ_COMMITTED else None
        try:
            count = reader.add(visible_batches(split_batches(result.records), asked.offset, aborted))
        except CorruptRecords as damage:
            self._fail(reader, reader.damaged_at(reader.fetch_offset or asked.offset, damage))
            return
        if count == 0:
            reader.fetch_bytes_max *= 2  # the broker returned only part of the first batch, which exceeds our limit
        self._arrived.set()

    def _on_error(self, asked: _RequestedPartition, error: ErrorCode) -> None:
        reader, offset = asked.reader, asked.offset
        reader.not_before_s = self._loop.time() + RETRY_PAUSE_S
        if asked.of_follower:
            # Whatever the error is, go back to the leader: a follower may lack records that the leader has.
            self._replicas.leave(reader.at)
            self.wake()
        elif error == ErrorCode.offset_out_of_range:
            if self._settings.reset_to is not None:
                reader.resume_from_lookup(self._settings.reset_to)
                self._changed.set()
            else:
                self._fail(reader, refused(error, f"offset {offset} of {reader.at}"))
        elif error == ErrorCode.corrupt_message:
            # Kafka calls this error retriable, but that is meant for producers. A reader that retries would wait
            # forever. In a cluster, however, a damaged leader is replaced.
            self._metadata.mark_stale()
            self._fail(reader, reader.damaged_at(offset, CorruptRecords("the broker reports it as corrupt")))
        elif error in LEADER_MOVED or error.retriable:
            self._metadata.mark_stale()
            self._changed.set()
        else:
            self._fail(reader, refused(error, str(reader.at)))

    def _fail(self, reader: PartitionReader, failure: ClientError) -> None:
        reader.failure = failure
        self._arrived.set()

    def _fail_all(self, failure: ClientError) -> None:
        """Applies a failure that names no partition to all partitions."""
        fatal = not isinstance(failure, BrokerRefusedError) or not failure.retriable
        for reader in self._readers.values():
            if fatal and reader.failure is None:
                self._fail(reader, failure)
