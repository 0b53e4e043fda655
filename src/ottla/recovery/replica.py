"""State-machine replication over a log: one leader writes, followers replay, and any of them can take over.

    follower = Follower(log, RowTables(), snapshots)            # `log`: opened to read
    await follower.start()                                      # snapshot + log, then it follows
    ...
    leader = await follower.take_over(writer)                   # `writer`: the same log, opened with fence=True
    await leader.write(put(b"k", b"v"))                         # returns when it is committed, and in the state

To open the log with a fence ends every other writer: none of its appends, also those on their way, is taken any more.
The new leader then writes a TAKEOVER entry. All that was ever acknowledged is before it in the log, so its state is
complete when it has come there. Transactions that are open at that entry will never be committed.

The leader's state changes when a write is acknowledged, in the order of the log, by the same code as a follower's.
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
from ottla.recovery.logs import Columns, ReadableLog, WritableLog, columns_of, news_of
from ottla.recovery.progress import OnProgress
from ottla.recovery.recover import Recovered, recover
from ottla.recovery.replaying import Replayer
from ottla.recovery.snapshots import Snapshot, SnapshotStore
from ottla.recovery.trimming import trim_log


class Follower:
    """A copy of the state that is never far behind. One event loop; `applier` is to be read, not written."""

    def __init__(self, log: ReadableLog, applier: Applier, snapshots: SnapshotStore | None = None) -> None:
        self.applier = applier
        self._log = log
        self._snapshots = snapshots
        self._replayer: Replayer | None = None
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self.heard_s = 0.0
        """When something came from the log last, on the monotonic clock."""

    @property
    def position(self) -> Position:
        return Position() if self._replayer is None else self._replayer.position

    async def start(self, on_progress: OnProgress | None = None, *, workers: int = 1) -> Recovered:
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
        """Until the record at this offset is in the state: to read what was written elsewhere."""
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
        """Why it does not follow any more, for instance because the log was trimmed past it."""
        ended = self._task is not None and self._task.done() and not self._task.cancelled()
        return self._task.exception() if ended and self._task is not None else None

    async def stop(self) -> None:
        """The state stays as it is. Raises nothing: `failure` says what went wrong before."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def take_over(self, writer: WritableLog) -> Leader:
        """`writer` was opened with a fence; this follower ends, and its state goes on under the leader."""
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
    """Recovers and leads: for a program that starts, alone or after another one."""
    recovered = await recover(writer, applier, snapshots=snapshots, on_progress=on_progress, workers=workers)
    return await _lead(writer, applier, recovered.replayer, snapshots)


async def _lead(writer: WritableLog, applier: Applier, replayer: Replayer, snapshots: SnapshotStore | None) -> Leader:
    first = await writer.append(takeover(writer.epoch or 0))
    async for columns in columns_of(writer, replayer.read_offset, first + 1):
        replayer.feed(columns)
    if replayer.read_offset <= first:
        raise RecoveryError(f"the log was read to offset {replayer.read_offset} only, and the takeover is at {first}")
    return Leader(writer, applier, replayer, snapshots)


class Leader:
    """The one that writes. After any failed append it stops: what is in the log is then for the next leader to say."""

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
        return self._replayer.position

    @property
    def failure(self) -> BaseException | None:
        """Why it does not lead any more."""
        return self._failure

    def write_nowait(self, entry: bytes) -> Future[int]:
        """Its offset, when it is committed and in the state. The order of calls is the order in the log.

        Raises NotLeadingError, or what the log raises if too much is on its way already: `write` waits for room.
        """
        if self._failure is not None:
            raise _stopped(self._failure)
        try:
            appended = self._log.append(entry)
        except Exception as failure:
            if _is_no_room(failure):
                raise
            self._failure = failure  # a log that takes nothing more: it has heard of another writer
            raise _stopped(failure) from failure
        write = _Write(entry, appended, asyncio.get_running_loop().create_future())
        self._pending.append(write)
        write.appended.add_done_callback(self._on_appended)
        return write.applied

    async def write(self, entry: bytes) -> int:
        """The same, awaited, when there is room. A caller that is cancelled does not take back what was sent."""
        await self._log.ready()
        return await asyncio.shield(self.write_nowait(entry))

    async def write_transaction(self, changes: Iterable[Change]) -> int:
        """All of these changes or none, for every reader and after any crash. Returns the transaction's id."""
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
        """Says to readers what will never be committed, as soon as there is room. The next leader says it too."""
        while self._unaborted and self._failure is None:
            try:
                self.write_nowait(abort(self._unaborted[0]))
            except Exception:
                return  # no room: what is on its way will be acknowledged, and then it is tried again
            self._unaborted.popleft()

    async def write_heartbeat(self) -> int:
        """Says to followers that somebody leads."""
        return await self.write(encode(Kind.NOTHING))

    async def write_digest(self) -> int:
        """The checksum of the whole state, which every replay of the log compares with its own from now on."""
        while True:
            await self._log.ready()
            if not self._pending:
                break
            await asyncio.wait([write.applied for write in self._pending])
        # Nothing is awaited from here to the append: another write between them would not be in the checksum.
        return await asyncio.shield(self.write_nowait(digest(self.applier.digest())))

    async def snapshot(self) -> Snapshot:
        """Of the state at this moment; written in a thread while writes go on."""
        if self._snapshots is None:
            raise RecoveryError("this leader has no snapshot store: give it one when it starts")
        async with self._one_snapshot:
            frames, position = self.applier.dump(), self.position
            # The leader knows its own clock; the time of the record is what a restore to a time compares. In a log of
            # the append stream times never go back: no record before has a later one.
            last = position.next_offset - 1
            if (await self._log.tail()).start_offset <= last:
                async for columns in columns_of(self._log, last, last + 1):
                    latest_ms = max(columns.timestamps_ms, default=-1)
                    position = replace(position, timestamp_ms_max=max(latest_ms, position.timestamp_ms_max))
            return await asyncio.to_thread(self._snapshots.publish, frames, position)

    async def trim(self) -> int | None:
        """The log gives up what no kept snapshot needs. The offset before which it was cut, or None."""
        return None if self._snapshots is None else await trim_log(self._log, self._snapshots)

    def _on_appended(self, _: Future[int]) -> None:
        """Acknowledgements come in bursts: one pass over all of them."""
        if not self._drain_is_due:
            self._drain_is_due = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        self._drain_is_due = False
        done: list[_Write] = []
        while self._pending and self._pending[0].appended.done() and self._failure is None:
            write = self._pending.popleft()
            if write.appended.cancelled():
                self._failure = asyncio.CancelledError("an append was cancelled: whether it is in the log is not known")
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
            # They are in the log, and this state cannot take them: it must not go on as if it had.
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
                write.appended.exception()  # seen
            if not write.applied.done():
                write.applied.set_exception(_stopped(failure))
                write.applied.exception()  # whoever awaits it gets it; nobody has to


def _stopped(failure: BaseException) -> NotLeadingError:
    error = NotLeadingError(f"this leader has stopped: {failure}")
    error.__cause__ = failure
    return error


def _is_no_room(failure: Exception) -> bool:
    """Whether an append was only too much for now, of the log that most programs use."""
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
