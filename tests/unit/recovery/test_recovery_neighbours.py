"""Damage that a start finds while it rebuilds the state of producers from a log's batches."""

from __future__ import annotations

import pytest

from tests.support.sim_logs import LogBench

CLASSES = ["disk", "cache"]


@pytest.mark.parametrize("durability", CLASSES)
def test_a_batch_that_does_not_read_back_is_named_when_its_producer_is_learned_again(durability: str) -> None:
    """Without the producer's batch its retry would be appended again (simulation, seed 332)."""
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
