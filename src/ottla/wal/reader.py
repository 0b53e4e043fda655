"""The reading half of a handle: chunks of entries from an offset on, across changes of the leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ottla.net.grpc.channel import Channel, status_of
from ottla.net.grpc.status import RpcError, Status
from ottla.net.grpc.stream import Receiver
from ottla.protocol.records.batch import split_batches
from ottla.protocol.records.bridge import decode_records
from ottla.protocol.wire.wal_calls import LogName, ReadReply, ReadRequest, decode_read_reply, encode_read_request
from ottla.wal.errors import UnavailableError, WalError, error_of
from ottla.wal.leaders import PASSING, SERVICE, Leaders, new_backoff, unavailable
from ottla.wal.values import Entry


async def read_chunks(
    leaders: Leaders, log: LogName, first: int, until: int | None, patience_s: float
) -> AsyncIterator[list[Entry]]:
    """Yields chunks of entries; with `until` None it never ends by itself. After a change of the leader it continues at
    the same offset."""
    loop = asyncio.get_running_loop()
    offset, backoff, last_well = first, new_backoff(), loop.time()
    while until is None or offset < until:
        try:
            reading = _Reading(await leaders.channel(), ReadRequest(log, offset, until, until is None, True))
            try:
                async for reply in reading.replies():
                    if reply.failure is not None:
                        if reply.failure.code not in PASSING:
                            raise error_of(reply.failure)
                        leaders.point_to(reply.failure.leader)
                        raise UnavailableError(reply.failure.message)
                    chunk = _entries(reply, offset, until)
                    offset = reply.next_offset
                    backoff.reset()
                    last_well = loop.time()
                    if chunk:
                        yield chunk
            finally:
                reading.close()
            if until is None:
                raise UnavailableError("the broker ended the stream")
        except (RpcError, UnavailableError) as error:
            if isinstance(error, RpcError):
                leaders.point_to("")
            if loop.time() - last_well > patience_s:
                raise unavailable(error, patience_s) from error
            await asyncio.sleep(backoff.next_s())


def _entries(reply: ReadReply, offset: int, until: int | None) -> list[Entry]:
    if reply.entries:
        return [Entry(entry.offset, entry.data, entry.timestamp_ms) for entry in reply.entries]
    records = decode_records(split_batches(reply.record_batches), from_offset=offset)
    entries = [Entry(record[0], record[3] or b"", record[1]) for record in records]
    if until is not None and entries and entries[-1].offset >= until:
        entries = [entry for entry in entries if entry.offset < until]
    return entries


class _Reading(Receiver):
    """One Read call. Messages that are not consumed yet get no flow-control credit, so that more data stays at the
    broker."""

    def __init__(self, channel: Channel, request: ReadRequest) -> None:
        self._queue: asyncio.Queue[bytes | RpcError | None] = asyncio.Queue()
        self._stream = channel.call(f"{SERVICE}/Read", self)
        self._stream.send(bytes(encode_read_request(request)))
        self._stream.end()

    async def replies(self) -> AsyncIterator[ReadReply]:
        while True:
            item = await self._queue.get()
            if item is None:
                return
            if isinstance(item, RpcError):
                raise item
            self._stream.credit(len(item))
            try:
                yield decode_read_reply(item)
            except ValueError as error:
                raise WalError(f"cannot decode the broker's response: {error}") from error

    def close(self) -> None:
        self._stream.reset()

    def on_message(self, message: bytes) -> None:
        self._queue.put_nowait(message)

    def on_headers(self, headers: dict[str, str]) -> None:
        if "grpc-status" in headers:
            self.on_end(headers)

    def on_end(self, trailers: dict[str, str]) -> None:
        self._queue.put_nowait(status_of(trailers))

    def on_lost(self, error: RpcError) -> None:
        self._queue.put_nowait(RpcError(Status.UNAVAILABLE, str(error)))
