"""A bit flipped in the leader epoch of a batch, which no CRC covers (transactions simulation, seed 82)."""

from __future__ import annotations

import pytest

from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.startup.corrupt_epochs import distrust_epochs_above
from ottla.protocol.records.batch import read_header
from tests.support.sim_broker import BrokerBench
from tests.support.sim_logs import LogBench

CLASSES = ["disk", "cache"]
LEADER_EPOCH_AT = 12
"""Position in a batch: after its offset and its length."""


def overwrite_epoch(bench: LogBench, batches: list[bytes], number: int, epoch: bytes) -> None:
    file = bench.disk.files.open(bench.path("0" * 20 + ".log"))
    file.write_at(sum(map(len, batches[:number])) + LEADER_EPOCH_AT, [epoch])
    file.sync()
    file.close()


def crash_without_state(bench: LogBench) -> None:
    """The log's derived state has to be rebuilt from its bytes."""
    bench.crash("none")
    if bench.disk.files.exists(bench.path("state")):
        bench.disk.files.remove(bench.path("state"))


def epochs_of(batches: list[bytes]) -> list[int]:
    return [read_header(batch).leader_epoch for batch in batches]


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_batch_is_served_with_the_epoch_that_the_log_knows(durability: str, restarts: bool) -> None:
    bench = LogBench(durability, tail_bytes=0)
    batches = bench.fill(batches=4)
    bench.flush()
    if restarts:
        bench.crash("none")
    overwrite_epoch(bench, batches, 1, b"\x08")
    if restarts:
        bench.start()
    assert bench.read_all() == batches
    assert bench.log().damages == []


def test_epochs_around_the_log_start_are_as_they_were() -> None:
    """A batch that contains the log start, and batches of a later epoch."""
    bench = LogBench("cache", tail_bytes=0)
    batches = bench.fill(batches=2, records=3)
    bench.crash("all")
    bench.start()
    batches += bench.fill(batches=2, records=3)
    bench.flush()
    bench.log().advance_start(4, lambda _: None)
    assert bench.read_all() == batches[1:]
    assert epochs_of(batches) == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("flushed", "number", "epoch"),
    [(4, 1, b"\x08"), (2, 1, b"\x08"), (4, 2, b"\xf8")],
    ids=["higher than the next", "higher than the journal's", "lower"],
)
def test_what_a_start_learns_is_named_by_its_neighbours(flushed: int, number: int, epoch: bytes) -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=flushed)
    bench.flush()
    batches += bench.fill(batches=4 - flushed)
    crash_without_state(bench)
    overwrite_epoch(bench, batches, number, epoch)
    bench.start()
    log = bench.log()
    assert [(damage.first_offset, damage.next_offset) for damage in log.damages] == [(number, number + 1)]
    assert list(log.epochs) == [(1, 0)]
    assert log.end_offset == 4


def test_the_last_batch_has_no_neighbour_but_nobody_has_led_in_such_an_epoch() -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=4)
    bench.flush()
    crash_without_state(bench)
    overwrite_epoch(bench, batches, 3, b"\x08")
    bench.start()
    log = bench.log()
    distrust_epochs_above(log, 1)
    assert [(damage.first_offset, damage.next_offset) for damage in log.damages] == [(3, 4)]
    assert list(log.epochs) == [(1, 0)]


def test_an_epoch_without_a_record_that_is_over_is_forgotten_and_nothing_is_damaged() -> None:
    bench = LogBench("disk")
    bench.fill(batches=4)
    log = bench.log()
    log.epochs.note(7, log.end_offset)
    distrust_epochs_above(log, 1)
    assert list(log.epochs) == [(1, 0)]
    assert log.damages == []


async def test_a_broker_goes_on_above_a_last_batch_of_an_epoch_that_has_not_come() -> None:
    bench = BrokerBench()
    await bench.create("orders", durability="cache")
    for value in (b"0", b"1", b"2"):
        assert isinstance(await bench.produce("orders", value=value), int)
    log = bench.partition("orders").log
    assert isinstance(log, FileLog)
    path, last_at = log.active.path, log.active.appended_end * 2 // 3
    bench.crash("all")
    file = bench.disk.files.open(path)
    file.write_at(last_at + LEADER_EPOCH_AT, [b"\x08"])
    file.close()
    bench.start()
    assert await bench.produce("orders", value=b"3") == 3
    await bench.settle()
    log = bench.partition("orders").log
    assert isinstance(log, FileLog)
    assert [(damage.first_offset, damage.next_offset) for damage in log.damages] == [(2, 3)]
    assert list(log.epochs) == [(1, 0), (2, 3)]
