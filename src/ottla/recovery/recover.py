"""Recovery: state = snapshot + log, up to the end, an offset, a time or a transaction.

Example:

    recovered = await recover(log, tables, snapshots=SnapshotStore("snapshots"), until=Point(time_ms=...))
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.recovery.appliers import Applier, Position
from ottla.recovery.errors import AheadOfLogError, DamagedSnapshotError, LogTrimmedError, PointNotReachedError
from ottla.recovery.logs import LogTail, ReadableLog, columns_of
from ottla.recovery.points import END, Point
from ottla.recovery.progress import Meter, OnProgress
from ottla.recovery.replayer import Replayer
from ottla.recovery.snapshots import Snapshot, SnapshotStore
from ottla.recovery.workers import replay_by_workers, worth_it

ATTEMPTS = 3


@dataclass(slots=True)
class Recovered:
    """The result of a recovery. A follower continues with `replayer`."""

    replayer: Replayer
    snapshot: Snapshot | None = None
    damaged: list[DamagedSnapshotError] = field(default_factory=list)
    """Damaged snapshots that were skipped."""
    replay_s: float = 0.0
    had_state: bool = False
    """Whether recovery continued from the existing state of the applier."""
    workers: int = 1
    """Number of processes that read the log."""

    @property
    def position(self) -> Position:
        """The position of the recovered state."""
        return self.replayer.position

    @property
    def begun_from(self) -> str:
        """A description of the initial state, for messages."""
        if self.snapshot is not None:
            return f"the snapshot {self.snapshot.name}"
        return "this state" if self.had_state else "a replay without a snapshot"

    @property
    def entry_count(self) -> int:
        """The number of entries replayed."""
        return self.replayer.entry_count

    @property
    def entries_per_s(self) -> float:
        """The average replay rate."""
        return self.entry_count / self.replay_s if self.replay_s > 0 else 0.0


async def recover(
    log: ReadableLog,
    applier: Applier,
    *,
    snapshots: SnapshotStore | None = None,
    until: Point = END,
    on_progress: OnProgress | None = None,
    workers: int = 1,
) -> Recovered:
    """Recovers the applier's state from a snapshot and the log, up to the point `until`.

        recovered = await recover(log, tables, snapshots=SnapshotStore("snapshots"), until=Point(offset=1200))
        print(recovered.position.next_offset, recovered.entries_per_s)

    If the applier already has a state from before the point, recovery continues from it; otherwise it replaces the
    state. An error at the beginning leaves the state unchanged. Transactions that are not committed at the point are
    not part of the state. The call blocks its event loop while it applies changes.

    With `workers` > 1, that many processes read a long log and reduce it to the last change of each key, and this
    process applies the result. The state is the same. This requires an applier that allows it (`by_key`); any other
    applier is replayed by one process.

    Raises LogTrimmedError if the log begins too late for every snapshot, PointNotReachedError if it ends before the
    point, AheadOfLogError if the state does not belong to this log, and WorkerFailedError if a worker fails.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1: workers={workers}")
    tail = await log.tail()
    if until.offset is not None and until.offset > tail.end_offset:
        raise PointNotReachedError(f"the log ends at offset {tail.end_offset}, before {until}")
    recovered, tail = await _begin_whole(log, applier, snapshots, until)
    replayer = recovered.replayer
    if replayer.position.next_offset > tail.end_offset:
        raise AheadOfLogError(replayer.position.next_offset, tail.end_offset, recovered.begun_from)
    end = tail.end_offset if until.offset is None else until.offset
    meter = Meter(replayer.read_offset, end, on_progress)
    if not replayer.reached and worth_it(replayer.position.next_offset, end, workers, applier):
        recovered.workers = workers
        await replay_by_workers(log, replayer, applier, end, until, workers, meter)
    if replayer.read_offset < end and not replayer.reached:
        async for columns in columns_of(log, replayer.read_offset, end):
            replayer.feed(columns)
            meter.note(replayer.read_offset, replayer.entry_count)
            if replayer.reached:
                break
    if until.transaction is not None and not replayer.reached:
        raise PointNotReachedError(f"the log ends at offset {tail.end_offset} without the commit of {until}")
    recovered.replay_s = meter.elapsed_s
    meter.note(max(replayer.read_offset, end) if not replayer.reached else end, replayer.entry_count, is_last=True)
    return recovered


async def _begin_whole(
    log: ReadableLog, applier: Applier, snapshots: SnapshotStore | None, until: Point
) -> tuple[Recovered, LogTail]:
    """Finds an initial state from which the log is complete; returns it with the log's tail afterwards.

    Retries, because a writer may meanwhile publish a snapshot, prune the one being read, and trim the log.
    """
    for attempts_left in reversed(range(ATTEMPTS)):
        before = await log.tail()
        try:
            recovered = _begin(applier, snapshots, until, before)
        except (LogTrimmedError, AheadOfLogError):
            if not attempts_left:
                raise
            continue
        tail = await log.tail()
        if recovered.replayer.read_offset >= tail.start_offset:
            return recovered, tail
    raise LogTrimmedError(recovered.replayer.read_offset, tail.start_offset, recovered.begun_from)


def _begin(applier: Applier, snapshots: SnapshotStore | None, until: Point, tail: LogTail) -> Recovered:
    """Chooses the initial state: the applier's own, the newest usable snapshot, or an empty state."""
    start_offset = tail.start_offset
    own = applier.position()
    if own is not None and until.allows(own) and own.begin_offset >= start_offset:
        return Recovered(Replayer(applier, own, until=until), had_state=True)
    damaged: list[DamagedSnapshotError] = []
    needed, of = 0, "a replay without a snapshot"
    for found in snapshots.snapshots(until) if snapshots is not None else ():
        if isinstance(found, DamagedSnapshotError):
            damaged.append(found)
            continue
        assert snapshots is not None
        if found.position.begin_offset < start_offset:  # so does every older snapshot
            needed, of = found.position.begin_offset, f"the snapshot {found.name}"
            break
        if found.position.next_offset > tail.end_offset:
            raise AheadOfLogError(found.position.next_offset, tail.end_offset, f"the snapshot {found.name}")
        try:
            applier.load(snapshots.frames(found), found.position)
        except DamagedSnapshotError as damage:
            damaged.append(damage)
            continue
        return Recovered(Replayer(applier, found.position, until=until), found, damaged)
    if start_offset > needed:
        names = "; ".join(str(each) for each in damaged)
        raise LogTrimmedError(needed, start_offset, f"{names}; {of}" if names else of)
    applier.clear()
    return Recovered(Replayer(applier, until=until), None, damaged)
