"""Iteration over a timeline's WAL: gaps, overlaps, switches of timelines; compared with known bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ottla.connect.postgres_wal.backup import check_wal
from ottla.connect.postgres_wal.entries import Entry, Kind
from ottla.connect.postgres_wal.pieces import GapError, Piece, wal_pieces
from ottla.connect.postgres_wal.positions import Lsn, TimelineId
from tests.support.postgres_wal_log import ONE, THREE, TWO, MemoryLog, wal


async def pieces(log: MemoryLog, timeline: TimelineId, low: int, high: int, *, up_to_gap: bool = False) -> list[Piece]:
    return [each async for each in wal_pieces(log, timeline, Lsn(low), Lsn(high), up_to_gap=up_to_gap)]


def joined(found: list[Piece]) -> bytes:
    return b"".join(each.data for each in found)


def history(timeline: TimelineId, begin: int, text: str) -> Entry:
    return Entry(Kind.HISTORY, 77, timeline, Lsn(begin), 0, text.encode())


async def test_any_range_is_given_byte_by_byte() -> None:
    chance = random.Random(3)
    content = chance.randbytes(3000)
    log, at = MemoryLog(), 0
    while at < len(content):
        size = chance.randrange(1, 200)
        log.put(wal(ONE, at, content[at : at + size]), chance.choice([0, 0, 3]))
        at += size
    for _ in range(100):
        low, high = sorted(chance.sample(range(len(content) + 1), 2))
        found = await pieces(log, ONE, low, high)
        assert joined(found) == content[low:high]
        assert [each.start for each in found] == [low, *(each.end for each in found[:-1])]
    assert joined(await pieces(log, ONE, 2900, 9000)) == content[2900:], "the end of the log is no gap"
    assert await pieces(log, ONE, len(content), 9000) == []


async def test_a_gap_is_named_with_its_offsets() -> None:
    log = MemoryLog()
    log.put(wal(ONE, 0, bytes(100)))
    log.put(wal(ONE, 100, bytes(100)), hole=4)
    log.put(wal(ONE, 201, bytes(100)), hole=2)  # one byte is missing
    for low in (0, 100, 199):
        with pytest.raises(GapError, match=r"between 0/C8 and 0/C9 .* offset 5 is before that, 8 after it"):
            await pieces(log, ONE, low, 300)
        assert joined(await pieces(log, ONE, low, 300, up_to_gap=True)) == bytes(200 - low)
    assert joined(await pieces(log, ONE, 0, 200)) == bytes(200), "a gap behind what was asked for is none of it"
    assert joined(await pieces(log, ONE, 201, 300)) == bytes(99)
    with pytest.raises(GapError, match="between 0/C8 and 0/C9"):
        await pieces(log, ONE, 200, 300)
    assert await pieces(log, ONE, 200, 300, up_to_gap=True) == []


async def test_the_mark_of_a_gap_is_one_only_if_something_is_missing() -> None:
    """A slot that the server invalidated while it still had the WAL: the log continues where it ended."""
    log = MemoryLog()
    log.put(wal(ONE, 0, b"a" * 100))
    log.put(Entry(Kind.GAP, 77, ONE, Lsn(100), 0, b"the slot was invalidated"))
    log.put(wal(ONE, 100, b"b" * 100))
    assert joined(await pieces(log, ONE, 0, 200)) == b"a" * 100 + b"b" * 100
    log.put(Entry(Kind.GAP, 77, ONE, Lsn(300), 0, b"WAL was removed"))
    with pytest.raises(GapError, match="between 0/C8 and 0/12C"):
        await pieces(log, ONE, 0, 400)


async def test_what_came_twice_counts_once() -> None:
    log = MemoryLog()
    log.put(wal(ONE, 0, b"0123456789"))
    log.put(wal(ONE, 1, b"123"))
    log.put(wal(ONE, 5, b"56789abc"))
    log.put(wal(ONE, 6, b"678"))
    log.put(wal(ONE, 13, b"def"))
    assert joined(await pieces(log, ONE, 0, 16)) == b"0123456789abcdef"


async def test_each_timeline_has_what_was_written_on_it() -> None:
    """Timeline 2 branches from 1 at 100, in the middle of 1's data; 3 branches from 2 at 150 and begins with a gap."""
    log = MemoryLog()
    log.put(wal(ONE, 0, b"1" * 80))
    log.put(wal(ONE, 80, b"1" * 50))
    log.put(history(TWO, 100, "1\t0/64\tx\n"), hole=1)
    log.put(wal(TWO, 100, b"2" * 50))
    log.put(history(THREE, 150, "1\t0/64\tx\n2\t0/96\tx\n"))
    log.put(wal(THREE, 151, b"3" * 10))
    assert joined(await pieces(log, ONE, 0, 1000)) == b"1" * 130
    assert joined(await pieces(log, ONE, 90, 100)) == b"1" * 10
    assert joined(await pieces(log, TWO, 100, 1000)) == b"2" * 50
    with pytest.raises(GapError, match="between 0/5A and 0/64 of timeline 2"):
        await pieces(log, TWO, 90, 100)  # 2 has nothing before its start: 1 has it
    with pytest.raises(GapError, match="between 0/96 and 0/97 of timeline 3"):
        await pieces(log, THREE, 150, 160)
    assert await check_wal(log, TWO, Lsn(0), Lsn(150)) == 5
    with pytest.raises(GapError, match="the log ends at 0/96 on timeline 2, before 0/97"):
        await check_wal(log, TWO, Lsn(0), Lsn(151))
    with pytest.raises(GapError, match="between 0/96 and 0/97 of timeline 3"):
        await check_wal(log, THREE, Lsn(0), Lsn(160))


