"""Positions, timelines, entries, the plan of a receiver, warnings: the pure parts of PostgreSQL's WAL on the log."""

from __future__ import annotations

import datetime
import io
import random

import pytest

from ottla.connect.postgres_wal.entries import Entry, ForeignEntryError, Kind, decode
from ottla.connect.postgres_wal.failures import RefusedError
from ottla.connect.postgres_wal.log_search import first_entry, last_entry, offset_of
from ottla.connect.postgres_wal.pieces import GapError
from ottla.connect.postgres_wal.positions import (
    Lsn,
    Segment,
    TimelineId,
    parse_lsn,
    segment_of_name,
    timeline_of_history_name,
)
from ottla.connect.postgres_wal.receiver_plan import LogEnd, first_step, next_step
from ottla.connect.postgres_wal.recovery_files import restore_command
from ottla.connect.postgres_wal.segments import write_segment
from ottla.connect.postgres_wal.server import Identity
from ottla.connect.postgres_wal.slot_bound import SlotWatch, parse_size
from ottla.connect.postgres_wal.targets import AtLsn, AtTime, AtXid, parse_target
from ottla.connect.postgres_wal.timelines import parse_history
from tests.support.postgres_wal_log import ONE, THREE, TWO, MemoryLog, wal

MIB = 1 << 20
SEGMENT = 16 * MIB
HISTORY_OF_THREE = b"1\t0/3000148\tno recovery target specified\n\n2\t0/5000000\tbefore 2026\n"


def test_names_of_files() -> None:
    segment = segment_of_name("0000000200000016000000B", SEGMENT)
    assert segment is None
    segment = segment_of_name("0000000200000016000000B3", SEGMENT)
    assert segment == Segment(TWO, Lsn(0x16_B3000000), SEGMENT)
    assert segment.name == "0000000200000016000000B3"
    assert timeline_of_history_name("0000001F.history") == 31
    assert timeline_of_history_name("0000000200000016000000B3") is None
    assert parse_lsn("16/B374D848") == 0x16_B374D848


def test_histories() -> None:
    history = parse_history(THREE, HISTORY_OF_THREE)
    assert [each.timeline for each in history.stretches] == [1, 2, 3]
    assert history.begin == parse_lsn("0/5000000")
    pieces = list(history.pieces(parse_lsn("0/3000000"), parse_lsn("0/6000000")))
    assert pieces == [
        (1, parse_lsn("0/3000000"), parse_lsn("0/3000148")),
        (2, parse_lsn("0/3000148"), parse_lsn("0/5000000")),
        (3, parse_lsn("0/5000000"), parse_lsn("0/6000000")),
    ]
    for wrong in (b"nonsense", b"3\t0/1\tx", b"2\t0/1\tx\n1\t0/2\tx"):
        with pytest.raises(ValueError, match=r"history file|ancestor"):
            parse_history(THREE, wrong)


def test_entries_come_back() -> None:
    entry = wal(TWO, 2**63, b"bytes")
    back = decode(entry.encode())
    assert (back.kind, back.system_id, back.key, back.end, bytes(back.data)) == (
        Kind.WAL,
        77,
        entry.key,
        2**63 + 5,
        b"bytes",
    )
    for wrong in (b"", b"PGW1", b"x" * 100, b"PGW1\xff" + bytes(40)):
        with pytest.raises(ForeignEntryError):
            decode(wrong)


def test_where_a_stream_goes_on() -> None:
    end = LogEnd(77, ONE, Lsn(1000))
    assert first_step(Identity(77, ONE, Lsn(SEGMENT + 5)), None, SEGMENT).start == SEGMENT
    assert next_step(end, Identity(77, ONE, Lsn(1000)), None).start == 1000
    with pytest.raises(RefusedError, match="another database"):
        next_step(end, Identity(78, ONE, Lsn(1000)), None)
    with pytest.raises(RefusedError, match="the server has lost WAL"):
        next_step(end, Identity(77, ONE, Lsn(999)), None)
    with pytest.raises(RefusedError, match="still on timeline 1"):
        next_step(LogEnd(77, TWO, Lsn(10)), Identity(77, ONE, Lsn(1000)), None)
    with pytest.raises(RefusedError, match="does not descend from"):
        next_step(LogEnd(77, TWO, Lsn(10)), Identity(77, THREE, Lsn(1000)), parse_history(THREE, b"1\t0/100\tx\n"))


def test_over_timelines() -> None:
    """First the rest of the log's timeline, then each following one, not the server's latest at once."""
    server, history = Identity(77, THREE, Lsn(9 * MIB)), parse_history(THREE, b"1\t0/100000\tx\n2\t0/200000\tx\n")
    step = next_step(LogEnd(77, ONE, Lsn(0xF0000)), server, history)
    assert (step.timeline, step.start, step.is_new) == (ONE, 0xF0000, False)
    step = next_step(LogEnd(77, ONE, Lsn(0x100000)), server, history)
    assert (step.timeline, step.start, step.is_new, step.left_out) == (TWO, 0x100000, True, 0)
    step = next_step(LogEnd(77, ONE, Lsn(0x100010)), server, history)
    assert (step.timeline, step.start, step.left_out) == (TWO, 0x100000, 16)


