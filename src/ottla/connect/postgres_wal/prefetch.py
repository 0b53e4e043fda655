"""Reads WAL segments from the log before a recovering server requests them.

The first request begins a run at the requested segment. All following segments are read from the same stream. Only
complete segments of a single timeline are prepared: all their bytes are in the log, so they can never change. The last
segment of the log, and a segment in which timelines meet, are assembled on request. A complete segment is renamed into
the directory `ready`, from which restore_command may take it without asking.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from io import FileIO
from pathlib import Path

from ottla.connect.log_ports import ReadableLog
from ottla.connect.postgres_wal.failures import PostgresError
from ottla.connect.postgres_wal.pieces import wal_pieces
from ottla.connect.postgres_wal.positions import Lsn, Segment
from ottla.connect.postgres_wal.segments import history_in_log

SPOOL_BYTES = 256 << 20
AHEAD_MIN = 2
LOOK_EVERY_S = 0.02
"""How often a full spool is checked for space."""
_LAST_LSN = Lsn(2**64 - 1)

OpenLog = Callable[[], AbstractAsyncContextManager[ReadableLog]]


class Prefetch:
    """A run of segments, written in `spool` and moved to `ready`. Its methods must not be called concurrently."""

    def __init__(
        self,
        open_log: OpenLog,
        spool: Path,
        ready: Path,
        *,
        segment_bytes: int,
        up_to_gap: bool,
        spool_bytes: int = SPOOL_BYTES,
    ) -> None:
        self._open_log = open_log
        self._spool = spool
        self._ready_directory = ready
        self._up_to_gap = up_to_gap
        self._ahead_max = max(AHEAD_MIN, spool_bytes // segment_bytes)
        self._ready: dict[Segment, Path] = {}
        self._next: Segment | None = None
        self._running: asyncio.Task[None] | None = None
        self._failure: PostgresError | OSError | None = None
        self._log_ended_in: Segment | None = None
        self._published = asyncio.Event()
        self._taken = asyncio.Event()

    async def take(self, segment: Segment, path: Path) -> bool:
        """Moves the segment to `path` when it is complete. Returns False if the run does not prepare it.

        The first call begins a run at its segment, and raises PostgresError or OSError if that fails.
        """
        is_first = self._running is None
        if is_first:
            await self._start(segment)
        self._forget_before(segment)
        while segment not in self._ready:
            if segment != self._next or self._running is None:
                return False
            if self._running.done():
                if is_first and self._failure is not None:
                    raise self._failure
                return False
            self._published.clear()
            published = asyncio.ensure_future(self._published.wait())
            await asyncio.wait([published, self._running], return_when=asyncio.FIRST_COMPLETED)
            published.cancel()
        move(self._ready.pop(segment), path)
        self._taken.set()
        return True

    async def go_on_after(self, segment: Segment) -> None:
        """Begins a run at the next segment. Does nothing if the log ended in this one: nothing is left to read."""
        if segment != self._log_ended_in:
            await self._start(segment.next)

    def _forget_before(self, segment: Segment) -> None:
        """Removes the files of earlier segments, and forgets those that restore_command has taken itself."""
        for older in [each for each in self._ready if each.first_lsn < segment.first_lsn]:
            self._ready.pop(older).unlink(missing_ok=True)
        self._forget_taken()
        self._taken.set()

    def _forget_taken(self) -> None:
        self._ready = {each: path for each, path in self._ready.items() if path.exists()}

    async def _start(self, first: Segment) -> None:
        await self.stop()
        self._next, self._failure, self._log_ended_in = first, None, None
        self._running = asyncio.create_task(self._run(first))

    async def stop(self) -> None:
        """Ends the run and removes its files."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        for path in self._ready.values():
            path.unlink(missing_ok=True)
        self._ready.clear()
        self._next = self._running = None

    async def _run(self, first: Segment) -> None:
        """Prepares segments up to the current end of the log, or until a failure.

        The request that began the run reports the failure. A later request reads the log again and reports what fails
        then.
        """
        try:
            await self._prepare(first)
        except (PostgresError, OSError) as failure:
            self._failure = failure
            print(f"prefetching ended before {self._next and self._next.name}: {failure}", file=sys.stderr, flush=True)

    async def _prepare(self, segment: Segment) -> None:
        async with self._open_log() as log, contextlib.AsyncExitStack() as stack:
            history = await history_in_log(log, segment.timeline)
            if history is None or segment.first_lsn < history.begin:
                return
            found = wal_pieces(log, segment.timeline, segment.first_lsn, _LAST_LSN, up_to_gap=self._up_to_gap)
            file = await self._open(segment)
            stack.callback(lambda: self._discard(file))
            async for piece in await stack.enter_async_context(aclosing(found)):
                data = piece.data
                while (left := segment.end_lsn - (piece.end - len(data))) <= len(data):
                    write_all(file, data[:left])
                    data = data[left:]
                    self._publish(segment, file)
                    segment = segment.next
                    file = await self._open(segment)
                write_all(file, data)
            self._log_ended_in = segment

    async def _open(self, segment: Segment) -> FileIO:
        """Creates the segment's file when the spool has space for it."""
        self._next = segment
        while len(self._ready) >= self._ahead_max:
            self._taken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._taken.wait()
            self._forget_taken()
        return _create(self._part(segment))

    def _publish(self, segment: Segment, file: FileIO) -> None:
        file.close()
        path = self._ready_directory / segment.name
        os.rename(self._part(segment), path)
        self._ready[segment] = path
        self._published.set()

    def _discard(self, file: FileIO) -> None:
        with contextlib.suppress(OSError):
            file.close()
        if self._next is not None:
            self._part(self._next).unlink(missing_ok=True)

    def _part(self, segment: Segment) -> Path:
        return self._spool / f"{segment.name}.part"


def _create(path: Path) -> FileIO:
    """Creates a file without a buffer: pieces of WAL are large, and a buffer would copy each of them once more."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0)


def write_all(file: FileIO, data: memoryview) -> None:
    """Writes all of the data. A single write may be partial if the disk is about to fill up."""
    while data:
        data = data[file.write(data) :]


def move(file: Path, path: Path) -> None:
    """Moves a file: by a rename within the server's own directory, or by a copy to another file system."""
    try:
        os.rename(file, path)
    except OSError as failure:
        if failure.errno != errno.EXDEV:
            raise
        shutil.copyfile(file, path)
        file.unlink()
