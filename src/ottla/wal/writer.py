"""The writing half of a handle: numbers records, keeps them until they are settled, and resumes after a broken stream.

Every unsettled record is kept. When a stream ends, the next one begins with the id up to which everything is settled.
The leader replies with the last id that it has, and the records after that are sent again, in order. Nothing is lost
and nothing is duplicated, however much was in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from ottla.net.grpc.status import RpcError
from ottla.protocol.wire.wal_append import Acks, AppendReply, Begin, Code, StreamBegun, WalFailure
from ottla.protocol.wire.wal_calls import LogName
from ottla.wal.append import APPEND_BYTES_MAX, Append
from ottla.wal.errors import (
    LogClosedError,
    TooLargeError,
    TooMuchInFlightError,
    UnavailableError,
    UnknownOutcomeError,
    WalError,
    error_of,
)
from ottla.wal.leaders import PASSING, Leaders, new_backoff, unavailable
from ottla.wal.stream import StreamEnd, WriterStream
from ottla.wal.values import Limits


class Writer:
    """Appends the records of one handle, over a sequence of streams."""

    def __init__(self, leaders: Leaders, log: LogName, epoch: int, acks: Acks, limits: Limits) -> None:
        self._leaders = leaders
        self._log = log
        self._epoch = epoch
        self._acks = acks
        self._limits = limits
        self._writer_id: int | None = None
        self._next_id = 0
        self._settled_id = -1
        """Everything up to this id is settled."""
        self._from_offset = 0
        self._has_begun = False
        self._appends: deque[Append] = deque()
        """Unsettled appends in the order of their ids. Settled ones are removed from the front."""
        self._by_id: dict[int, Append] = {}
        self.in_flight_bytes = 0
        self._room: asyncio.Event = asyncio.Event()
        self._room.set()
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self.failed: WalError | None = None
        self._stream: WriterStream | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting_since = 0.0
        """Time since which something has been waiting and nothing was settled."""
        self._task: asyncio.Task[None] | None = None

    # -- called by the handle -----------------------------------------------------------------------------------

    def append(self, data: Sequence[bytes], expected_end: int | None) -> asyncio.Future[int]:
        """Appends records; the future resolves to the offset of the first one."""
        if self.failed is not None:
            raise self.failed
        if self.in_flight_bytes >= self._limits.in_flight_bytes_max:
            raise TooMuchInFlightError(f"the buffer is full: {self.in_flight_bytes} bytes await acknowledgement")
        append = Append(self._next_id, data, expected_end)
        if append.size_bytes > APPEND_BYTES_MAX:
            raise TooLargeError(f"an append of {append.size_bytes} bytes exceeds the maximum size of an append")
        self._next_id += append.count
        self._appends.append(append)
        self._by_id[append.first_id] = append
        self.in_flight_bytes += append.size_bytes
        if self.in_flight_bytes >= self._limits.in_flight_bytes_max:
            self._room.clear()
        if self._idle.is_set():
            self._idle.clear()
            self._waiting_since = self._loop.time()
        if self._stream is not None:
            self._stream.push(append)
        self.start()
        return append.future

    async def ready(self) -> None:
        """Waits until there is room for another append."""
        await self._room.wait()

    async def flush(self) -> None:
        """Waits until everything is settled, successfully or not."""
        await self._idle.wait()

    def start(self) -> None:
        """Starts the task that keeps a stream open."""
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        """Fails everything that is unsettled and ends the stream."""
        self._fail_all(LogClosedError("the log was closed"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # -- streams, one after another -----------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = new_backoff()
        while self.failed is None:
            try:
                ended = await self._stream_once()
            except RpcError as error:
                ended = StreamEnd(error)
            except UnavailableError as error:
                ended = StreamEnd(error)
            except WalError as error:
                self._fail_all(error)
                return
            if ended.made_progress:
                backoff.reset()
            if self._appends and self._loop.time() - self._waiting_since > self._limits.patience_s:
                self._give_up(unavailable(ended.error, self._limits.patience_s))
            await asyncio.sleep(backoff.next_s())

    async def _stream_once(self) -> StreamEnd:
        channel = await self._leaders.channel()
        settled_id = self._settled_id if self._settled_id >= 0 else None
        begin = Begin(
            self._log.topic,
            self._log.partition,
            self._acks,
            self._epoch,
            self._writer_id,
            settled_id,
            self._from_offset,
        )
        stream = WriterStream(self, channel, begin)
        try:
            ended = await stream.run()
        finally:
            self._stream = None
            stream.close()
        if ended.failure is not None:
            self._take_failure(ended.failure)
        else:
            self._leaders.point_to("")
        return ended

    def _take_failure(self, failure: WalFailure) -> None:
        if failure.code in PASSING:
            self._leaders.point_to(failure.leader)
        elif failure.code is Code.UNKNOWN_WRITER and not self._epoch:
            self._begin_anew(failure)
        else:
            # A fenced writer was told about all its records in the log, unless the log no longer knows it.
            self._fail_all(error_of(failure), is_outcome_known=failure.code is Code.FENCED)

    def _begin_anew(self, failure: WalFailure) -> None:
        """Starts with a new writer id after the log has forgotten this shared writer. Records in flight may be in the
        log; the others are sent."""
        error = UnknownOutcomeError(f"{failure.message}; appends in flight may or may not be in the log")
        for append in [append for append in self._appends if append.is_sent]:
            self._settle(append, error=error)
        self._writer_id = None
        self._move_settled()

    # -- called by the stream -----------------------------------------------------------------------------------

    def on_begun(self, stream: WriterStream, begun: StreamBegun) -> None:
        """Sends everything that the leader does not have yet."""
        last_id = -1 if begun.last_id is None else begun.last_id
        self._writer_id = begun.writer_id
        unsent = [append for append in self._appends if append.first_id > last_id]
        if not self._has_begun or len(unsent) == len(self._appends):
            # None of the waiting records is in the log: they will all be above the current committed end.
            self._from_offset = max(self._from_offset, begun.committed_end)
        self._has_begun = True
        self._stream = stream
        for append in unsent:
            if not append.future.done():
                stream.push(append)

    def on_reply(self, reply: AppendReply) -> None:
        """Settles the appends that a reply acknowledges or rejects."""
        by_id = self._by_id
        for first_id, count, first_offset in reply.acknowledged:
            at, end = first_id, first_id + count
            while at < end:
                append = by_id.get(at)
                if append is None:  # acknowledged twice
                    at += 1
                    continue
                self._settle(append, offset=first_offset + at - first_id)
                at += append.count
        for refused in reply.refused:
            self._refuse(refused.first_id, refused.record_count, refused.failure)
        if reply.acknowledged or reply.refused:
            self._move_settled()

    def _refuse(self, first_id: int, count: int, failure: WalFailure) -> None:
        for at in range(first_id, first_id + count):
            append = self._by_id.get(at)
            if append is not None:
                self._settle(append, error=_refusal(append, failure))

    def _settle(self, append: Append, *, offset: int = -1, error: WalError | None = None) -> None:
        del self._by_id[append.first_id]
        self.in_flight_bytes -= append.size_bytes
        if append.future.done():  # the caller no longer waits
            return
        if error is None:
            append.future.set_result(offset)
        else:
            append.future.set_exception(error)
            append.future.exception()  # marks it as retrieved, in case nobody looks at it

    def _move_settled(self) -> None:
        appends, by_id = self._appends, self._by_id
        while appends and appends[0].first_id not in by_id:
            append = appends.popleft()
            self._settled_id = append.first_id + append.count - 1
            future = append.future
            if not future.cancelled() and future.exception() is None:
                self._from_offset = max(self._from_offset, future.result() + append.count)
        if self.in_flight_bytes < self._limits.in_flight_bytes_max:
            self._room.set()
        self._waiting_since = self._loop.time()
        if not appends:
            self._idle.set()

    # -- failures -----------------------------------------------------------------------------------------------

    def _give_up(self, error: WalError) -> None:
        """Fails everything that waits, after nobody replied for too long. The program may try again."""
        unknown = UnknownOutcomeError(f"{error}; the appends that were sent may or may not be in the log")
        for append in list(self._appends):
            if append.first_id in self._by_id:
                self._settle(append, error=unknown if append.is_sent else error)
        self._move_settled()

    def _fail_all(self, error: WalError, *, is_outcome_known: bool = False) -> None:
        """Fails everything that waits and makes the handle unusable for writing."""
        self.failed = self.failed or error
        unknown = UnknownOutcomeError(f"{error}; the appends that were sent may or may not be in the log")
        for append in list(self._appends):
            if append.first_id in self._by_id:
                self._settle(append, error=unknown if append.is_sent and not is_outcome_known else error)
        self._move_settled()
        self._room.set()


def _refusal(append: Append, failure: WalFailure) -> WalError:
    if failure.code is Code.TRIMMED or (failure.code is Code.UNEXPECTED_END and append.expected_end is None):
        return UnknownOutcomeError(
            f"the acknowledgement was lost with the connection, so the outcome is unknown: {failure.message}"
        )
    return error_of(failure)
