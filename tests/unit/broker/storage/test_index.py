"""The sparse index: lookups by bisection, and validation of its file."""

from __future__ import annotations

from struct import Struct

import pytest

from ottla.broker.storage.index import ENTRY_BYTES, SparseIndex
from tests.support.sim_logs import LogBench


def index_of(*entries: tuple[int, int, int], interval_bytes: int = 1) -> SparseIndex:
    index = SparseIndex(interval_bytes)
    for entry in entries:
        index.note(*entry)
    return index


ENTRIES = [(0, 0, 100), (5, 400, 100), (9, 900, 300), (12, 1500, 300)]


def test_one_entry_for_each_interval() -> None:
    index = SparseIndex(1000)
    for number in range(100):
        index.note(number, number * 150, number)
    assert len(index) == 15
    assert index.entry_for_offset(0) == (0, 0)
    assert index.entry_for_offset(7) == (7, 1050)


def test_an_offset_is_found_at_or_before_its_batch() -> None:
    index = index_of(*ENTRIES)
    assert [index.position_for_offset(offset) for offset in (0, 4, 5, 8, 9, 11, 12, 99)] == [
        0,
        0,
        400,
        400,
        900,
        900,
        1500,
        1500,
    ]


def test_before_the_position_for_a_time_everything_is_older() -> None:
    index = index_of(*ENTRIES)
    # The entry has the maximum up to and including its own batch: the batch at 900 may be the first with 300.
    assert index.position_for_time(0) == 0
    assert index.position_for_time(100) == 0
    assert index.position_for_time(101) == 400
    assert index.position_for_time(300) == 400
    assert index.position_for_time(301) == 1500


def test_what_is_written_reads_back() -> None:
    index = index_of(*ENTRIES)
    again = SparseIndex.parse(index.unpersisted(), 1, 2000)
    assert again.unpersisted() == b""
    assert again.last_entry() == ENTRIES[-1]
    assert [again.entry_for_offset(offset) for offset in range(15)] == [index.entry_for_offset(o) for o in range(15)]


def test_entries_beyond_the_segment_are_left_out() -> None:
    data = index_of(*ENTRIES).unpersisted()
    assert SparseIndex.parse(data, 1, 900).last_entry() == ENTRIES[1]
    assert SparseIndex.parse(data, 1, 0).last_entry() is None


@pytest.mark.parametrize("cut", range(1, ENTRY_BYTES))
def test_a_torn_last_entry_is_left_out(cut: int) -> None:
    data = index_of(*ENTRIES).unpersisted()
    assert SparseIndex.parse(data[:-cut], 1, 2000).last_entry() == ENTRIES[2]


@pytest.mark.parametrize("entry", [(5, 950, 300), (9, 900, 300), (10, 900, 300), (10, 950, 299), (0, 0, 0)])
def test_an_entry_that_does_not_grow_ends_what_is_believed(entry: tuple[int, int, int]) -> None:
    whole = index_of(*ENTRIES).unpersisted()
    odd = bytearray(whole)
    odd[3 * ENTRY_BYTES :] = index_of(entry).unpersisted()
    assert SparseIndex.parse(bytes(odd), 1, 2000).last_entry() == ENTRIES[2]


@pytest.mark.parametrize("byte", range(ENTRY_BYTES))
def test_a_flipped_bit_is_never_believed(byte: int) -> None:
    """A wrong timestamp would hide records from a lookup by time, and nothing else would detect it."""
    data = bytearray(index_of(*ENTRIES).unpersisted())
    data[2 * ENTRY_BYTES + byte] ^= 0x01
    assert SparseIndex.parse(bytes(data), 1, 2000).last_entry() == ENTRIES[1]


def test_zeros_are_no_index() -> None:
    """A power cut may leave zeros in a file that had grown."""
    assert SparseIndex.parse(bytes(ENTRY_BYTES * 4), 1, 2000).last_entry() is None


def test_truncation_forgets_entries_at_and_beyond() -> None:
    index = index_of(*ENTRIES)
    index.truncate(900)
    assert index.last_entry() == ENTRIES[1]
    index.note(9, 900, 300)
    assert index.last_entry() == ENTRIES[2]


def test_a_half_noted_entry_is_not_there_yet() -> None:
    """A disk thread writes the index while the loop appends to it: it must see only complete entries."""

    class Spied(SparseIndex):
        __slots__ = ("seen",)

    index = Spied(1)
    index.seen = []  # type: ignore[attr-defined]  # what a thread would get after each step of an append

    class Watched(list[int]):
        def append(self, value: int) -> None:
            super().append(value)
            index.seen.append(len(index.unpersisted()))  # type: ignore[attr-defined]  # the same

    for name in ("_relative_offsets", "_positions", "_max_timestamps"):
        setattr(index, name, Watched())
    index.note(0, 0, 100)
    index.note(5, 400, 100)
    assert set(index.seen) <= {0, ENTRY_BYTES, 2 * ENTRY_BYTES}  # type: ignore[attr-defined]  # the same
    assert index.last_entry() == (5, 400, 100)


# -- the file ------------------------------------------------------------------------------------------------------


def test_entries_of_a_cut_end_do_not_come_back() -> None:
    """A crash removed the end of a segment, but not of its index: those entries name missing batches."""
    bench = LogBench("disk", settings={"segment_bytes": "100000"})
    old_ms = bench.clock.now_ms()
    kept = bench.fill(batches=10)
    bench.flush()
    bench.fill(batches=30)
    bench.log().segments[0].persist_index()
    bench.disk.files.open(bench.log().segments[0].index_path).sync()
    bench.crash("all")
    # A restart truncates what the journal does not have.
    for name in bench.disk.files.list_dir("/data/journal"):
        bench.disk.files.remove(f"/data/journal/{name}")
    bench.start()
    assert bench.log().end_offset == 10
    bench.settle(100_000)
    new = bench.fill(batches=30)
    bench.flush()
    # The index is not synced: a power cut may restore its earlier content.
    bench.restart("none")
    index = bench.log().segments[0].index
    # According to the index, only the first ten batches are older than the new ones.
    assert index.position_for_time(old_ms + 50_000) <= sum(map(len, kept))
    assert bench.read_all() == kept + new


def test_the_format_of_an_entry() -> None:
    """Offset, position, maximum timestamp, and a checksum of the three."""
    data = index_of((1, 2, 3)).unpersisted()
    assert len(data) == ENTRY_BYTES == 20
    assert Struct(">IIq").unpack_from(data) == (1, 2, 3)
