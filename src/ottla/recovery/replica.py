"""State-machine replication over a log: one leader writes, followers replay, and any of them can take over.

    follower = Follower(log, RowTables(), snapshots)            # `log` is opened for reading
    await follower.start()                                      # loads a snapshot, replays the log, then follows it
    ...
    leader = await follower.take_over(writer)                   # `writer`: the same log, opened with fence=True
    await leader.write(put(b"k", b"v"))                         # returns once it is committed and applied

Opening the log with a fence ends every other writer: none of its appends is accepted any more, not even those in
flight. The new leader then writes a TAKEOVER entry. Every acknowledged entry precedes it in the log, so the new
leader's state is complete once it has replayed up to that entry. Transactions that are open there are never committed.

The leader applies a write when it is acknowledged, in log order, with the same code as a follower.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Future
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ottla.recovery.appliers import Applier, Position
from ottla.recovery.entries import Change, Kind, abort, digest, encode, takeover, transaction_entries
from ottla.recovery.errors import NotLeadingError, RecoveryError
from ottla.recovery.log_trim import trim_log
from ottla.recovery.logs import Columns, ReadableLog, WritableLog, columns_of, news_of
from ottla.recovery.progress import OnProgress
from ottla.recovery.recover import Recovered, recover
from ottla.recovery.replayer import Replayer
from ottla.recovery.snapshots import Snapshot, SnapshotStore


class Follower:
    """A continuously updated copy of the state. It belongs to one event loop; read `applier`, but do not write to it.

    Example:

        follower = Follower(log, RowTables(), SnapshotStore("snapshots"))
        await follower.start()
        await follower.wait_for(offset)
        follower.applier.rows[b"k"]
        await follower.stop()
    """

    def __init__(self, log: ReadableLog, applier: Applier, snapshots: SnapshotStore | None = None) -> None:
        self.applier = applier
        self._log = log
        self._snapshots = snapshots
        self._replayer: Replayer | None = None
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self.heard_s = 0.0
        """The time of the last entry from the log, on the monotonic clock."""

    @property
    def position(self) -> Position:
        """The position of the state."""
        return Position() if self._replayer is None else self._replayer.position

    async def start(self, on_progress: OnProgress | None = None, *, workers: int = 1) -> Recovered:
        """Recovers the state, then follows the log in the background."""
        recovered = await recover(
            self._log, self.applier, snapshots=self._snapshots, on_progress=on_progress, workers=workers
        )
        self._replayer = recovered.replayer
        self.heard_s = time.monotonic()
        self._task = asyncio.create_task(self._follow(recovered.replayer))
        return recovered

    async def _follow(self, replayer: Replayer) -> None:
        async for columns in news_of(self._log, replayer.read_offset):
            replayer.feed(columns)
            self.heard_s = time.monotonic()
            self._moved.set()

    async def wait_for(self, offset: int) -> None:
        """Waits until the record at this offset is applied, so that the caller reads writes made elsewhere."""
        if self._task is None:
            raise RecoveryError("the follower was not started: call start() first")
        while self.position.next_offset <= offset:
            self._moved.clear()
            moved = asyncio.create_task(self._moved.wait())
            try:
                await asyncio.wait({moved, self._task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                moved.cancel()
            if self._task.done():
                if self.failure is not None:
                    raise self.failure
                raise RecoveryError("the follower has stopped")

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the follower, for instance because the log was trimmed past it."""
        ended = self._task is not None and self._task.done() and not self._task.cancelled()
        return self._task.exception() if ended and self._task is not None else None

    async def stop(self) -> None:
        """Stops following and keeps the state. Never raises; `failure` has any earlier error."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def take_over(self, writer: WritableLog) -> Leader:
        """Stops following and continues this state as the leader. `writer` must be opened with a fence."""
        await self.stop()
        if self._replayer is None or self.failure is not None:
            return await lead(writer, self.applier, self._snapshots)
        return await _lead(writer, self.applier, self._replayer, self._snapshots)


async def lead(
    writer: WritableLog,
    applier: Applier,
    snapshots: SnapshotStore | None = None,
    on_progress: OnProgress | None = None,
    *,
    workers: int = 1,
) -> Leader:
    """Recovers the state and leads: for a program that starts, alone or after another leader."""
    recovered = await recover(writer, applier, snapshots=snapshots, on_progress=on_progress, workers=workers)
    return await _lead(writer, applier, recovered.replayer, snapshots)


async def _lead(writer: WritableLog, applier: Applier, replayer: Replayer, snapshots: SnapshotStore | None) -> Leader:
    first = await writer.append(takeover(writer.epoch or 0))
    async for columns in columns_of(writer, replayer.read_offset, first + 1):
        replayer.feed(columns)
    if replayer.read_offset <= first:
        raise RecoveryError(f"the log was read only to offset {replayer.read_offset}, but the takeover is at {first}")
    return Leader(writer, applier, replayer, snapshots)


class Leader:
    """The only writer of the state. It stops after any failed append; the next leader finds out what is in the log.

    Example:

        leader = await lead(writer, RowTables(), SnapshotStore("snapshots"))
        await leader.write(put(b"k", b"v"))
        await leader.write_transaction([(Kind.PUT, "accounts", b"a", b"90"), (Kind.PUT, "accounts", b"b", b"110")])
        await leader.snapshot()
        await leader.trim()
    """

    def __init__(
        self, log: WritableLog, applier: Applier, replayer: Replayer, snapshots: SnapshotStore | None = None
    ) -> None:
        self.applier = applier
        self._log = log
        self._replayer = replayer
        self._snapshots = snapshots
        self._transaction = replayer.position.transaction_max
        self._pending: deque[_Write] = deque()
        self._unaborted: deque[int] = deque()
        self._drain_is_due = False
        self._failure: BaseException | None = None
        self._one_snapshot = asyncio.Lock()

    @property
    def position(self) -> Position:
        """The position of the state."""
        return self._replayer.position

    @property
    def failure(self) -> BaseException | None:
        """The error that ended this leadership."""
        return self._failure

    def write_nowait(self, entry: bytes) -> Future[int]:
        """Returns a future of the offset, set once the entry is committed and applied. Call order is log order.

        Raises NotLeadingError, or the log's own error if too much is in flight; `write` waits for room instead.
        """
        if self._failure is not None:
            raise _stopped(self._failure)
        try:
            appended = self._log.append(entry)
        except Exception as failure:
            if _is_no_room(failure):
                raise
            self._failure = failure  # the log accepts nothing more, because it has learned of another writer
            raise _stopped(failure) from failure
        write = _Write(entry, appended, asyncio.get_running_loop().create_future())
        self._pending.append(write)
        write.appended.add_done_callback(self._on_appended)
        return write.applied

    async def write(self, entry: bytes) -> int:
        """Waits for room, writes the entry and returns its offset. Cancelling the caller does not undo the write."""
        await self._log.ready()
        return await asyncio.shield(self.write_nowait(entry))

    async def write_transaction(self, changes: Iterable[Change]) -> int:
        """Writes all of these changes or none, for every reader and after any crash. Returns the transaction id."""
        self._transaction += 1
        transaction = self._transaction
        writes: list[Future[int]] = []
        try:
            for entry in transaction_entries(transaction, changes):
                await self._log.ready()
                writes.append(self.write_nowait(entry))
        except BaseException:
            if writes:
                self._unaborted.append(transaction)
                self._abort()
            raise
        await asyncio.shield(asyncio.gather(*writes))
        return transaction

    def _abort(self) -> None:
        """Writes the pending ABORT entries as soon as there is room. The next leader's TAKEOVER aborts them too."""
        while self._unaborted and self._failure is None:
            try:
                self.write_nowait(abort(self._unaborted[0]))
            except Exception:
                return  # no room: retried when the writes in flight are acknowledged
            self._unaborted.popleft()

    async def write_heartbeat(self) -> int:
        """Writes an empty entry that tells followers that a leader is alive."""
        return await self.write(encode(Kind.NOTHING))

    async def write_digest(self) -> int:
        """Writes the checksum of the whole state; every later replay of the log compares it with its own."""
        while True:
            await self._log.ready()
            if not self._pending:
                break
            await asyncio.wait([write.applied for write in self._pending])
        # Nothing is awaited from here to the append, because a write in between would not be in the checksum.
        return await asyncio.shield(self.write_nowait(digest(self.applier.digest())))

    async def snapshot(self) -> Snapshot:
        """Publishes a snapshot of the current state. A thread writes it while writes continue."""
        if self._snapshots is None:
            raise RecoveryError("this leader has no snapshot store; pass one at its start")
        async with self._one_snapshot:
            frames, position = self.applier.dump(), self.position
            # The leader knows its own clock, but a restore to a time compares record timestamps. In a log of the append
            # stream, timestamps never decrease, so no earlier record has a later one.
            last = position.next_offset - 1
            if (await self._log.tail()).start_offset <= last:
                async for columns in columns_of(self._log, last, last + 1):
                    latest_ms = max(columns.timestamps_ms, default=-1)
                    position = replace(position, timestamp_ms_max=max(latest_ms, position.timestamp_ms_max))
            return await asyncio.to_thread(self._snapshots.publish, frames, position)

    async def trim(self) -> int | None:
        """Trims records that no kept snapshot needs. Returns the new start offset, or None if nothing was trimmed."""
        return None if self._snapshots is None else await trim_log(self._log, self._snapshots)

    def _on_appended(self, _: Future[int]) -> None:
        """Schedules one drain for a burst of acknowledgements."""
        if not self._drain_is_due:
            self._drain_is_due = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        self._drain_is_due = False
        done: list[_Write] = []
        while self._pending and self._pending[0].appended.done() and self._failure is None:
            write = self._pending.popleft()
            if write.appended.cancelled():
                self._failure = asyncio.CancelledError(
                    "an append was cancelled, so it is unknown whether it is in the log"
                )
            else:
                self._failure = write.appended.exception()
            if self._failure is not None:
                self._pending.appendleft(write)
                break
            done.append(write)
        self._apply(done)
        self._abort()
        if self._failure is not None:
            self._fail_pending(self._failure)

    def _apply(self, done: list[_Write]) -> None:
        if not done:
            return
        now_ms = time.time_ns() // 1_000_000
        offsets = [write.appended.result() for write in done]
        try:
            self._replayer.feed(Columns(offsets, [now_ms] * len(done), [write.entry for write in done]))
        except Exception as failure:
            # The entries are in the log but not in this state, so the leader must stop.
            self._failure = failure
            self._pending.extendleft(reversed(done))
            return
        for write, offset in zip(done, offsets, strict=True):
            if not write.applied.done():
                write.applied.set_result(offset)

    def _fail_pending(self, failure: BaseException) -> None:
        while self._pending:
            write = self._pending.popleft()
            if write.appended.done() and not write.appended.cancelled():
                write.appended.exception()  # marks it as retrieved
            if not write.applied.done():
                write.applied.set_exception(_stopped(failure))
                write.applied.exception()  # marks it as retrieved: nobody is obliged to await it


def _stopped(failure: BaseException) -> NotLeadingError:
    error = NotLeadingError(f"this leader has stopped: {failure}")
    error.__cause__ = failure
    return error


def _is_no_room(failure: Exception) -> bool:
    """Returns whether the append failed only because too much is in flight, in a log of `ottla.wal`."""
    try:
        from ottla.wal.errors import TooMuchInFlightError
    except ImportError:
        return False
    return isinstance(failure, TooMuchInFlightError)


@dataclass(slots=True, eq=False)
class _Write:
    entry: bytes
    appended: Future[int]
    applied: Future[int]
