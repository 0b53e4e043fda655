"""A log that was truncated and then fails for good is rescued up to its end, and the others continue."""

from __future__ import annotations

import pytest

from ottla.broker.storage.data_layout import log_name
from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.truncation import Truncation
from ottla.sim.disk import Keep
from tests.support.sim_logs import LogBench, key_of

RING = JournalLimits(ring_bytes_max=128 * 1024, file_bytes_max=16 * 1024, group_bytes_max=8 * 1024)
FAILING, OTHER = 0, 1


def test_what_was_taken_back_is_not_waited_for() -> None:
    bench = LogBench("disk", "disk", limits=RING)
    appended = [batch for _ in range(10) for batch in bench.fill(FAILING, batches=1)]
    Truncation(bench.log(FAILING), bench.flusher, 1, lambda _: None).begin()
    bench.settle()
    kept = [appended[0], *bench.fill(FAILING, batches=1)]
    oldest = bench.journal.oldest()
    assert oldest is not None
    assert oldest[1][bench.log(FAILING)] > bench.log(FAILING).end_offset, "the oldest file knows a higher end"
    bench.disk.faults.fail_sync(path=bench.store.directory_of(key_of(FAILING)), count=None)
    bench.flusher.run()
    bench.settle(2000)
    assert bench.log(FAILING).failed is not None
    for _ in range(80):
        bench.append(OTHER)
        bench.settle(200)
    assert bench.log(OTHER).acknowledged_end == 80, "the ring is full of what nobody needs"
    bench.restart("none")
    assert bench.read_all(FAILING) == kept
    assert bench.log(OTHER).end_offset == 80


@pytest.mark.parametrize("keep", ["none", "all"])
def test_a_truncation_that_the_journal_still_has_costs_nothing(keep: Keep) -> None:
    """The next start opens the log up to the truncation, although it was flushed further since. The rescued file begins
    there, so the journal has to fill what lies between. Found by seed 210224 of the simulation of logs."""
    bench = LogBench("disk", limits=RING)
    kept = bench.fill(batches=10)[:4]
    Truncation(bench.log(), bench.flusher, 4, lambda _: None).begin()
    bench.settle()
    kept += bench.fill(batches=5)
    bench.flusher.run(logs=[bench.log()])
    bench.settle()
    point = bench.log().durable.recovery_point
    assert point is not None
    assert point.offset == 9
    kept += bench.fill(batches=3)
    bench.disk.faults.fail_sync(path=bench.store.directory_of(key_of(0)), count=None)
    bench.disk.faults.fail_sync(path="/data/checkpoint", count=None)
    for _ in range(2):
        bench.flusher.run(everything=True)
        bench.settle(2000)
    assert bench.disk.files.list_dir(f"/data/rescued/{log_name(key_of(0))}") == [f"{9:020d}-{12:020d}.log"]
    bench.restart(keep)
    assert not bench.log().damages
    assert bench.read_all() == kept
