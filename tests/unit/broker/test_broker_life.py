"""A broker across restarts: epochs, ids, reserved offsets, clean stops, and housekeeping."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping

import pytest

from ottla.broker.partition.waits import FetchWatch
from ottla.broker.standalone.offset_reservations import OFFSETS_RESERVED
from ottla.broker.storage.memory_log import MemoryLog
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId
from ottla.protocol.records.batch import read_header
from ottla.sim.catalog import SimCatalog
from ottla.sim.disk import Keep
from tests.support.sim_broker import BrokerBench
from tests.support.sim_logs import split

CLASSES = ["disk", "cache", "memory"]


# -- epochs and ids --------------------------------------------------------------------------------------------------


async def test_the_leader_epoch_grows_with_each_start() -> None:
    """Records lost in a crash are never confused with the ones that follow (safety: one-history)."""
    bench = BrokerBench()
    await bench.create("t", 2)
    seen = []
    for keep in ("none", "all", "some", "none"):
        seen.append(bench.partition("t", 1).leader_epoch)
        await bench.produce("t")
        bench.restart(keep)
    assert seen == [1, 2, 3, 4]
    part = bench.partition("t").log.read(0, 1 << 20, 99)
    assert [read_header(batch).leader_epoch for batch in split(part)] == [1, 2, 3, 4]  # type: ignore[arg-type]  # a Slice


async def test_producer_ids_never_repeat() -> None:
    bench = BrokerBench()
    given: list[int] = []
    for keep in ("none", "all", "none"):
        for _ in range(5):
            allocated = await bench.until(bench.broker.producer_ids.allocate())
            assert isinstance(allocated, int)
            given.append(allocated)
        bench.restart(keep)
    assert len(set(given)) == len(given)


async def test_producer_ids_of_many_at_once() -> None:
    bench = BrokerBench()
    allocated = await bench.until(asyncio.gather(*(bench.broker.producer_ids.allocate() for _ in range(2500))))
    assert len(set(allocated)) == 2500


async def test_no_producer_id_without_the_catalog() -> None:
    bench = BrokerBench()
    bench.catalog.fail(errno.ENOSPC)
    refused = await bench.until(bench.broker.producer_ids.allocate())
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.kafka_storage_error
    bench.catalog.fail(None)
    assert isinstance(await bench.until(bench.broker.producer_ids.allocate()), int)


# -- memory logs (safety: memory-loss) -------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["none", "all"])
async def test_a_memory_log_goes_on_above_every_offset_it_gave_out(keep: Keep) -> None:
    bench = BrokerBench()
    await bench.create("t", durability="memory")
    last = -1
    for _ in range(4):
        for _ in range(3):
            offset = await bench.produce("t", records=10)
            assert isinstance(offset, int)
            assert offset > last
            last = offset + 9
        bench.restart(keep)
        partition = bench.partition("t")
        assert partition.log.start_offset == partition.log.end_offset > last
        assert await bench.values("t") == []


async def test_reserved_offsets_are_taken_in_time() -> None:
    bench = BrokerBench()
    await bench.create("t", durability="memory")
    log = bench.partition("t").log
    assert isinstance(log, MemoryLog)
    assert log.reserved_end == OFFSETS_RESERVED
    log.end_offset = OFFSETS_RESERVED - 10
    await bench.settle(1000)
    assert log.reserved_end > OFFSETS_RESERVED
    assert list(bench.catalog.load().reserved_offsets.values()) == [log.reserved_end]


class StingyCatalog(SimCatalog):
    """Accepts everything except reservations."""

    stingy = True

    def reserve_offsets(self, ends: Mapping[tuple[TopicId, int], int]) -> None:
        if self.stingy:
            raise OSError(errno.ENOSPC, "no space left")
        super().reserve_offsets(ends)


async def test_a_memory_log_without_reserved_offsets_refuses_until_it_has_them() -> None:
    bench = BrokerBench()
    catalog = StingyCatalog()
    bench.metadata.catalog.blocking = catalog
    await bench.create("t", durability="memory")
    assert await bench.produce("t") is ErrorCode.kafka_storage_error
    catalog.stingy = False
    await bench.settle(1000)
    assert await bench.produce("t") == 0


async def test_failed_reservations_are_reported_once() -> None:
    bench = BrokerBench()
    catalog = StingyCatalog()
    catalog.stingy = False
    bench.metadata.catalog.blocking = catalog
    await bench.create("t", durability="memory")
    log = bench.partition("t").log
    for end_offset in (OFFSETS_RESERVED - 10, 2 * OFFSETS_RESERVED - 10):
        assert bench.reports == []
        catalog.stingy = True
        log.end_offset = end_offset
        await bench.settle(2000)
        assert bench.reports == ["cannot reserve offsets for memory topics: [Errno 28] no space left"]
        catalog.stingy = False
        await bench.settle(1000)
        bench.reports.clear()


async def test_a_reservation_that_is_cancelled_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of the event loop, which cancels every task."""
    bench = BrokerBench()
    await bench.create("t", durability="memory")
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    before = asyncio.all_tasks()
    monkeypatch.setattr(bench.metadata.catalog, "run", lambda job: asyncio.get_running_loop().create_future())
    bench.partition("t").log.end_offset = OFFSETS_RESERVED - 10
    await bench.settle(1000)
    reservations = asyncio.all_tasks() - before
    assert reservations
    for each in reservations:
        each.cancel()
    await bench.settle(100)
    assert complaints == []


