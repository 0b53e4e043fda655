"""Damage that a start finds while it learns from a log's batches who wrote them and when."""

from __future__ import annotations

import pytest

from ottla.records.batch import read_header
from tests.unit.sim_logs import LogBench

CLASSES = ["disk", "cache"]
LEADER_EPOCH_AT = 12
"""In a batch: behind its offset and its length."""


@pytest.mark.parametrize("durability", CLASSES)
def test_a_batch_that_does_not_read_back_is_named_when_its_producer_is_learned_again(durability: str) -> None:
    """Whoever does not know of a producer's batch would take its retry for a new one (simulation, seed 332)."""
    bench = LogBench(durability)
    batches = []
    for sequence in range(4):
        batch = bench.append(producer=(7, 0, sequence))
        assert isinstance(batch, bytes)
        batches.append(batch)
    bench.settle()
    bench.flush()
    bench.crash("none")
    if bench.disk.files.exists(bench.path("state")):
        bench.disk.files.remove(bench.path("state"))
    file = bench.disk.files.open(bench.path("0" * 20 + ".log"))
    last_byte_at = len(batches[0]) + len(batches[1]) - 1
    file.write_at(last_byte_at, [bytes([file.read_at(last_byte_at, 1)[0] ^ 1])])
    file.sync()
    file.close()
    bench.start()
    assert [(damage.first_offset, damage.next_offset) for damage in bench.log().damages] == [(1, 2)]


@pytest.mark.parametrize(
    ("flushed", "number", "epoch"),
    [(4, 1, b"\x08"), (2, 1, b"\x08"), (4, 2, b"\xf8")],
    ids=["higher than the next", "higher than the journal's", "lower"],
)
def test_a_leader_epoch_that_was_damaged_is_named_by_its_neighbours(flushed: int, number: int, epoch: bytes) -> None:
    """No CRC covers it (simulation with transactions, seed 82)."""
    bench = LogBench("disk")
    batches = bench.fill(batches=flushed)
    bench.flush()
    batches += bench.fill(batches=4 - flushed)
    bench.crash("none")
    if bench.disk.files.exists(bench.path("state")):
        bench.disk.files.remove(bench.path("state"))
    file = bench.disk.files.open(bench.path("0" * 20 + ".log"))
    file.write_at(sum(map(len, batches[:number])) + LEADER_EPOCH_AT, [epoch])
    file.sync()
    file.close()
    bench.start()
    log = bench.log()
    assert [(damage.first_offset, damage.next_offset) for damage in log.damages] == [(number, number + 1)]
    assert list(log.epochs) == [(read_header(batches[0]).leader_epoch, 0)]
    assert log.end_offset == 4