async def test_lookups_in_a_log_with_holes() -> None:
    chance = random.Random(7)
    for _ in range(30):
        log, keys, at = MemoryLog(), [], 0
        for timeline in (ONE, TWO, THREE):
            log.put(Entry(Kind.HISTORY, 77, timeline, Lsn(at), 0, f"of {timeline}".encode()), chance.choice([0, 0, 9]))
            for _ in range(chance.randrange(1, 12)):
                data = bytes(chance.randrange(1, 50))
                log.put(wal(timeline, at, data), chance.choice([0, 0, 1, 30]))
                keys.append((timeline, at, log.records[-1].offset))
                at += len(data)
        log.end_offset += chance.choice([0, 5])
        for timeline, start, offset in keys:
            assert await offset_of(log, timeline, Lsn(start)) == offset
        assert await offset_of(log, TimelineId(0), Lsn(10)) is None
        last, first = await last_entry(log), await first_entry(log)
        assert last is not None
        assert last.offset == keys[-1][2]
        assert first is not None
        assert first.entry.kind is Kind.HISTORY
    assert await last_entry(MemoryLog(end_offset=3)) is None


async def test_a_segment_over_two_timelines() -> None:
    content = random.Random(1).randbytes(MIB)
    log = MemoryLog()
    log.put(wal(ONE, 0, content[:600_000]))
    log.put(wal(ONE, 600_000, b"never completed"))
    log.put(Entry(Kind.HISTORY, 77, TWO, Lsn(0x927C0), 0, b"1\t0/927C0\tx\n"), hole=1)
    log.put(wal(TWO, 0x927C0, content[0x927C0:900_000]))
    assert await assembled(log, Segment(TWO, Lsn(0), MIB)) == content[:900_000] + bytes(MIB - 900_000)
    old = await assembled(log, Segment(ONE, Lsn(0), MIB))
    assert old == content[:600_000] + b"never completed" + bytes(MIB - 600_015)
    assert await assembled(log, Segment(TWO, Lsn(MIB), MIB)) is None
    assert await assembled(log, Segment(THREE, Lsn(0), MIB)) is None


async def test_a_gap_is_no_end() -> None:
    log = MemoryLog()
    log.put(wal(ONE, 0, bytes(1000)))
    log.put(Entry(Kind.GAP, 77, ONE, Lsn(5000), 0, b"why"))
    log.put(wal(ONE, 5000, b"x" * 1000))
    with pytest.raises(GapError, match="no WAL between 0/3E8 and 0/1388"):
        await assembled(log, Segment(ONE, Lsn(0), MIB))
    assert await assembled(log, Segment(ONE, Lsn(0), MIB), up_to_gap=True) == bytes(MIB)
    log = MemoryLog(start_offset=5, end_offset=5)
    log.put(wal(ONE, 5000, b"x"))
    with pytest.raises(GapError, match="trimmed"):
        await assembled(log, Segment(ONE, Lsn(0), MIB))


async def assembled(log: MemoryLog, segment: Segment, *, up_to_gap: bool = False) -> bytes | None:
    out = io.BytesIO()
    return out.getvalue() if await write_segment(log, segment, out, up_to_gap=up_to_gap) else None


def test_warnings_come_once_at_each_threshold() -> None:
    watch = SlotWatch(parse_size("1GB"))
    said = [watch.warning(percent * (1 << 30) // 100) for percent in (1, 24, 26, 30, 51, 51, 80, 95, 99, 10, 10, 26)]
    assert ["!" if each else "-" for each in said] == list("--!-!-!!-!-!")
    assert "max_slot_wal_keep_size" in str(said[2])
    assert "without a limit" in str(SlotWatch(parse_size("-1")).warning(1 << 30))
    assert parse_size("16MB") == SEGMENT
    assert parse_size("0") == 0


def test_moments() -> None:
    assert parse_target("16/B374D848") == AtLsn(parse_lsn("16/B374D848"))
    assert parse_target("748113") == AtXid(748113)
    noon = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)
    assert parse_target("2026-11-16T13:00:00+01:00") == AtTime(int(noon.timestamp()) * 1_000_000)
    with pytest.raises(ValueError, match="neither a time"):
        parse_target("soon")


def test_the_command_tells_no_more_from_do_not_know() -> None:
    """As a shell runs it, with the values that the server substitutes for %f and %p."""
    import subprocess

    for code, expected in ((0, 0), (44, 1), (1, 255), (2, 255), (126, 255), (137, 255)):
        command = restore_command(["sh", "-c", f"exit {code}"]).replace("%f", "name").replace("%p", "path")
        assert subprocess.run(["sh", "-c", command], check=False).returncode == expected
    assert "50%%" in restore_command(["50%"])
