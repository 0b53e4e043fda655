"""The journal lost payloads but still knows their logs: their offsets are reported as lost and never reused."""

from __future__ import annotations

import pytest

from ottla.broker.storage.journal.format import BLOCK_HEADER_BYTES, ENTRY_BYTES
from ottla.broker.storage.truncation import Truncation
from ottla.protocol.model.errors import ErrorCode
from tests.support.sim_logs import LogBench, offsets

JOURNAL = "/data/journal/journal-0001"
BLOCK_BYTES = 4096


class Entries:
    """Log 0 has batches in the journal, a block for each call of `append`; log 1 has the last block, so that everything
    before it is known to be acknowledged."""

    def __init__(self, *, flushed: int = 0) -> None:
        self.bench = LogBench("disk", "disk")
        self.batches = self.bench.fill(0, batches=flushed)
        self.bench.flush()  # released blocks are overwritten: the first relevant block is the first of the file

    def append(self, count: int) -> None:
        self.batches += self.bench.fill(0, batches=count)

    def damage(self, block: int, entry: int, count: int) -> None:
        """Damages the payload of this entry, one of `count` in the block."""
        size = len(self.batches[-1])
        at = BLOCK_HEADER_BYTES + count * ENTRY_BYTES + entry * size + 80
        self.bench.disk.damage(JOURNAL, block * BLOCK_BYTES + at)

    def restart(self) -> None:
        self.bench.fill(1, batches=1)
        self.bench.restart("none")

    def check(self, lost: list[tuple[int, int]], end: int) -> None:
        """Checks twice: the next start reports it too."""
        for _ in range(2):
            log = self.bench.log(0)
            assert [(damage.first_offset, damage.next_offset) for damage in log.damages] == lost
            assert log.end_offset == log.acknowledged_end == end
            for offset in range(end):
                expected = [self.batches[offset]]
                if any(first <= offset < following for first, following in lost):
                    assert self.bench.read(offset) == ErrorCode.corrupt_message
                else:
                    found = self.bench.read(offset)
                    assert isinstance(found, list)
                    assert found[:1] == expected
            self.bench.restart("none")
        assert offsets(self.bench.fill(0, batches=1)) == [end]


@pytest.mark.parametrize("flushed", [0, 7])
def test_the_last_ones_are_named_and_the_log_goes_on_above_them(flushed: int) -> None:
    entries = Entries(flushed=flushed)
    entries.append(3)
    entries.append(2)
    entries.damage(1, 1, 2)
    entries.restart()
    assert any("sequences" in line and "journal-0001" in line for line in entries.bench.reports)
    entries.check([(flushed + 4, flushed + 5)], flushed + 5)


def test_all_that_the_log_had() -> None:
    entries = Entries()
    entries.append(1)
    entries.damage(0, 0, 1)
    entries.restart()
    entries.check([(0, 1)], 1)


def test_several_that_follow_one_another_are_one_place() -> None:
    entries = Entries()
    entries.append(2)
    entries.append(2)
    entries.append(2)
    entries.damage(1, 1, 2)
    entries.damage(2, 0, 2)
    entries.restart()
    entries.check([(3, 5)], 6)


def test_lost_ones_between_others() -> None:
    entries = Entries()
    entries.append(3)
    entries.append(3)
    entries.damage(0, 1, 3)
    entries.damage(1, 1, 3)
    entries.restart()
    entries.check([(1, 2), (4, 5)], 6)


def test_a_start_that_was_moved_above_the_lost_ones() -> None:
    entries = Entries()
    entries.append(3)
    entries.damage(0, 2, 3)
    entries.bench.log(0).advance_start(3, lambda _: None)
    entries.bench.settle()
    entries.restart()
    log = entries.bench.log(0)
    assert (log.start_offset, log.end_offset) == (3, 3)
    assert offsets(entries.bench.fill(0, batches=1)) == [3]


def test_lost_ones_that_the_segments_have_are_no_loss() -> None:
    entries = Entries()
    entries.append(3)
    entries.bench.flusher.run(logs=[entries.bench.log(0)])
    entries.append(1)
    entries.damage(0, 1, 3)
    entries.restart()
    assert any("journal is damaged" in line for line in entries.bench.reports)
    entries.check([], 4)


def test_lost_ones_that_were_taken_back_are_no_loss() -> None:
    entries = Entries()
    entries.append(5)
    entries.damage(0, 4, 5)
    Truncation(entries.bench.log(0), entries.bench.flusher, 3, lambda _: None).begin()
    entries.bench.settle()
    del entries.batches[3:]
    entries.append(1)
    entries.restart()
    entries.check([], 4)


def test_entries_whose_headers_are_unreadable_are_reported_as_damage_of_any_log() -> None:
    entries = Entries()
    entries.append(3)
    entries.append(2)
    entries.bench.disk.damage(JOURNAL, BLOCK_BYTES + BLOCK_HEADER_BYTES + 5)
    entries.restart()
    assert any("acknowledged records may be missing" in line for line in entries.bench.reports)
    assert entries.bench.log(0).end_offset == 3
