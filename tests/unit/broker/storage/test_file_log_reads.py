"""Reads of a log on disk: from memory, from the page cache, from the disk; concurrent with removal and damage."""

from __future__ import annotations

import pytest

from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.segment import INDEX_SUFFIX
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import read_header
from tests.support.sim_logs import LogBench, offsets, split

TEMPERATURES = ["tail", "page cache", "disk"]


def cooled(bench: LogBench, temperature: str) -> None:
    """Flushes everything, so that reads come from where the test wants."""
    bench.flush()
    if temperature != "tail":
        bench.shared.tail.forget(bench.log().writer)
    if temperature == "disk":
        bench.disk.drop_page_cache()


@pytest.fixture(params=TEMPERATURES)
def temperature(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_offset_is_found_in_its_batch(temperature: str) -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=40, records=3)
    cooled(bench, temperature)
    for batch in batches:
        header = read_header(batch)
        for offset in range(header.base_offset, header.next_offset):
            assert bench.read(offset) == [batch]


def test_a_read_takes_whole_batches_up_to_its_limit(temperature: str) -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=20)
    cooled(bench, temperature)
    size = len(batches[0])
    assert bench.read(3, max_bytes=3 * size) == batches[3:6]
    assert bench.read(3, max_bytes=3 * size + size - 1) == batches[3:6]


def test_the_first_batch_comes_whole_even_if_it_is_above_the_limit(temperature: str) -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=3, value_bytes=2000)
    cooled(bench, temperature)
    assert bench.read(1, max_bytes=1) == [batches[1]]


def test_nothing_is_read_from_the_bound_on(temperature: str) -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=10, records=2)
    cooled(bench, temperature)
    log = bench.log()
    part = log.read(4, 1 << 20, 8)
    part = part.run() if isinstance(part, ColdRead) else part
    assert isinstance(part, Slice)
    assert split(part) == batches[2:4]
    assert part.next_offset == 8
    # The bound lies inside the batch: the batch is not served at all, not even in part.
    inside = log.read(4, 1 << 20, 5)
    inside = inside.run() if isinstance(inside, ColdRead) else inside
    assert inside == Slice([], 0, 4)
    assert log.read(8, 1 << 20, 8) == Slice([], 0, 8)


def test_reads_after_eviction_equal_reads_before() -> None:
    bench = LogBench("disk", "cache", tail_bytes=2000)
    appended = [bench.fill(number, batches=60) for number in range(2)]
    assert bench.shared.tail.size_bytes <= 2000
    assert [bench.read_all(number) for number in range(2)] == appended
    bench.disk.drop_page_cache()
    assert [bench.read_all(number) for number in range(2)] == appended


# -- concurrent removal ----------------------------------------------------------------------------------------------


def expire_all_but_the_last(bench: LogBench) -> None:
    log = bench.log()
    log.advance_start(log.segments[-1].base_offset, lambda _: None)
    bench.settle()
    bench.retain()


def test_a_read_from_the_disk_outlives_the_removal_of_its_segment() -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=60)
    cooled(bench, "disk")
    log = bench.log()
    read = log.read(2, 1000, log.acknowledged_end)
    assert isinstance(read, ColdRead)
    expire_all_but_the_last(bench)
    assert len(log.segments) == 1
    part = read.run()
    assert isinstance(part, Slice), part
    assert split(part) == batches[2 : 2 + len(split(part))]
    assert split(part)
    assert not log.damages


def test_a_read_never_brings_a_removed_file_back() -> None:
    bench = LogBench("disk")
    bench.fill(batches=60)
    cooled(bench, "disk")
    log = bench.log()
    reads = [log.read(offset, 1000, log.acknowledged_end) for offset in range(0, 20, 4)]
    expire_all_but_the_last(bench)
    left = bench.names()
    for read in reads:
        assert isinstance(read, ColdRead)
        read.run()
    assert bench.names() == left


# -- damage ----------------------------------------------------------------------------------------------------------


def place_in_file(bench: LogBench, batches: list[bytes], number: int) -> tuple[str, int]:
    """Returns the file and position of a batch, as the log wrote them."""
    log = bench.log()
    base = read_header(batches[number]).base_offset
    segment = max((s for s in log.segments if s.base_offset <= base), key=lambda s: s.base_offset)
    before = [b for b in batches[:number] if read_header(b).base_offset >= segment.base_offset]
    return segment.path, sum(map(len, before))


KINDS_OF_DAMAGE = {
    "value": (80, 4, 0xFF),
    "crc": (17, 1, 0x01),
    "large length": (8, 1, 0x40),
    "small length": (11, 1, 0x01),
    "magic": (16, 1, 0x02),
    "negative base offset": (0, 8, 0xFF),
    "base offset far ahead": (1, 1, 0x01),
    "base offset a little off": (7, 1, 0x02),
    "last offset far ahead": (26, 1, 0x40),
    "whole header": (0, 61, 0xFF),
}
"""Position in the batch, length, bits. The CRC does not cover the base offset."""


