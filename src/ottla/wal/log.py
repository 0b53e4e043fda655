"""`Log`: a handle to one log, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Literal, Self

from ottla.protocol.wire.wal_append import Acks
from ottla.protocol.wire.wal_calls import LogName, LogRequest, Numbers, OpenRequest, decode_numbers, encode_log_request
from ottla.wal.errors import FencedError
from ottla.wal.leaders import Leaders
from ottla.wal.reader import read_chunks
from ottla.wal.values import Entry, Limits, LogSettings, Tail
from ottla.wal.writer import Writer

_ACKS = {"all": Acks.ALL, "leader": Acks.LEADER, "none": Acks.NONE}

AcksName = Literal["all", "leader", "none"]


def as_bytes(data: bytes) -> bytes:
    """Returns the data as bytes, copied if the caller could change it later. Raises TypeError for anything that is not
    a buffer, such as a str."""
    return data if type(data) is bytes else memoryview(data).tobytes()


def as_rows(data: Iterable[bytes]) -> tuple[bytes, ...]:
    """Returns the records of one append as bytes. Raises TypeError like `as_bytes`, and ValueError without records."""
    rows = tuple(map(as_bytes, data))
    if not rows:
        raise ValueError("there is nothing to append")
    return rows


class Log:
    """A handle to one log. Create it with `open`.

        log = await Log.open("127.0.0.1:9192", "orders-wal", create=LogSettings(replicas=3), fence=True)
        async with log:
            offset = await log.append(b"debit 1 100")
            async for entry in log.read(offset):
                print(entry.offset, entry.data)

    As a context manager it flushes and then closes the handle.
    """

    def __init__(self, leaders: Leaders, log: LogName, durability: str, acks: Acks, limits: Limits) -> None:
        self._leaders = leaders
        self._log = log
        self._acks = acks
        self._limits = limits
        self._writer: Writer | None = None
        self.durability = durability
        self.epoch: int | None = None
        """The writer epoch of this handle, if it has fenced the log."""
        self.fence_offset: int | None = None
        """Offset of this handle's fence. All records of earlier writers are below it."""

    @classmethod
    async def open(
        cls,
        servers: str,
        topic: str,
        *,
        partition: int = 0,
        create: LogSettings | None = None,
        fence: bool = False,
        acks: AcksName = "all",
        limits: Limits | None = None,
    ) -> Log:
        """Opens a log. `servers` is `host:port[,...]` of append streams. With `create`, a missing log is created; with
        `fence`, this handle becomes the single writer."""
        if acks not in _ACKS:
            raise ValueError(f"acks must be 'all', 'leader' or 'none', not {acks!r}")
        limits = limits or Limits()
        name = LogName(topic, partition)
        leaders = Leaders(servers, name, limits.patience_s)
        try:
            opened = await leaders.open_patiently(OpenRequest(name, create.to_wire() if create is not None else None))
            log = cls(leaders, name, opened.durability, _ACKS[acks], limits)
            if fence:
                await log._fence()
        except BaseException:
            leaders.close()
            raise
        return log

    def __reduce__(self) -> tuple[Callable[..., Log], tuple[object, ...]]:
        """Pickles a handle that can read in another process. It has neither this one's connection nor its epoch."""
        return _reading_handle, (self._leaders.servers, self._log, self.durability, self._limits)

    async def _fence(self) -> None:
        """Fences the current writer. The request names the epoch that it replaces, so that a delayed request replaces
        nobody."""
        while True:
            current = (await self.tail()).epoch
            try:
                reply = await self._call("Fence", LogRequest(self._log, current), 2)
            except FencedError:
                continue  # another writer was faster, or our own earlier request
            self.epoch, self.fence_offset = reply
            return

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, data: bytes, *, expected_end: int | None = None) -> asyncio.Future[int]:
        """Appends one record. The future resolves to its offset once it is acknowledged. Records are in the log in the
        order of the calls.

        With `expected_end`, the record is appended only if the log ends there; otherwise the future fails with
        UnexpectedEndError. Raises TooMuchInFlightError if too many bytes are unacknowledged: `ready` waits for room.
        """
        return self.append_rows((as_bytes(data),), expected_end)

    async def append_many(self, data: Iterable[bytes], *, expected_end: int | None = None) -> range:
        """Appends all records atomically and contiguously. Returns the range of their offsets."""
        rows = as_rows(data)
        first = await self.append_rows(rows, expected_end)
        return range(first, first + len(rows))

    def append_rows(self, rows: Sequence[bytes], expected_end: int | None = None) -> asyncio.Future[int]:
        """Appends all records like `append_many`, without waiting. The future resolves to the offset of the first."""
        return self._writing().append(rows, expected_end)

    async def ready(self) -> None:
        """Waits until there is room for another append."""
        await self._writing().ready()

    async def flush(self) -> None:
        """Waits until no append is unacknowledged. Appends may have succeeded or failed; their futures tell."""
        if self._writer is not None:
            await self._writer.flush()

    @property
    def in_flight_bytes(self) -> int:
        """Number of unacknowledged bytes."""
        return self._writer.in_flight_bytes if self._writer is not None else 0

    def _writing(self) -> Writer:
        if self._writer is None:
            self._writer = Writer(self._leaders, self._log, self.epoch or 0, self._acks, self._limits)
        return self._writer

    # -- reading ------------------------------------------------------------------------------------------------

    async def read(self, first: int, until: int | None = None) -> AsyncIterator[Entry]:
        """Yields entries from `first` up to, but not including, `until`; None means the committed end as of now."""
        async for chunk in self.read_chunks(first, until):
            for entry in chunk:
                yield entry

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[list[Entry]]:
        """Yields the same entries in lists, for fast replay."""
        end = (await self.tail()).end_offset if until is None else until
        async for chunk in read_chunks(self._leaders, self._log, first, end, self._limits.patience_s):
            yield chunk

    async def follow(self, first: int) -> AsyncIterator[Entry]:
        """Yields entries from `first` on and waits for new ones. Never ends by itself."""
        async for chunk in self.follow_chunks(first):
            for entry in chunk:
                yield entry

    async def follow_chunks(self, first: int) -> AsyncIterator[list[Entry]]:
        """Yields the same entries as `follow`, in lists."""
        async for chunk in read_chunks(self._leaders, self._log, first, None, self._limits.patience_s):
            yield chunk

    async def tail(self) -> Tail:
        """Returns the start and the committed end of the log, and its writer epoch."""
        return Tail(*await self._call("Tail", LogRequest(self._log), 3))

    async def trim(self, before: int) -> int:
        """Removes records below `before`. Returns the new start of the log."""
        return (await self._call("Trim", LogRequest(self._log, before), 1))[0]

    async def _call(self, method: str, request: LogRequest, count: int) -> list[int]:
        def decode(message: bytes) -> Numbers:
            return decode_numbers(message, count)

        reply = await self._leaders.call(
            method, bytes(encode_log_request(request)), decode, lambda found: found.failure
        )
        return list(reply.numbers)

    # -- closing ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes the handle. Unacknowledged records may or may not be in the log; call `flush` first to find out."""
        if self._writer is not None:
            await self._writer.close()
        self._leaders.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.flush()
        await self.close()


def _reading_handle(servers: str, name: LogName, durability: str, limits: Limits) -> Log:
    return Log(Leaders(servers, name, limits.patience_s), name, durability, Acks.ALL, limits)
