"""Limits that keep the logs of a broker from harming one another or the machine."""

from __future__ import annotations

import pytest

from ottla.broker.storage.journal import JournalLimits
from ottla.protocol.model.errors import Refused
from ottla.sim.disk import QueueName
from tests.support.sim_logs import LogBench, key_of

SMALL_RING = JournalLimits(ring_bytes_max=64 * 1024, file_bytes_max=16 * 1024, group_bytes_max=8 * 1024)


@pytest.mark.parametrize(("durability", "queue"), [("disk", "journal"), ("disk", "segment"), ("cache", "segment")])
def test_a_disk_that_stands_still_does_not_fill_the_memory(durability: str, queue: QueueName) -> None:
    """A full ring causes back-pressure: requests that timed out are answered, but their batches still wait.

    (safety: journal-space)
    """
    bench = LogBench(durability, limits=SMALL_RING, tail_bytes=1000, unwritten_bytes=512 * 1024)
    bench.disk.stall(queue)
    taken: list[bytes] = []
    while sum(map(len, taken)) < 4 * 1024 * 1024:
        batch = bench.append(value_bytes=4000)
        if isinstance(batch, Refused):
            assert "is too slow" in (batch.message or "")
            break
        taken.append(batch)
        bench.settle(1)
    assert 256 * 1024 < sum(map(len, taken)) < 600 * 1024
    bench.disk.release(queue)
    bench.settle(10_000)
    taken += bench.fill(batches=3)
    assert bench.log().acknowledged_end == len(taken)
    assert bench.read_all() == taken


def test_a_log_that_failed_for_good_does_not_stop_the_others() -> None:
    bench = LogBench("disk", "disk", limits=SMALL_RING)
    bench.fill(0, batches=10)
    bench.disk.faults.fail_sync(path=bench.store.directory_of(key_of(0)), count=None)
    bench.flusher.run(everything=True)
    bench.settle(5000)
    assert bench.log(0).failed is not None
    for _ in range(20):
        bench.fill(1, batches=10, value_bytes=1000)
        bench.flusher.run(everything=True)
        bench.settle()
    assert bench.log(1).acknowledged_end == bench.log(1).end_offset
