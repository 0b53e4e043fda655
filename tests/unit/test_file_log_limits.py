"""Where logs of one broker still harm one another or the machine: known, and to be changed."""

from __future__ import annotations

import pytest

from ottla.log.journal import JournalLimits
from ottla.model.errors import Refused
from tests.unit.sim_logs import LogBench, key_of

SMALL_RING = JournalLimits(ring_bytes_max=64 * 1024, file_bytes_max=16 * 1024, group_bytes_max=8 * 1024)


@pytest.mark.xfail(strict=True, reason="a full ring holds acknowledgements back, but appends go on into memory")
def test_a_full_ring_refuses_before_memory_runs_out() -> None:
    """SAFETY 10: a full ring is back-pressure. A disk that stands still must not fill the memory."""
    bench = LogBench("disk", limits=SMALL_RING)
    bench.disk.stall("journal")
    taken_bytes = 0
    while taken_bytes < 100 * SMALL_RING.ring_bytes_max:
        batch = bench.append(value_bytes=4000)
        if isinstance(batch, Refused):
            break
        taken_bytes += len(batch)
    assert taken_bytes < 20 * SMALL_RING.ring_bytes_max


@pytest.mark.xfail(strict=True, reason="the journal keeps the entries of a failed log, and with them its space")
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
