"""The Read call: streams committed records from an offset on.

Records come from the tail cache or from disk, through the same `Partition.read` that serves Kafka's fetches. A stream
buffers little: it reads more only when few of its bytes are unsent. So a slow reader delays only itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.broker.partition.waits import FetchWatch
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.broker.wal_service.logs import Logs
from ottla.broker.wal_service.open_streams import OpenStreams
from ottla.net.grpc.server import Call, guarded
from ottla.net.grpc.status import RpcError, Status
from ottla.net.grpc.stream import Receiver
from ottla.protocol.model.acl import Operation
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import Batch, split_batches
from ottla.protocol.records.bridge import decode_records
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.wire.wal_append import Code, WalFailure
from ottla.protocol.wire.wal_calls import ReadReply, ReadRequest, WalEntry, decode_read_request, encode_read_reply

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition

READ_BYTES = 1 << 20
RECORD_BYTES = 64 << 10
"""A read of a few records first reads this many bytes per record, because a bisection reads one record at a time."""
UNSENT_BYTES_MAX = 2 << 20


class ReadStream(Receiver):
    """Serves one Read call."""

    def __init__(self, logs: Logs, streams: OpenStreams, call: Call) -> None:
        self._logs = logs
        self._streams = streams
        self._call = call
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._is_stopping = False

    def on_message(self, message: bytes) -> None:
        self._call.stream.credit(len(message))
        if self._task is None:
            self._task = self._streams.start_task(guarded("Read", self._call, self._serve(message)))

    def on_end(self, trailers: dict[str, str]) -> None:
        if self._task is None:
            self._streams.forget_reader(self)
            self._call.finish(Status.INVALID_ARGUMENT, "the request is missing")

    def on_lost(self, error: RpcError) -> None:
        self._streams.forget_reader(self)
        if self._task is not None:
            self._task.cancel()

    def on_drained(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """Ends the call because the broker stops."""
        self._is_stopping = True
        self._woken.set()

    async def _serve(self, message: bytes) -> None:
        try:
            await self._serve_request(message)
        finally:
            self._streams.forget_reader(self)

    async def _serve_request(self, message: bytes) -> None:
        request = decode_read_request(message)
        partition = self._logs.led(request.log, Operation.READ)
        failure = partition if isinstance(partition, WalFailure) else await self._read(partition, request)
        if failure is not None:
            self._call.send(encode_read_reply(ReadReply(failure=failure)))

    async def _read(self, partition: Partition, request: ReadRequest) -> WalFailure | None:
        offset, until = request.first, request.until
        if until is None and not request.follow:
            if not partition.is_watermark_known:
                return WalFailure(Code.UNAVAILABLE, "the new leader does not know yet what is committed")
            until = partition.last_stable_offset
        while until is None or offset < until:
            if self._is_stopping:
                return WalFailure(Code.UNAVAILABLE, "the broker stops")
            if not partition.is_led_here or partition.deleted:
                return self._logs.not_led(request.log)
            refused = self._logs.refusal(request.log.topic, Operation.READ)
            if refused is not None:
                return refused
            outcome = partition.read(offset, _size_to_read(offset, until), committed_only=True)
            if isinstance(outcome, ColdRead):
                outcome = await partition.read_cold(outcome)
            if isinstance(outcome, Refused):
                return self._refusal(partition, request, outcome, offset)
            if outcome.next_offset > offset:
                self._call.send(encode_read_reply(_reply(partition, request, outcome, offset, until)))
                offset = outcome.next_offset
            elif not request.follow and until is not None and until > partition.log.end_offset:
                return WalFailure(Code.INVALID, f"the log ends at {partition.log.end_offset}, before {until}")
            else:
                await self._until_there_is_more(partition, offset)
            await self._until_sent()
        return None

    def _refusal(self, partition: Partition, request: ReadRequest, refused: Refused, offset: int) -> WalFailure:
        start = partition.log.start_offset
        if refused.error is not ErrorCode.offset_out_of_range:
            return self._logs.failure(request.log, refused)
        if offset < start:
            return WalFailure(Code.TRIMMED, f"offset {offset} is gone: the log begins at {start}", offset=start)
        return WalFailure(Code.INVALID, f"offset {offset} is behind the log's end at {partition.log.end_offset}")

    async def _until_sent(self) -> None:
        while self._call.unsent_bytes > UNSENT_BYTES_MAX and not self._call.is_over:
            self._woken.clear()
            await self._woken.wait()
        await asyncio.sleep(0)

    async def _until_there_is_more(self, partition: Partition, offset: int) -> None:
        """Waits for a change of what readers may see, or of the leader."""
        self._call.begin()
        self._woken.clear()
        partition.watches.add(FetchWatch(id(self), self._woken.set))
        try:
            if partition.last_stable_offset <= offset and partition.is_led_here and not partition.deleted:
                await self._woken.wait()
        finally:
            partition.watches.remove(id(self))


def _size_to_read(offset: int, until: int | None) -> int:
    return READ_BYTES if until is None else min(READ_BYTES, (until - offset) * RECORD_BYTES)


def _reply(partition: Partition, request: ReadRequest, read: Slice, offset: int, until: int | None) -> ReadReply:
    end = partition.last_stable_offset
    aborted = partition.log.transactions.aborted.between(offset, read.next_offset)
    if request.as_batches and not aborted:
        if until is not None and read.next_offset > until:
            read = _before(read, until)
        found = read.buffers[0] if len(read.buffers) == 1 else b"".join(read.buffers)
        return ReadReply(record_batches=found, next_offset=read.next_offset, committed_end=end)
    spans = [(each.producer_id, each.first_offset, each.last_offset) for each in aborted]
    batches = [batch for batch in _batches(read) if not _is_aborted(batch, spans)]
    if request.as_batches:
        data = b"".join(batch.data for batch in batches)
        return ReadReply(record_batches=data, next_offset=read.next_offset, committed_end=end)
    try:
        records = decode_records(batches, from_offset=offset, check_crc=False)
    except CorruptRecords as error:
        raise RpcError(Status.INTERNAL, f"a batch behind offset {offset} cannot be read: {error}") from error
    entries = [
        WalEntry(record.offset, record.timestamp_ms, record.value or b"")
        for record in records
        if until is None or record.offset < until
    ]
    return ReadReply(entries=entries, next_offset=read.next_offset, committed_end=end)


def _before(read: Slice, until: int) -> Slice:
    """Returns the batches of the slice that have a record before `until`. The end of the slice stays the same."""
    kept = [batch.data for batch in _batches(read) if batch.header.base_offset < until]
    return Slice([memoryview(data) for data in kept], sum(map(len, kept)), read.next_offset)


def _batches(read: Slice) -> Iterable[Batch]:
    for buffer in read.buffers:
        yield from split_batches(buffer)


def _is_aborted(batch: Batch, spans: list[tuple[int, int, int]]) -> bool:
    header = batch.header
    return header.is_transactional and any(
        producer_id == header.producer_id and first <= header.base_offset <= last for producer_id, first, last in spans
    )
