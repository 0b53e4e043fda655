"""Replay with several processes: each reduces ranges of the log, and this process applies the results in order.

There is one state with one position, as in a replay by a single process. If a worker dies, the state stays at the last
applied piece; nothing is applied twice or skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from ottla.recovery.appliers import Applier, ByKeyApplier
from ottla.recovery.errors import RecoveryError, WorkerFailedError
from ottla.recovery.logs import ReadableLog, columns_of
from ottla.recovery.points import Point
from ottla.recovery.progress import Meter
from ottla.recovery.range_worker import FRAME, Range, RangeEnd, RangeFailure, RangeProgress
from ottla.recovery.reducer import ReducedPart
from ottla.recovery.replayer import Replayer

RANGE_ENTRIES_MIN = 250_000
RANGE_ENTRIES_MAX = 1_000_000
"""In a longer range, more keys are changed repeatedly, so fewer changes have to be applied."""
RANGES_PER_WORKER = 4
RANGES_AHEAD = 2
"""Ranges requested from a worker at once, so that it has work while its first range is applied."""
PIECES_AHEAD = 2
"""Pieces buffered per worker that is faster than the applier. The worker then waits."""
_BUFFER_BYTES = 1 << 20
_PROGRAM = "from ottla.recovery.range_worker import main; main()"


def worth_it(begin: int, end: int, workers: int, applier: Applier) -> bool:
    """Returns whether to start processes at all: starting them takes longer than replaying a short log."""
    return workers > 1 and end - begin >= 2 * RANGE_ENTRIES_MIN and is_by_key(applier)


def is_by_key(applier: Applier) -> bool:
    """Returns whether only the last change of each key matters to this applier."""
    return isinstance(applier, ByKeyApplier) and applier.by_key()


async def replay_by_workers(
    log: ReadableLog, replayer: Replayer, applier: Applier, end: int, until: Point, workers: int, meter: Meter
) -> None:
    """Replays up to `end` or the point, or until the applier is no longer by key; a plain replay then does the rest."""
    begin = replayer.position.next_offset
    if replayer.read_offset < begin:  # transactions that are open in the initial state
        async for columns in columns_of(log, replayer.read_offset, begin):
            replayer.feed(columns)
    ranges = deque(Range(first, last, until) for first, last in ranges_of(begin, end, workers))
    async with _WorkerPool(log, min(workers, len(ranges)), meter, begin) as team:
        async for piece in team.pieces(ranges):
            replayer.feed_piece(piece)
            if replayer.reached:
                return
            if piece.entries and not is_by_key(applier):  # a statement may have changed the schema
                replayer.rewind()
                return


def ranges_of(begin: int, end: int, workers: int) -> Iterator[tuple[int, int]]:
    """Splits the offsets from `begin` to `end` into ranges (first, until)."""
    size = -(-(end - begin) // (workers * RANGES_PER_WORKER))
    size = min(max(size, RANGE_ENTRIES_MIN, 1), RANGE_ENTRIES_MAX)
    for first in range(begin, end, size):
        yield first, min(first + size, end)


class _WorkerPool:
    """The worker processes. All of them are started together and killed together, on success and on failure."""

    def __init__(self, log: ReadableLog, count: int, meter: Meter, begin: int) -> None:
        self._count, self._meter, self._begin = count, meter, begin
        try:
            self._log = pickle.dumps(log)
        except Exception as error:
            name = type(log).__name__
            raise RecoveryError(
                f"{name} cannot be read by another process ({error}): recover with workers=1"
            ) from error
        self._team: list[_WorkerProcess] = []

    async def __aenter__(self) -> _WorkerPool:
        try:
            for _ in range(self._count):
                self._team.append(await _WorkerProcess.start(self._log, self._note))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._team:
            worker.kill()
        for worker in self._team:
            await worker.ended()

    def _note(self) -> None:
        offsets, entries = (sum(each) for each in zip(*(worker.read for worker in self._team), strict=True))
        self._meter.note(self._begin + offsets, entries)

    async def pieces(self, ranges: deque[Range]) -> AsyncIterator[ReducedPart]:
        """Yields the pieces of all ranges in log order."""
        asked: deque[_WorkerProcess] = deque()
        for worker in self._team * RANGES_AHEAD:
            if ranges:
                worker.ask(ranges.popleft())
                asked.append(worker)
        while asked:
            worker = asked.popleft()
            async for piece in worker.pieces():
                yield piece
            if ranges:
                worker.ask(ranges.popleft())
                asked.append(worker)


class _WorkerProcess:
    def __init__(self, process: asyncio.subprocess.Process, note: Callable[[], None]) -> None:
        self._process = process
        self._note = note
        self._queue: asyncio.Queue[ReducedPart | RangeEnd | RangeFailure | None] = asyncio.Queue(PIECES_AHEAD)
        self._pump = asyncio.create_task(self._listen())
        self._asked: deque[Range] = deque()
        self._before = self._now = RangeProgress(0, 0)

    @classmethod
    async def start(cls, log: bytes, note: Callable[[], None]) -> _WorkerProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_BUFFER_BYTES,
        )
        worker = cls(process, note)
        worker._send(pickle.dumps(sys.path))
        worker._send(log)
        return worker

    @property
    def read(self) -> RangeProgress:
        """The total read in all ranges."""
        offsets = self._before.offset_count + self._now.offset_count
        return RangeProgress(offsets, self._before.entry_count + self._now.entry_count)

    def ask(self, asked: Range) -> None:
        self._asked.append(asked)
        self._send(pickle.dumps(asked))

    def _send(self, body: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(FRAME.pack(len(body)) + body)

    async def pieces(self) -> AsyncIterator[ReducedPart]:
        """Yields the pieces of the oldest requested range. Raises WorkerFailedError."""
        asked = self._asked.popleft()
        next_offset = asked.first
        while True:
            message = await self._queue.get()
            if isinstance(message, RangeEnd):
                return
            if isinstance(message, RangeFailure):
                raise WorkerFailedError(max(next_offset, message.next_offset), asked.until, message.why)
            if message is None:
                raise WorkerFailedError(next_offset, asked.until, await self._epitaph())
            next_offset = message.entries[-1][0] + 1 if message.entries else message.next_offset
            yield message

    async def _epitaph(self) -> str:
        code = await self._process.wait()
        return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with {code}"

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                (length,) = FRAME.unpack(await self._process.stdout.readexactly(FRAME.size))
                message = pickle.loads(await self._process.stdout.readexactly(length))
            except (asyncio.IncompleteReadError, ConnectionError):
                await self._queue.put(None)
                return
            except Exception as error:
                await self._queue.put(
                    RangeFailure(-1, f"its result cannot be decoded: {type(error).__name__}: {error}")
                )
                return
            if isinstance(message, RangeProgress):
                self._now = message
                self._note()
                continue
            if isinstance(message, RangeEnd):
                self._now = message.read
                self._before, self._now = self.read, RangeProgress(0, 0)
            await self._queue.put(message)

    def kill(self) -> None:
        self._pump.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> None:
        await asyncio.wait({self._pump})
        assert self._process.stdout is not None
        with contextlib.suppress(ConnectionError):
            # Drain it: the end of an unread pipe is never noticed
            while await self._process.stdout.read(_BUFFER_BYTES):
                pass
        await self._process.wait()