async def test_a_switch_beyond_what_the_log_has_of_the_timeline_before() -> None:
    log = MemoryLog()
    log.put(wal(ONE, 0, bytes(90)))
    log.put(history(TWO, 100, "1\t0/64\tx\n"))
    log.put(wal(TWO, 100, bytes(50)))
    with pytest.raises(GapError, match="the log ends at 0/5A on timeline 1, before 0/64"):
        await check_wal(log, TWO, Lsn(0), Lsn(150))


@pytest.mark.parametrize("up_to_gap", [False, True])
async def test_a_log_that_begins_late_says_where_to_look(up_to_gap: bool) -> None:
    log = MemoryLog(start_offset=7, end_offset=7)
    log.put(wal(ONE, 500, bytes(10)))
    with pytest.raises(GapError, match=r"trimmed: it starts at offset 7, after 0/64 .*--archive"):
        await pieces(log, ONE, 100, 600, up_to_gap=up_to_gap)


async def test_lookups_that_went_wrong_are_no_end_of_the_wal() -> None:
    """Damage that directs a lookup to a later timeline must not look like the end of this one."""
    log = Misleading()
    log.put(wal(ONE, 0, bytes(100)))
    log.put(history(TWO, 100, "1\t0/64\tx\n"))
    log.put(wal(TWO, 100, bytes(100)))
    log.lie = lambda entry: Entry(entry.kind, 77, ONE, Lsn(0), 0, entry.data)
    with pytest.raises(GapError, match="out of order: offset 2 holds 0/64 of timeline 2"):
        await pieces(log, ONE, 50, 100)


class Misleading(MemoryLog):
    """Returns other positions when a single record is requested."""

    lie: Callable[[Entry], Entry] = staticmethod(lambda entry: entry)

    async def read_chunks(self, first, until=None):  # type: ignore[no-untyped-def] # as that of MemoryLog
        from ottla.connect.postgres_wal.entries import decode

        async for chunk in super().read_chunks(first, until):
            if until == first + 1:
                chunk = [each._replace(data=self.lie(decode(each.data)).encode()) for each in chunk]
            yield chunk