async def test_partitions_that_are_added_have_reserved_offsets() -> None:
    bench = BrokerBench()
    topic = await bench.create("t", durability="memory")
    assert await bench.until(bench.admin.create_partitions(topic, 3)) is None
    assert await bench.produce("t", 2) == 0
    bench.restart("none")
    assert bench.partition("t", 2).log.start_offset >= 1


async def test_memory_is_bounded_and_given_back() -> None:
    bench = BrokerBench(ottla_memory_max_bytes="100000")
    topic = await bench.create("t", durability="memory", retention_ms="5000")
    while (outcome := await bench.produce("t", value=bytes(5000))) is not ErrorCode.kafka_storage_error:
        assert isinstance(outcome, int)
    assert bench.broker.context.shared.memory.size_bytes <= 100_000
    await bench.settle(10_000)
    assert isinstance(await bench.produce("t", value=bytes(5000)), int)
    assert await bench.until(bench.admin.delete_topic(topic)) is None
    assert bench.broker.context.shared.memory.size_bytes == 0


# -- clean stops -----------------------------------------------------------------------------------------------------


async def test_a_clean_stop_leaves_nothing_to_replay() -> None:
    bench = BrokerBench()
    for durability in ("disk", "cache"):
        await bench.create(durability, 3, durability=durability)
        for number in range(30):
            await bench.produce(durability, number % 3, value=b"%d" % number)
    await bench.stop()
    bench.restart("none")
    assert bench.broker.context.store.replayed.batches == 0
    for durability in ("disk", "cache"):
        values = [value for index in range(3) for value in await bench.values(durability, index)]
        assert sorted(values, key=int) == [b"%d" % number for number in range(30)]


async def test_a_clean_stop_takes_what_nobody_waits_for() -> None:
    """acks=0: the records are accepted, and a stop must not lose them."""
    bench = BrokerBench()
    for durability in ("disk", "cache"):
        await bench.create(durability, durability=durability)
        for _ in range(200):
            assert not isinstance(bench.append(durability, value=bytes(1000)), Refused)
    await bench.stop()
    bench.restart("none")
    assert [len(await bench.values(name)) for name in ("disk", "cache")] == [200, 200]


@pytest.mark.parametrize("fault", ["journal", "segment", "checkpoint"])
async def test_a_stop_ends_whatever_fails(fault: str) -> None:
    bench = BrokerBench()
    await bench.create("disk", durability="disk")
    await bench.create("cache", durability="cache")
    for name in ("disk", "cache"):
        await bench.produce(name, value=b"kept")
    path = {"journal": "/journal/", "segment": ".log", "checkpoint": "/data/checkpoint"}[fault]
    bench.disk.faults.fail_write(path=path, count=None)
    bench.disk.faults.fail_sync(path=path, count=None)
    for name in ("disk", "cache"):
        bench.append(name)
    await bench.stop()
    bench.restart("all")
    for name in ("disk", "cache"):
        assert (await bench.values(name))[:1] == [b"kept"]


