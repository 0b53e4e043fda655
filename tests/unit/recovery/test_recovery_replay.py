"""Replay: only whole transactions, up to any point, also from snapshots; damage is reported."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from ottla.recovery import (
    END,
    AheadOfLogError,
    DamagedEntryError,
    DivergedError,
    LogTrimmedError,
    Point,
    PointNotReachedError,
    Position,
    Progress,
    Replayer,
    RowTables,
    SnapshotStore,
    recover,
    trim_log,
)
from ottla.recovery.entries import (
    Change,
    Kind,
    abort,
    commit,
    decode,
    delete,
    digest,
    encode,
    json_values,
    put,
    statement,
    takeover,
    transaction_entries,
    values_of,
)
from ottla.recovery.logs import Columns
from tests.support.recovery_memory_log import MemoryLog, Shared


def a_log(*entries: bytes, chunk: int = 7) -> MemoryLog:
    shared = Shared()
    for entry in entries:
        shared.add(entry)
    return MemoryLog(shared, chunk=chunk)


async def state_of(log: MemoryLog, until: Point = END) -> dict[bytes, bytes]:
    tables = RowTables()
    await recover(log, tables, until=until)
    return tables.rows


def test_an_entry_is_read_as_it_was_written() -> None:
    for checksum in (False, True):
        entry = encode(Kind.PUT, "orders", b"k\0", b"image", transaction=1 << 63, checksum=checksum)
        assert decode(entry, 0) == (Kind.PUT, 1 << 63, "orders", b"k\0", b"image")
    values = ["Prag", None, -(1 << 40), 0.1, b"\0\xff", '{"base64":']
    assert values_of(json_values(values)) == values


def test_what_does_not_fit_into_an_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 65535 bytes"):
        put(b"k" * 65536, b"")
    with pytest.raises(ValueError, match="name of a table"):
        put(b"k", b"", table="t" * 256)
    with pytest.raises(ValueError, match="transaction id"):
        put(b"k", b"", transaction=-1)


@pytest.mark.parametrize("at", range(24))
def test_a_bit_that_flips_is_seen(at: int) -> None:
    entry = bytearray(put(b"key", b"image", checksum=True))
    assert len(entry) == 24
    entry[at] ^= 0x10
    with pytest.raises(DamagedEntryError, match="offset 7"):
        decode(bytes(entry), 7)


@pytest.mark.parametrize(
    "data", [b"", b"\x11", b"\x11\0\xff\xff" + b"\0" * 8, b"\x21" + b"\0" * 11, b"\x11\x01" + b"\0" * 10 + b"\xff"]
)
async def test_bytes_of_a_stranger_are_refused_with_their_offset(data: bytes) -> None:
    with pytest.raises(DamagedEntryError, match="offset 1 "):
        await state_of(a_log(put(b"a", b"1"), data))


async def test_later_images_win_and_deletes_delete() -> None:
    log = a_log(put(b"a", b"1"), put(b"b", b"2"), put(b"a", b"3"), delete(b"b"), put(b"c", b"", table="other"))
    tables = RowTables()
    recovered = await recover(log, tables)
    assert tables.tables == {"": {b"a": b"3"}, "other": {b"c": b""}}
    assert (recovered.entry_count, recovered.position.next_offset) == (5, 5)


async def test_only_whole_transactions_are_applied() -> None:
    first = [put(b"a", b"1", transaction=1), put(b"b", b"1", transaction=1)]
    second = [put(b"a", b"2", transaction=2)]
    third = [put(b"c", b"3", transaction=3)]
    log = a_log(
        first[0],
        second[0],
        third[0],
        first[1],
        abort(3),
        put(b"d", b"0"),
        commit(2, second),
        commit(1, first),
        put(b"a", b"never", transaction=4),
        chunk=2,
    )
    tables = RowTables()
    recovered = await recover(log, tables)
    assert tables.rows == {b"a": b"1", b"b": b"1", b"d": b"0"}, "1 was committed after 2"
    assert recovered.replayer.open_transactions == [4]
    assert recovered.position.begin_offset == 8
    assert recovered.position.transaction_max == 2


async def test_a_commit_of_entries_that_are_not_here_is_damage() -> None:
    entries = [put(b"a", b"1", transaction=1), put(b"b", b"1", transaction=1)]
    with pytest.raises(DamagedEntryError, match="it commits 2 entries of transaction 1, but 1 were read"):
        await state_of(a_log(entries[0], commit(1, entries)))
    other = put(b"b", b"2", transaction=1)
    with pytest.raises(DamagedEntryError, match="do not match its commit"):
        await state_of(a_log(entries[0], other, commit(1, entries)))


async def test_a_new_writer_ends_what_the_old_one_left_open() -> None:
    old, new = put(b"a", b"old", transaction=5), put(b"b", b"new", transaction=5)
    log = a_log(old, takeover(2), new, commit(5, [new]))
    assert await state_of(log) == {b"b": b"new"}


async def test_a_point_is_an_offset_a_time_or_a_transaction() -> None:
    changes: list[Change] = [(Kind.PUT, "", b"t", b"%d" % number) for number in range(3)]
    log = a_log(*[put(b"n", b"%d" % number) for number in range(10)], *transaction_entries(9, changes), chunk=4)
    for count in range(11):
        expected = {b"n": b"%d" % (count - 1)} if count else {}
        assert await state_of(log, Point(offset=count)) == expected
        assert await state_of(log, Point(time_ms=999 + count)) == expected
    assert await state_of(log, Point(offset=13)) == {b"n": b"9"}, "not yet committed"
    assert await state_of(log, Point(transaction=9)) == {b"n": b"9", b"t": b"2"}
    assert await state_of(log, Point(time_ms=1 << 60)) == {b"n": b"9", b"t": b"2"}
    with pytest.raises(PointNotReachedError, match="without the commit of transaction 8"):
        await state_of(log, Point(transaction=8))
    with pytest.raises(PointNotReachedError, match="ends at offset 14, before offset 15"):
        await state_of(log, Point(offset=15))
    with pytest.raises(ValueError, match="only one of offset, time and transaction"):
        Point(offset=1, time_ms=1)


async def test_the_writers_checksum_of_the_state_is_compared() -> None:
    tables = RowTables()
    tables.rows[b"a"] = b"1"
    right = digest(tables.digest())
    recovered = await recover(a_log(put(b"a", b"1"), right, put(b"a", b"2")), RowTables())
    assert recovered.replayer.digest_count == 1
    with pytest.raises(DivergedError, match="at offset 2"):
        await state_of(a_log(put(b"a", b"1"), put(b"a", b"2"), right))


async def test_what_was_read_already_is_passed_over() -> None:
    """A log that is read again from an earlier offset after its connection was lost."""
    tables = RowTables()
    replayer = Replayer(tables)
    entries = [put(b"a", b"%d" % number) for number in range(6)]
    replayer.feed(Columns([0, 1, 2, 3], [0] * 4, entries[:4]))
    replayer.feed(Columns([2, 3, 4], [0] * 3, [b"", b"", entries[4]]))
    replayer.feed(Columns([1], [0], [b""]))
    assert (tables.rows, replayer.read_offset, replayer.entry_count) == ({b"a": b"4"}, 5, 5)


async def test_statements_are_not_for_tables_of_images() -> None:
    with pytest.raises(ValueError, match="statements need a database"):
        await state_of(a_log(statement("DELETE FROM t")))


async def test_progress_is_told_and_ends_at_the_end() -> None:
    moments: list[Progress] = []
    log = a_log(*[put(b"%d" % number, b"") for number in range(100)])
    await recover(log, RowTables(), on_progress=moments.append)
    assert (moments[-1].offset, moments[-1].end_offset, moments[-1].entry_count) == (100, 100, 100)
    assert moments[-1].fraction == 1.0
    assert moments[-1].entries_per_s > 0


# Snapshots and the log.


async def test_any_snapshot_and_the_rest_of_the_log_are_the_whole_log() -> None:
    """Random histories with interleaved transactions: replay from any snapshot to any point equals a full replay."""
    chance = random.Random(8)
    for _ in range(8):
        shared = Shared()
        open_entries: dict[int, list[bytes]] = {}
        for number in range(1, 60):
            key, image = b"%d" % chance.randrange(6), b"%d" % number
            choice = chance.random()
            if choice < 0.4:
                shared.add(put(key, image))
            elif choice < 0.5:
                shared.add(delete(key))
            elif choice < 0.8 or not open_entries:
                transaction = chance.choice([number, *open_entries])
                open_entries.setdefault(transaction, []).append(put(key, image, transaction=transaction))
                shared.add(open_entries[transaction][-1])
            elif choice < 0.97:
                transaction = chance.choice(list(open_entries))
                entries = open_entries.pop(transaction)
                shared.add(commit(transaction, entries) if chance.random() < 0.8 else abort(transaction))
            else:
                shared.add(takeover(number))
                open_entries.clear()
        log = MemoryLog(shared, chunk=chance.randrange(1, 9))
        store = SnapshotStore(f"memory://snapshots-{chance.random()}", keep=3)
        for at in sorted(chance.sample(range(60), 3)):
            tables = RowTables()
            taken = await recover(log, tables, until=Point(offset=min(at, len(shared.entries))))
            store.publish(tables.dump(), taken.position)
        points = [Point(offset=number) for number in range(len(shared.entries) + 1)]
        points += [Point(time_ms=1000 + number) for number in range(len(shared.entries))]
        points += [Point(transaction=number) for number in range(1, 60)]
        for point in [END, *points]:
            with_snapshot = RowTables()
            try:
                expected = await state_of(log, point)
            except PointNotReachedError:
                with pytest.raises(PointNotReachedError):
                    await recover(log, with_snapshot, snapshots=store, until=point)
                continue
            recovered = await recover(log, with_snapshot, snapshots=store, until=point)
            assert with_snapshot.rows == expected, (point, recovered.snapshot)


async def test_a_log_that_was_cut_too_far_is_named() -> None:
    shared = Shared()
    for number in range(10):
        shared.add(put(b"%d" % number, b""))
    log, store, tables = MemoryLog(shared), SnapshotStore("memory://cut", keep=1), RowTables()
    taken = await recover(log, tables, until=Point(offset=4))
    snapshot = store.publish(tables.dump(), taken.position)
    await log.trim(4)
    assert (await recover(log, RowTables(), snapshots=store)).entry_count == 6
    with pytest.raises(LogTrimmedError, match="a replay without a snapshot needs the log from offset 0"):
        await recover(log, RowTables())
    await log.trim(5)
    with pytest.raises(LogTrimmedError, match=f"the snapshot {snapshot.name} needs the log from offset 4, but .* at 5"):
        await recover(log, RowTables(), snapshots=store)


async def test_trimming_keeps_what_kept_snapshots_need() -> None:
    shared, store = Shared(), SnapshotStore("memory://trim", keep=2)
    log = MemoryLog(shared)
    open_one = put(b"open", b"", transaction=7)
    for number in range(30):
        shared.add(open_one if number == 3 else put(b"%d" % number, b""))
    for at, before in ((5, None), (8, 3), (20, None)):
        tables = RowTables()
        taken = await recover(log, tables, snapshots=store, until=Point(offset=at))
        assert taken.position.begin_offset == 3, "a transaction is open there"
        store.publish(tables.dump(), taken.position)
        assert await trim_log(log, store) == before
    shared.add(commit(7, [open_one]))
    for at, before in ((31, None), (31, 31)):
        tables = RowTables()
        taken = await recover(log, tables, snapshots=store, until=Point(offset=at))
        store.publish(tables.dump(), taken.position)
        assert await trim_log(log, store) == before
    tables = RowTables()
    await recover(log, tables, snapshots=store)
    assert len(tables.rows) == 30


async def test_a_snapshot_of_another_log_is_refused() -> None:
    shared, store = Shared(), SnapshotStore("memory://another")
    for number in range(10):
        shared.add(put(b"%d" % number, b""))
    log, tables = MemoryLog(shared), RowTables()
    snapshot = store.publish(tables.dump(), (await recover(log, tables)).position)
    del shared.entries[9:]
    mine = RowTables()
    mine.rows[b"mine"] = b""
    with pytest.raises(AheadOfLogError, match=f"the snapshot {snapshot.name} is at offset 10, but the log ends at 9"):
        await recover(log, mine, snapshots=store)
    assert mine.rows == {b"mine": b""}, "it is not loaded first"


async def test_a_snapshot_that_is_pruned_while_it_is_read_is_not_missed() -> None:
    """Its writer published another one, and trimmed the log, between the listing and the read."""
    shared, store = Shared(), SnapshotStore("memory://pruned", keep=1)
    log = MemoryLog(shared)
    for number in range(5):
        shared.add(put(b"%d" % number, b""))
    tables = RowTables()
    store.publish(tables.dump(), (await recover(log, tables)).position)

    class Slow(RowTables):
        was_late = False

        def load(self, frames: Iterable[bytes], position: Position) -> None:
            if not self.was_late:
                self.was_late = True
                shared.add(put(b"later", b""))
                shared.start_offset = 6
                shared.entries.clear()
                newer = RowTables()
                newer.rows.update({**tables.rows, b"later": b""})
                store.publish(newer.dump(), Position(6, 6))
            super().load(frames, position)

    slow = Slow()
    recovered = await recover(log, slow, snapshots=store)
    assert recovered.position.next_offset == 6
    assert len(slow.rows) == 6
