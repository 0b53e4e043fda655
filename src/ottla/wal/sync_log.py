"""`SyncLog`: the same handle for threads. An event loop in a separate thread does the work."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.wal.errors import LogClosedError, TooMuchInFlightError
from ottla.wal.log import AcksName, Log, as_bytes, as_rows
from ottla.wal.values import Entry, Limits, LogSettings, Tail

T = TypeVar("T")
_WAITING_MAX = 10_000
"""Maximum number of appends that the loop's thread has not picked up yet."""


class SyncLog:
    """A handle to one log, for threads. Create it with `open`.

        with SyncLog.open("127.0.0.1:9192", "orders-wal", create=LogSettings(replicas=3), fence=True) as log:
            offset = log.append(b"debit 1 100").result()
            for entry in log.read(offset):
                print(entry.offset, entry.data)

    Any thread may call its methods. The appends of one thread are in the log in the order of its calls.
    """

    def __init__(self, loop: _LoopThread, log: Log) -> None:
        self._loop = loop
        self._log = log
        self._queue: deque[tuple[tuple[bytes, ...], int | None, Future[int]]] = deque()
        self._slots = threading.BoundedSemaphore(_WAITING_MAX)
        self._guard = threading.Lock()
        self._is_draining = False
        self._is_closed = False

    @classmethod
    def open(
        cls,
        servers: str,
        topic: str,
        *,
        partition: int = 0,
        create: LogSettings | None = None,
        fence: bool = False,
        acks: AcksName = "all",
        limits: Limits | None = None,
    ) -> SyncLog:
        """Opens a log; see `Log.open`."""
        loop = _LoopThread()
        try:
            opening = Log.open(
                servers, topic, partition=partition, create=create, fence=fence, acks=acks, limits=limits
            )
            return cls(loop, loop.call(opening))
        except BaseException:
            loop.end()
            raise

    @property
    def epoch(self) -> int | None:
        """The writer epoch of this handle, if it has fenced the log."""
        return self._log.epoch

    @property
    def fence_offset(self) -> int | None:
        """Offset of this handle's fence. All records of earlier writers are below it."""
        return self._log.fence_offset

    @property
    def durability(self) -> str:
        """The durability class of the log: `disk`, `cache` or `memory`."""
        return self._log.durability

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, data: bytes, *, expected_end: int | None = None) -> Future[int]:
        """Appends one record. The future resolves to its offset once it is acknowledged. Blocks while too many bytes
        are unacknowledged. A future that is cancelled before its record is sent takes it out of the queue."""
        return self._enqueue((as_bytes(data),), expected_end)

    def append_many(self, data: Iterable[bytes], *, expected_end: int | None = None) -> range:
        """Appends all records atomically and contiguously. Returns the range of their offsets."""
        rows = as_rows(data)
        first = self._enqueue(rows, expected_end).result()
        return range(first, first + len(rows))

    def _enqueue(self, rows: tuple[bytes, ...], expected_end: int | None) -> Future[int]:
        """Queues an append for the loop's thread. One queue for all keeps the order of each thread's calls."""
        future: Future[int] = Future()
        self._slots.acquire()
        with self._guard:
            if self._is_closed:
                self._slots.release()
                raise LogClosedError("the log was closed")
            self._queue.append((rows, expected_end, future))
            is_first, self._is_draining = not self._is_draining, True
            if is_first:
                self._loop.start(self._drain())
        return future

    async def _drain(self) -> None:
        """Passes the threads' appends to the log, many in one turn of the loop."""
        while True:
            with self._guard:
                if not self._queue:
                    self._is_draining = False
                    return
                rows, expected_end, future = self._queue.popleft()
            self._slots.release()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                appended = await self._append_when_ready(rows, expected_end)
            except Exception as error:  # whatever it is, the caller waits for it
                future.set_exception(error)
            else:
                appended.add_done_callback(lambda done, future=future: _pass_on(done, future))  # type: ignore[misc] # a default binds it

    async def _append_when_ready(self, rows: tuple[bytes, ...], expected_end: int | None) -> asyncio.Future[int]:
        while True:
            try:
                return self._log.append_rows(rows, expected_end)
            except TooMuchInFlightError:
                await self._log.ready()

    def flush(self) -> None:
        """Waits until no append is unacknowledged. Appends may have succeeded or failed; their futures tell."""

        async def flush() -> None:
            while self._queue or self._is_draining:  # noqa: ASYNC110 - the threads that fill it have no event
                await asyncio.sleep(0)
            await self._log.flush()

        self._loop.call(flush())

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, first: int, until: int | None = None) -> Iterator[Entry]:
        """Yields entries from `first` up to, but not including, `until`; None means the committed end as of now."""
        for chunk in self.read_chunks(first, until):
            yield from chunk

    def read_chunks(self, first: int, until: int | None = None) -> Iterator[list[Entry]]:
        """Yields the same entries in lists, for fast replay."""
        return self._iterate(self._log.read_chunks(first, until))

    def follow(self, first: int) -> Iterator[Entry]:
        """Yields entries from `first` on and waits for new ones. Never ends by itself."""
        for chunk in self.follow_chunks(first):
            yield from chunk

    def follow_chunks(self, first: int) -> Iterator[list[Entry]]:
        """Yields the same entries as `follow`, in lists."""
        return self._iterate(self._log.follow_chunks(first))

    def _iterate(self, chunks: AsyncIterator[list[Entry]]) -> Iterator[list[Entry]]:
        async def following() -> list[Entry] | None:
            return await anext(chunks, None)

        async def end() -> None:
            await chunks.aclose()  # type: ignore[attr-defined] # an async generator

        try:
            while (chunk := self._loop.call(following())) is not None:
                yield chunk
        finally:
            self._loop.call(end())

    def tail(self) -> Tail:
        """Returns the start and the committed end of the log, and its writer epoch."""
        return self._loop.call(self._log.tail())

    def trim(self, before: int) -> int:
        """Removes records below `before`. Returns the new start of the log."""
        return self._loop.call(self._log.trim(before))

    # -- closing ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the handle. Unacknowledged records may or may not be in the log; call `flush` first to find out."""
        with self._guard:
            was_closed, self._is_closed = self._is_closed, True
            queued = list(self._queue)
            self._queue.clear()
        if was_closed:
            return
        for _, _, future in queued:
            self._slots.release()
            if future.set_running_or_notify_cancel():
                future.set_exception(LogClosedError("the log was closed"))
        self._loop.call(self._end())
        self._loop.end()

    async def _end(self) -> None:
        """Closes the log and lets an append that waits for room fail."""
        await self._log.close()
        while self._is_draining:  # noqa: ASYNC110 - it ends in this turn of the loop or the next
            await asyncio.sleep(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()
        self.close()


def _pass_on(done: asyncio.Future[int], future: Future[int]) -> None:
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


class _LoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ottla-wal", daemon=True)
        self._thread.start()
        self.is_running = True

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if not self.is_running:
            coroutine.close()
            raise LogClosedError("the log was closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.start(coroutine).result()

    def end(self) -> None:
        self.is_running = False
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