async def test_shutdown_wakes_who_waits_for_records() -> None:
    bench = BrokerBench()
    await bench.create("t")
    woken: list[bool] = []
    bench.partition("t").watches.add(FetchWatch(1, lambda: woken.append(bench.broker.stopping)))
    bench.broker.begin_shutdown()
    await bench.settle()
    assert woken == [True]


# -- housekeeping ----------------------------------------------------------------------------------------------------


async def test_the_journal_is_emptied_every_few_seconds() -> None:
    bench = BrokerBench(ottla_flush_interval_ms="5000")
    await bench.create("t")
    for _ in range(5):
        await bench.produce("t")
    journal = bench.broker.context.shared.journal
    assert journal is not None
    assert journal.released_sequence < journal.durable_sequence
    await bench.settle(6000)
    assert journal.released_sequence == journal.durable_sequence
    bench.restart("none")
    assert bench.broker.context.store.replayed.batches == 0


@pytest.mark.parametrize(
    ("setting", "value"), [("flush.messages", "10"), ("flush.ms", "1000"), ("segment.bytes", "1024")]
)
async def test_a_cache_topic_is_flushed_as_it_asks(setting: str, value: str) -> None:
    bench = BrokerBench()
    topic = await bench.create("t", durability="cache")
    assert await bench.until(bench.admin.alter_topic_configs(topic, {setting: value})) is None
    for number in range(30):
        await bench.produce("t", value=b"%03d" % number * 50)
    await bench.settle(2000)
    bench.restart("none")
    values = await bench.values("t")
    assert values == [b"%03d" % number * 50 for number in range(len(values))]
    assert len(values) >= 20


async def test_a_cache_topic_that_asks_for_nothing_is_not_flushed_by_itself() -> None:
    """As in Kafka: the kernel decides, unless a segment is full."""
    bench = BrokerBench()
    await bench.create("t", durability="cache")
    await bench.produce("t")
    await bench.settle(60_000)
    bench.restart("none")
    assert await bench.values("t") == []


@pytest.mark.parametrize("durability", CLASSES)
async def test_a_retention_of_seconds_is_kept_to_a_fraction_of_it(durability: str) -> None:
    bench = BrokerBench()
    await bench.create("t", durability=durability, retention_ms="3000")
    await bench.produce("t")
    await bench.settle(2900)
    assert bench.partition("t").log.start_offset == 0
    await bench.settle(700)
    assert bench.partition("t").log.start_offset == 1
    await bench.produce("t", value=b"young")
    assert await bench.values("t") == [b"young"]


async def test_expired_segments_free_their_space() -> None:
    bench = BrokerBench()
    await bench.create("t", retention_ms="3000", segment_bytes="8192")
    used: list[int] = []
    for _ in range(40):
        for _ in range(5):
            await bench.produce("t", value=bytes(3000))
        await bench.settle(1000)
        used.append(bench.disk.used_bytes)
    assert max(used[20:]) <= max(used[:20]) + 100_000, "it does not grow for ever"


async def test_a_deleted_topic_is_looked_at_no_more() -> None:
    bench = BrokerBench()
    topic = await bench.create("t", retention_ms="1000")
    await bench.produce("t")
    assert await bench.until(bench.admin.delete_topic(topic)) is None
    await bench.settle(10_000)
    assert bench.broker.housekeeping._planned == {}
    assert bench.log_directories() == []


async def test_a_tick_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = BrokerBench(ottla_flush_interval_ms="1000")
    await bench.create("t")
    failures = iter([True] * 3)
    original = bench.broker.housekeeping._check_flush

    def failing(now: float) -> None:
        if next(failures, False):
            raise RuntimeError("a bug")
        original(now)

    monkeypatch.setattr(bench.broker.housekeeping, "_check_flush", failing)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="a bug"):
            bench.clock.advance(250)
    await bench.produce("t")
    await bench.settle(3000)
    bench.restart("none")
    assert bench.broker.context.store.replayed.batches == 0