@pytest.mark.parametrize("kind", KINDS_OF_DAMAGE)
@pytest.mark.parametrize("from_disk", [False, True], ids=["page cache", "disk"])
@pytest.mark.parametrize("number", [0, 1, 7, 22, 23, 30, 39])
def test_a_damaged_batch_is_refused_and_all_others_are_served(kind: str, from_disk: bool, number: int) -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=40, records=2)
    cooled(bench, "disk" if from_disk else "page cache")
    path, position = place_in_file(bench, batches, number)
    at, length, mask = KINDS_OF_DAMAGE[kind]
    bench.disk.damage(path, position + at, mask, length)

    seen = {offset: bench.read(offset) for offset in [*range(80), *reversed(range(80))]}

    bad = {2 * number, 2 * number + 1}
    assert {offset for offset, part in seen.items() if part == ErrorCode.corrupt_message} == bad
    for offset in set(range(80)) - bad:
        assert seen[offset] == [batches[offset // 2]]
    log = bench.log()
    assert [(damage.path, damage.position) for damage in log.damages] == [(path, position)]
    assert (log.damages[0].first_offset, log.damages[0].next_offset) == (2 * number, 2 * number + 2)
    assert any(path in report and str(position) in report for report in bench.reports)
    assert (log.start_offset, log.end_offset) == (0, 80)


@pytest.mark.parametrize("kind", KINDS_OF_DAMAGE)
@pytest.mark.parametrize("durability", ["disk", "cache"])
@pytest.mark.parametrize("with_index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("number", [0, 10, 22, 23, 39])
def test_damage_survives_a_restart_as_damage(kind: str, durability: str, with_index: bool, number: int) -> None:
    """Nothing is truncated and neither start nor end move, whatever the restart reads."""
    bench = LogBench(durability)
    batches = bench.fill(batches=40)
    bench.flush()
    path, position = place_in_file(bench, batches, number)
    at, length, mask = KINDS_OF_DAMAGE[kind]
    bench.disk.damage(path, position + at, mask, length)
    if not with_index:
        for name in bench.names():
            if name.endswith(INDEX_SUFFIX):
                bench.disk.files.remove(bench.path(name))
    bench.restart()
    log = bench.log()
    assert (log.start_offset, log.end_offset) == (0, 40)
    assert [bench.read(offset) for offset in range(40)] == [
        [batch] if index != number else ErrorCode.corrupt_message for index, batch in enumerate(batches)
    ]
    assert log.damages
    more = bench.fill(batches=3)
    assert [bench.read(40 + index) for index in range(3)] == [[batch] for batch in more]


def test_two_damaged_places_in_one_segment() -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=20)
    cooled(bench, "disk")
    for number in (4, 9):
        path, position = place_in_file(bench, batches, number)
        bench.disk.damage(path, position, 0xFF, 100)
    seen = [bench.read(offset) for offset in range(20)]
    assert [offset for offset, part in enumerate(seen) if part == ErrorCode.corrupt_message] == [4, 9]
    assert [part for part in seen if isinstance(part, list)] == [[b] for n, b in enumerate(batches) if n not in (4, 9)]


# -- wrong index entries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("byte", "mask"),
    [*((byte, mask) for byte in range(16) for mask in (0x01, 0x40, 0xFF)), *((3, mask) for mask in range(2, 16))],
)
def test_a_damaged_index_neither_hides_nor_invents(byte: int, mask: int) -> None:
    """One byte of entry 3 of the index file is damaged: reads and lookups by time are unaffected."""
    bench = LogBench("disk")
    batches = bench.fill(batches=20)
    bench.flush()
    path = bench.path(f"{0:020d}{INDEX_SUFFIX}")
    entry_bytes = len(bench.disk.files.read_file(path)) // len(bench.log().segments[0].index)
    bench.disk.damage(path, 3 * entry_bytes + byte, mask)
    bench.restart()
    for cold in (False, True):
        if cold:
            bench.disk.drop_page_cache()
        assert [bench.read(offset) for offset in range(20)] == [[batch] for batch in batches]
    assert not bench.log().damages


def test_a_missing_index_is_built_again() -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=40)
    bench.flush()
    sizes = [len(segment.index) for segment in bench.log().segments]
    for name in bench.names():
        if name.endswith(INDEX_SUFFIX):
            bench.disk.files.remove(bench.path(name))
    bench.restart()
    assert bench.read_all() == batches
    assert [len(segment.index) for segment in bench.log().segments] == sizes
    assert offsets(bench.read_all()) == list(range(40))
