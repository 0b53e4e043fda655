"""`Log`: a handle of one log, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from ottla.wal.errors import FencedError
from ottla.wal.leaders import Leaders
from ottla.wal.reader import read_chunks
from ottla.wal.values import Entry, LogSettings, Tail
from ottla.wal.writer import Writer
from ottla.wire.wal_append import Acks
from ottla.wire.wal_calls import LogName, LogRequest, Numbers, OpenRequest, decode_numbers, encode_log_request

DEFAULT_PATIENCE_S = 60.0
IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
_ACKS = {"all": Acks.ALL, "leader": Acks.LEADER, "none": Acks.NONE}

AcksName = Literal["all", "leader", "none"]


@dataclass(frozen=True, slots=True)
class Limits:
    patience_s: float = DEFAULT_PATIENCE_S
    """How long to look for a leader that answers."""
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    """Of appends that are not acknowledged, before more are not taken."""


def _bytes(data: bytes) -> bytes:
    """Anything with a buffer, which may change afterwards; TypeError for anything else, a str too."""
    return data if type(data) is bytes else memoryview(data).tobytes()


class Log:
    """Made by `open`. A context manager: at its end all is flushed, then closed."""

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
        """Of its fence: all that earlier writers wrote lies below."""

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
        """`servers` is `host:port[,...]` of append streams. With `fence` this handle becomes the single writer."""
        if acks not in _ACKS:
            raise ValueError(f"acks is 'all', 'leader' or 'none', not {acks!r}")
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
        """In another process it is a handle to read with: it has neither this one's connection nor its epoch."""
        return _reading_handle, (self._leaders.servers, self._log, self.durability, self._limits)

    async def _fence(self) -> None:
        """Takes the log from whoever has it. Says whom it replaces, so that a request that was late replaces nobody."""
        while True:
            current = (await self.tail()).epoch
            try:
                reply = await self._call("Fence", LogRequest(self._log, current), 2)
            except FencedError:
                continue  # another one was faster, or our own before a cut
            self.epoch, self.fence_offset = reply
            return

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, data: bytes, *, expected_end: int | None = None) -> asyncio.Future[int]:
        """The offset, when it is acknowledged. The order of calls is the order in the log.

        With `expected_end`, only if the log ends there: UnexpectedEndError otherwise. Raises TooMuchInFlightError if
        too much waits already: `ready` waits for room.
        """
        return self._writing().append((_bytes(data),), expected_end)

    async def append_many(self, data: Iterable[bytes], *, expected_end: int | None = None) -> range:
        """All of them or none, side by side."""
        rows = tuple(map(_bytes, data))
        if not rows:
            raise ValueError("there is nothing to append")
        first = await self._writing().append(rows, expected_end)
        return range(first, first + len(rows))

    async def ready(self) -> None:
        """Until there is room for another append."""
        await self._writing().ready()

    async def flush(self) -> None:
        """Until nothing waits for its acknowledgement any more, well or not: the futures say which."""
        if self._writer is not None:
            await self._writer.flush()

    @property
    def in_flight_bytes(self) -> int:
        return self._writer.in_flight_bytes if self._writer is not None else 0

    def _writing(self) -> Writer:
        if self._writer is None:
            self._writer = Writer(self._leaders, self._log, self.epoch or 0, self._acks, self._limits)
        return self._writer

    # -- reading ------------------------------------------------------------------------------------------------

    async def read(self, first: int, until: int | None = None) -> AsyncIterator[Entry]:
        """`until` is exclusive; None: the committed end as of now."""
        async for chunk in self.read_chunks(first, until):
            for entry in chunk:
                yield entry

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[list[Entry]]:
        """The same in lists, for a replay that has to be fast."""
        end = (await self.tail()).end_offset if until is None else until
        async for chunk in read_chunks(self._leaders, self._log, first, end, self._limits.patience_s):
            yield chunk

    async def follow(self, first: int) -> AsyncIterator[Entry]:
        """Never ends by itself."""
        async for chunk in self.follow_chunks(first):
            for entry in chunk:
                yield entry

    async def follow_chunks(self, first: int) -> AsyncIterator[list[Entry]]:
        async for chunk in read_chunks(self._leaders, self._log, first, None, self._limits.patience_s):
            yield chunk

    async def tail(self) -> Tail:
        return Tail(*await self._call("Tail", LogRequest(self._log), 3))

    async def trim(self, before: int) -> int:
        """Records below are given up. Returns where the log begins now."""
        return (await self._call("Trim", LogRequest(self._log, before), 1))[0]

    async def _call(self, method: str, request: LogRequest, count: int) -> list[int]:
        def decode(message: bytes) -> Numbers:
            return decode_numbers(message, count)

        reply = await self._leaders.call(
            method, bytes(encode_log_request(request)), decode, lambda found: found.failure
        )
        return list(reply.numbers)

    # -- the end ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """What was not acknowledged may be in the log or not: `flush` first to know."""
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
