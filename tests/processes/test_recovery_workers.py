"""Replay by several processes gives the state of a plain replay, or an error with an offset and an earlier state."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from ottla.recovery import (
    END,
    Applier,
    DamagedEntryError,
    KafkaLog,
    Point,
    Progress,
    RecoveryError,
    RowTables,
    SnapshotStore,
    SqliteApplier,
    WorkerFailedError,
    lead,
    put,
    recover,
    statement,
    workers,
)
from ottla.recovery.logs import Columns
from ottla.wal import Log, LogSettings
from tests.processes.conftest import StartBroker
from tests.properties.recovery_histories import History, SqliteHistory, between
from tests.support.recovery_memory_log import Entry, MemoryLog, Shared, Tail

LENGTH = 3000
SCHEMA = "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, n INTEGER);"


class PickledLog:
    """A log that is pickled to the workers. `kills` or `fails` at an offset, in a worker."""

    def __init__(self, columns: Columns, *, kills: int = -1, fails: int = -1) -> None:
        self.columns, self.kills, self.fails = columns, kills, fails
        self.home = os.getpid()
        self.workers: str = ""
        """A directory in which each reading process leaves its id."""

    async def tail(self) -> Tail:
        return Tail(0, self.columns.offsets[-1] + 1, 0)

    async def read_chunks(self, first: int, until: int | None = None) -> AsyncIterator[Sequence[Entry]]:
        if self.workers:
            Path(self.workers, str(os.getpid())).touch()
        rows = between(self.columns, first, 1 << 62 if until is None else until)
        for at in range(0, len(rows.offsets), 50):
            chunk = rows.since(at).before(50)
            for offset in chunk.offsets:
                if offset == self.kills and os.getpid() != self.home:
                    os.kill(os.getpid(), signal.SIGKILL)
                if offset == self.fails and os.getpid() != self.home:
                    raise OSError("no such disk")
            yield [Entry(offset, data, time_ms) for offset, time_ms, data in zip(*chunk, strict=True)]

    async def follow(self, first: int) -> AsyncIterator[Entry]:
        raise NotImplementedError
        yield


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "RANGE_ENTRIES_MIN", 100)


def puts(count: int) -> Columns:
    data = [put(b"%d" % (number % 97), b"%d" % number) for number in range(count)]
    return Columns(range(count), range(1000, 1000 + count), data)


async def state_of(log: PickledLog, until: Point = END) -> tuple[RowTables, object]:
    tables = RowTables()
    recovered = await recover(log, tables, until=until)
    return tables, recovered.position


async def test_any_log_to_any_point_from_any_snapshot(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    history = History(chance, LENGTH)
    log, store = PickledLog(history.columns), SnapshotStore(tmp_path)
    tables = RowTables()
    taken = await recover(log, tables, until=Point(offset=chance.randrange(LENGTH // 2)))
    store.publish(tables.dump(), taken.position)
    points = [END, Point(offset=LENGTH - 10), Point(time_ms=1000 + LENGTH // 2)]
    points.append(Point(transaction=history.transactions[-1]))
    for count, until in zip((2, 3, 2, 2), points, strict=True):
        expected, position = await state_of(log, until)
        found = RowTables()
        recovered = await recover(log, found, snapshots=store, until=until, workers=count)
        assert recovered.workers == count
        assert (found.digest(), recovered.position) == (expected.digest(), position), until


async def test_a_statement_that_ties_rows_together_ends_the_replay_by_key() -> None:
    """With a unique column a row image can remove another row, so from there on every change counts."""
    images = [put(b"[%d]" % (n % 9), b"[%d,%d]" % (n % 9, n % 4), table="rows") for n in range(600)]
    data = [*images[:300], statement("DELETE FROM rows"), statement("CREATE UNIQUE INDEX one ON rows (n)"), *images]
    log = PickledLog(Columns(range(len(data)), [1] * len(data), data))
    one, other = (SqliteApplier(sqlite3.connect(":memory:"), SCHEMA, by_key=flag) for flag in (False, True))
    await recover(log, one)
    recovered = await recover(log, other, workers=2)
    assert recovered.workers == 2
    assert (other.digest(), other.position()) == (one.digest(), one.position())


@pytest.mark.parametrize("cause", ["kills", "fails"])
async def test_a_worker_that_dies_is_named_and_the_state_is_one_of_the_past(seed: int, cause: str) -> None:
    chance = random.Random(seed)
    at = chance.randrange(LENGTH)
    columns = puts(LENGTH)
    tables = RowTables()
    log = PickledLog(columns, kills=at) if cause == "kills" else PickledLog(columns, fails=at)
    with pytest.raises(WorkerFailedError, match="signal 9" if cause == "kills" else "no such disk") as caught:
        await recover(log, tables, workers=2)
    assert caught.value.offset <= at
    last = max((int(image) for image in tables.rows.values()), default=-1)
    assert last < at
    expected, _ = await state_of(PickledLog(columns), Point(offset=last + 1))
    assert tables.rows == expected.rows
    await recover(PickledLog(columns), tables)
    assert tables.rows == (await state_of(PickledLog(columns)))[0].rows


async def test_a_database_goes_on_where_the_workers_died(seed: int, tmp_path: Path) -> None:
    """Applying `n = n * 3` twice, or not at all, would show."""
    chance = random.Random(seed)
    columns = SqliteHistory(chance, LENGTH).columns
    applier = SqliteApplier(sqlite3.connect(tmp_path / "state.db"), SCHEMA, by_key=True)
    with pytest.raises(WorkerFailedError):
        await recover(PickledLog(columns, kills=chance.choice(columns.offsets)), applier, workers=2)
    recovered = await recover(PickledLog(columns), applier, workers=2)
    expected = SqliteApplier(sqlite3.connect(":memory:"), SCHEMA)
    await recover(PickledLog(columns), expected)
    assert applier.digest() == expected.digest()
    assert recovered.position == expected.position()


async def test_a_damaged_entry_is_named_as_in_a_plain_replay() -> None:
    columns = puts(LENGTH)
    data = list(columns.data)
    data[1234] = b"stranger"
    with pytest.raises(DamagedEntryError, match="offset 1234"):
        await recover(PickledLog(columns._replace(data=data)), RowTables(), workers=2)


async def test_progress_is_the_sum_of_all_workers_and_none_of_them_stays(tmp_path: Path) -> None:
    moments: list[Progress] = []
    log = PickledLog(puts(LENGTH))
    log.workers = str(tmp_path)
    recovered = await recover(log, RowTables(), workers=2, on_progress=moments.append)
    assert recovered.entry_count == LENGTH
    assert (moments[-1].entry_count, moments[-1].fraction) == (LENGTH, 1.0)
    assert [moment.offset for moment in moments] == sorted(moment.offset for moment in moments)
    processes = {int(path.name) for path in tmp_path.iterdir()}
    assert len(processes) == 2
    assert os.getpid() not in processes
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


async def test_a_recovery_that_is_cancelled_ends_its_workers(tmp_path: Path) -> None:
    class Endless(RowTables):
        """Applies nothing: the workers wait with their pieces."""

        def apply(self, *_: object) -> None:
            raise asyncio.CancelledError

    log = PickledLog(puts(LENGTH))
    log.workers = str(tmp_path)
    with pytest.raises(asyncio.CancelledError):
        await recover(log, Endless(), workers=2)
    for path in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name), 0)


async def test_what_cannot_be_replayed_by_several_is_replayed_by_one_or_refused() -> None:
    class ByStatements(RowTables):
        def by_key(self) -> bool:
            return False

    short, applier = PickledLog(puts(150)), RowTables()
    assert (await recover(short, applier, workers=4)).workers == 1
    plain: Applier = ByStatements()
    assert (await recover(PickledLog(puts(LENGTH)), plain, workers=4)).workers == 1
    shared = Shared()
    for number in range(300):
        shared.add(put(b"k", b"%d" % number))
    log = MemoryLog(shared)
    log.fails_with = lambda: None  # type: ignore[assignment]  # cannot be pickled
    with pytest.raises(RecoveryError, match=r"MemoryLog cannot be read by another process.*workers=1"):
        await recover(log, RowTables(), workers=2)
    with pytest.raises(ValueError, match="workers=0"):
        await recover(log, RowTables(), workers=0)


async def test_a_broker_is_read_by_several_processes(start_broker: StartBroker) -> None:
    """Reads through the Kafka protocol, and through the append stream as the writer that fenced the log."""
    broker = start_broker(config={"ottla.wal.port": "0"})
    async with await Log.open(broker.wal_server, "log", create=LogSettings(retention_ms=-1), fence=True) as log:
        for first in range(0, LENGTH, 500):
            await log.append_many(puts(LENGTH).data[first : first + 500])
        one, by_kafka, by_wal = RowTables(), RowTables(), RowTables()
        expected = await recover(KafkaLog(broker.bootstrap, "log"), one)
        found = await recover(KafkaLog(broker.bootstrap, "log"), by_kafka, workers=2)
        assert (found.workers, found.entry_count, found.position) == (2, LENGTH, expected.position)
        leader = await lead(log, by_wal, workers=2)
        assert one.rows == by_kafka.rows == by_wal.rows
        await leader.write(put(b"after", b"1"))
        assert by_wal.rows[b"after"] == b"1"
