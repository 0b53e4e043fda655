"""One partition through a broker: acknowledgements, retries, reads, lookups, and failures of its log."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.partition.batch_validation import Appended
from ottla.broker.partition.follower_partition import FollowerPartition
from ottla.broker.partition.offset_lookups import max_timestamp_offset, offset_for_time
from ottla.broker.partition.record_deletion import advance_log_start
from ottla.broker.partition.waits import FetchWatch
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.client.producer.outcomes import Outcome, outcome_of
from ottla.machines.controller.state import Member
from ottla.ports import Completion
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.wire.fetch_client import FetchedPartition
from tests.support.sim_broker import BrokerBench
from tests.support.sim_logs import batch_of

CLASSES = ["disk", "cache", "memory"]


# -- produce ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
async def test_offsets_count_records(durability: str) -> None:
    bench = BrokerBench()
    await bench.create("t", durability=durability)
    assert [await bench.produce("t", records=count) for count in (1, 5, 2)] == [0, 1, 6]
    partition = bench.partition("t")
    assert (partition.log.start_offset, partition.high_watermark, partition.log.end_offset) == (0, 8, 8)


@pytest.mark.parametrize("durability", CLASSES)
async def test_a_retry_is_answered_with_the_first_offset_and_appends_nothing(durability: str) -> None:
    bench = BrokerBench()
    await bench.create("t", durability=durability)
    assert await bench.produce("t", records=3, producer=(7, 0, 0)) == 0
    assert await bench.produce("t", records=2, producer=(7, 0, 3)) == 3
    assert await bench.produce("t", records=3, producer=(7, 0, 0)) == 0
    assert bench.partition("t").log.end_offset == 5


async def test_a_retry_waits_for_what_the_original_waits_for() -> None:
    """The first is not durable yet, so the second is not answered either (safety: duplicates)."""
    bench = BrokerBench()
    await bench.create("t")
    bench.disk.stall("journal")
    first = bench.append("t", producer=(7, 0, 0))
    again = bench.append("t", producer=(7, 0, 0))
    assert isinstance(first, Appended)
    assert again == first
    partition = bench.partition("t")
    told: list[ErrorCode] = []
    assert again.end_offset > partition.high_watermark
    partition.when_acknowledged(again.end_offset, told.append)
    await bench.settle()
    assert told == []
    bench.disk.release("journal")
    await bench.settle()
    assert told == [ErrorCode.none]


async def test_what_waits_where_a_replica_is_moved_away_is_not_told_that_it_is_not_written() -> None:
    """Other replicas may have it: an error that excludes that would be wrong (seed 713 of the cluster simulation)."""
    bench = BrokerBench()
    await bench.create("t")
    bench.disk.stall("journal")
    appended = bench.append("t")
    assert isinstance(appended, Appended)
    told: list[ErrorCode] = []
    bench.partition("t").when_acknowledged(appended.end_offset, told.append)
    bench.partition("t").close(ErrorCode.not_leader_or_follower)
    assert told == [ErrorCode.not_leader_or_follower]
    assert outcome_of(told[0]) is Outcome.RETRY_UNKNOWN
    bench.disk.release("journal")
    await bench.settle()


async def test_a_retry_of_what_was_never_durable_fails_with_it() -> None:
    bench = BrokerBench()
    await bench.create("t")
    bench.disk.faults.fail_write(path="/journal/", count=None)
    assert await bench.produce("t", producer=(7, 0, 0)) is ErrorCode.kafka_storage_error
    assert await bench.produce("t", producer=(7, 0, 0)) is ErrorCode.kafka_storage_error
    bench.restart("none")
    assert await bench.produce("t", producer=(7, 0, 0)) == 0


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        ((7, 1, 5), ErrorCode.out_of_order_sequence_number),
        ((7, 0, 1), ErrorCode.invalid_producer_epoch),
        ((7, 2, 1), ErrorCode.out_of_order_sequence_number),
    ],
)
async def test_what_is_not_in_turn_is_refused(producer: tuple[int, int, int], error: ErrorCode) -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t", producer=(7, 1, 0))
    assert await bench.produce("t", producer=producer) is error
    assert bench.partition("t").log.end_offset == 1


@pytest.mark.parametrize("durability", ["disk", "cache"])
async def test_producers_are_known_after_a_restart(durability: str) -> None:
    bench = BrokerBench()
    await bench.create("t", durability=durability)
    for sequence in range(7):
        await bench.produce("t", producer=(7, 3, sequence))
    bench.restart("all")
    assert await bench.produce("t", producer=(7, 3, 6)) == 6
    assert await bench.produce("t", producer=(7, 3, 8)) is ErrorCode.out_of_order_sequence_number
    assert await bench.produce("t", producer=(7, 2, 7)) is ErrorCode.invalid_producer_epoch
    assert await bench.produce("t", producer=(7, 3, 7)) == 7


async def test_silent_producers_are_forgotten() -> None:
    bench = BrokerBench(producer_id_expiration_ms="3600000")
    await bench.create("t")
    await bench.produce("t", producer=(7, 0, 0))
    await bench.settle(3_000_000)
    assert await bench.produce("t", producer=(7, 0, 5)) is ErrorCode.out_of_order_sequence_number
    await bench.settle(1_500_000)
    assert await bench.produce("t", producer=(7, 0, 5)) == 1


async def test_the_append_time_is_told() -> None:
    bench = BrokerBench()
    await bench.create("t", message_timestamp_type="LogAppendTime")
    await bench.settle(1234)
    now_ms = bench.clock.now_ms()
    first = bench.append("t", producer=(7, 0, 0))
    await bench.settle(50)
    again = bench.append("t", producer=(7, 0, 0))
    assert isinstance(first, Appended)
    assert isinstance(again, Appended)
    assert (first.log_append_time_ms, again.log_append_time_ms) == (now_ms, now_ms)


# -- fetch -----------------------------------------------------------------------------------------------------------


async def test_offsets_out_of_range_and_offsets_to_come() -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t", records=3)
    bench.disk.stall("journal")
    bench.append("t", records=2)
    partition = bench.partition("t")
    assert isinstance(partition.read(0, 100), Slice)
    # Between the high watermark and the end there is nothing to read yet, which is no error (safety: after-failover).
    for offset in (3, 4, 5):
        assert partition.read(offset, 100) == Slice([], 0, offset)
    for offset in (-1, 6):
        refused = partition.read(offset, 100)
        assert isinstance(refused, Refused)
        assert refused.error is ErrorCode.offset_out_of_range


async def test_below_the_start_is_out_of_range() -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t", records=5)
    partition = bench.partition("t")
    assert await bench.until(advance_log_start(partition, 3)) == 3
    refused = partition.read(2, 100)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.offset_out_of_range


async def test_a_watch_is_woken_by_an_acknowledgement_and_not_before() -> None:
    bench = BrokerBench()
    await bench.create("t")
    partition = bench.partition("t")
    looked: list[int] = []
    partition.watches.add(FetchWatch(1, lambda: looked.append(partition.high_watermark)))
    bench.disk.stall("journal")
    bench.append("t")
    await bench.settle()
    assert looked == []
    bench.disk.release("journal")
    await bench.settle()
    assert looked == [1]
    partition.watches.remove(1)
    await bench.produce("t")
    assert looked == [1]


async def test_a_cold_read_lets_go_of_its_file() -> None:
    bench = BrokerBench(ottla_tail_cache_bytes="0")
    await bench.create("t")
    await bench.produce("t", value=b"x")
    await bench.settle(6000)
    bench.disk.drop_page_cache()
    partition = bench.partition("t")
    read = partition.read(0, 1000)
    assert isinstance(read, ColdRead)
    assert isinstance(await bench.until(partition.read_cold(read)), Slice)
    log = partition.log
    assert [segment.readers for segment in log.segments] == [0]  # type: ignore[union-attr]  # a FileLog


class Truncator:
    """Truncates nothing, at once."""

    def truncate(self, log: AnyLog, offset: int, done: Completion) -> None:
        done(None)

    def reset(self, log: AnyLog, offset: int, done: Completion) -> None:
        done(None)


@pytest.mark.parametrize("way", ["truncate", "reset"])
async def test_what_was_read_before_a_cut_is_not_served_after_it(way: str) -> None:
    bench = BrokerBench(ottla_tail_cache_bytes="0")
    await bench.create("t")
    await bench.produce("t", value=b"x")
    await bench.settle(6000)
    bench.disk.drop_page_cache()
    partition = bench.partition("t")
    read, cuts = partition.read(0, 1000), partition.cuts
    assert isinstance(read, ColdRead)
    following = FollowerPartition(partition, Truncator(), Member(2, 1), 1, 0)
    if way == "truncate":
        asked = following.next_fetch(1000)
        assert asked is not None
        following.take(asked, FetchedPartition(0, 0, 0, 0, 0, None, -1, memoryview(b""), diverging=(0, 0)))
    else:
        following.rebuild(0)
    outcome = await bench.until(partition.read_cold(read, cuts))
    assert isinstance(outcome, Refused)
    assert outcome.error is ErrorCode.not_leader_or_follower


# -- log start offset ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
async def test_records_are_deleted_up_to_an_offset(durability: str) -> None:
    bench = BrokerBench()
    await bench.create("t", durability=durability)
    for number in range(5):
        await bench.produce("t", value=b"%d" % number)
    partition = bench.partition("t")
    assert await bench.until(advance_log_start(partition, 2)) == 2
    assert await bench.values("t") == [b"2", b"3", b"4"]
    assert await bench.until(advance_log_start(partition, 1)) == 2, "it never goes back"
    assert await bench.until(advance_log_start(partition, -1)) == 5
    assert await bench.values("t") == []
    for offset in (6, -2):
        refused = await bench.until(advance_log_start(partition, offset))
        assert isinstance(refused, Refused)
        assert refused.error is ErrorCode.offset_out_of_range


async def test_deleted_records_stay_deleted() -> None:
    bench = BrokerBench()
    await bench.create("t")
    for number in range(5):
        await bench.produce("t", value=b"%d" % number)
    assert await bench.until(advance_log_start(bench.partition("t"), 2)) == 2
    bench.restart("none")
    assert await bench.values("t") == [b"2", b"3", b"4"]


async def test_a_deletion_that_is_not_durable_is_an_error() -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t", records=5)
    bench.disk.faults.fail_write(path="/journal/", count=None)
    refused = await bench.until(advance_log_start(bench.partition("t"), 2))
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.kafka_storage_error


# -- lookups ---------------------------------------------------------------------------------------------------------


async def timed(bench: BrokerBench, *batches: list[int]) -> None:
    for timestamps in batches:
        data = bytearray(batch_of([b"v"] * len(timestamps), timestamps_ms=timestamps))
        outcome = bench.partition("t").append(memoryview(data), bench.clock.now_ms())
        assert isinstance(outcome, Appended), outcome


@pytest.mark.parametrize("durability", CLASSES)
async def test_offsets_by_time(durability: str) -> None:
    bench = BrokerBench()
    await bench.create("t", durability=durability, segment_bytes="1024", index_interval_bytes="100", retention_ms="-1")
    await timed(bench, *([1000 + 10 * number, 1005 + 10 * number] for number in range(40)))
    partition = bench.partition("t")
    for wanted, found in [
        (0, (1000, 0)),
        (1000, (1000, 0)),
        (1001, (1005, 1)),
        (1110, (1110, 22)),
        (1111, (1115, 23)),
        (1395, (1395, 79)),
        (1396, None),
    ]:
        assert await bench.until(offset_for_time(partition, wanted)) == found
    assert await bench.until(max_timestamp_offset(partition.log)) == (1395, 79)


async def test_times_that_do_not_rise() -> None:
    bench = BrokerBench()
    await bench.create("t", segment_bytes="1024", index_interval_bytes="100", retention_ms="-1")
    await timed(bench, [500], [900, 300], [100], [900], [200])
    partition = bench.partition("t")
    assert await bench.until(offset_for_time(partition, 600)) == (900, 1)
    assert await bench.until(offset_for_time(partition, 0)) == (500, 0)
    assert await bench.until(max_timestamp_offset(partition.log)) == (900, 1)


async def test_the_latest_timestamp_while_records_come_in() -> None:
    """Records appended during the lookup must not hide earlier ones."""
    bench = BrokerBench()
    await bench.create("t", retention_ms="-1")
    await timed(bench, [100], [300], [200])
    await bench.settle()
    partition = bench.partition("t")
    bench.disk.stall("read")
    looking = asyncio.ensure_future(max_timestamp_offset(partition.log))
    await bench.settle()
    bench.disk.stall("segment")
    await timed(bench, [999])
    bench.disk.release("read")
    assert await bench.until(looking) in ((300, 1), (999, 3))


async def test_a_look_up_sees_nothing_below_the_start() -> None:
    bench = BrokerBench()
    await bench.create("t", retention_ms="-1")
    await timed(bench, [100], [200], [300])
    partition = bench.partition("t")
    assert await bench.until(advance_log_start(partition, 1)) == 1
    assert await bench.until(offset_for_time(partition, 0)) == (200, 1)


@pytest.mark.parametrize("durability", ["disk", "cache"])
async def test_a_look_up_beside_a_removal(durability: str) -> None:
    """Segments are deleted while the lookup waits for the disk: it continues without them and does not restore them."""
    bench = BrokerBench()
    await bench.create("t", durability=durability, segment_bytes="1024", retention_ms="3000")
    for number in range(20):
        await bench.produce("t", value=b"%04d" % number * 100)
    await bench.settle(2000)
    young_ms = bench.clock.now_ms()
    await bench.produce("t", value=b"young" * 100)
    partition = bench.partition("t")
    bench.disk.stall("read")
    by_time = asyncio.ensure_future(offset_for_time(partition, 0))
    latest = asyncio.ensure_future(max_timestamp_offset(partition.log))
    await bench.settle(2000)
    assert partition.log.start_offset == 20
    names = bench.disk.files.list_dir(f"/data/logs/{bench.log_directories()[0]}")
    bench.disk.release("read")
    assert await bench.until(by_time) == (young_ms, 20)
    assert await bench.until(latest) == (young_ms, 20)
    assert bench.disk.files.list_dir(f"/data/logs/{bench.log_directories()[0]}") == names


async def test_an_empty_log_has_no_times() -> None:
    bench = BrokerBench()
    await bench.create("t")
    partition = bench.partition("t")
    assert await bench.until(offset_for_time(partition, 0)) is None
    assert await bench.until(max_timestamp_offset(partition.log)) is None


async def test_a_look_up_on_a_failed_log_ends() -> None:
    bench = BrokerBench()
    await bench.create("t", retention_ms="-1")
    await timed(bench, [100])
    await bench.settle()
    bench.disk.faults.fail_write(path="/journal/", count=None)
    await timed(bench, [200])
    await bench.settle()
    partition = bench.partition("t")
    assert partition.error is ErrorCode.kafka_storage_error
    assert await bench.until(offset_for_time(partition, 0)) == (100, 0)
    assert await bench.until(max_timestamp_offset(partition.log)) == (100, 0)


async def test_leader_epochs() -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t", records=3)
    bench.restart()
    await bench.produce("t", records=2)
    partition = bench.partition("t")
    assert partition.leader_epoch == 2
    assert partition.log.epochs.end_of(1, partition.log.end_offset) == (1, 3)
    assert partition.log.epochs.end_of(2, partition.log.end_offset) == (2, 5)
    assert partition.log.epochs.end_of(3, partition.log.end_offset) == (-1, -1)


# -- failures --------------------------------------------------------------------------------------------------------


async def test_a_failed_journal_ends_disk_topics_and_no_others() -> None:
    bench = BrokerBench()
    for durability in CLASSES:
        await bench.create(durability, durability=durability)
        await bench.produce(durability, value=b"before")
    bench.disk.faults.fail_write(path="/journal/", count=None)
    assert await bench.produce("disk") is ErrorCode.kafka_storage_error
    assert await bench.produce("disk") is ErrorCode.kafka_storage_error
    assert await bench.produce("cache", value=b"after") == 1
    assert await bench.produce("memory", value=b"after") == 1
    assert [await bench.values(name) for name in CLASSES] == [[b"before"], [b"before", b"after"], [b"before", b"after"]]
    assert bench.partition("disk").error is ErrorCode.kafka_storage_error
    await bench.stop()
    bench.restart("none")
    assert await bench.values("cache") == [b"before", b"after"]
    # A failed write may still have reached the disk: neither outcome was promised.
    assert (await bench.values("disk"))[:1] == [b"before"]


async def test_who_waits_is_told_of_a_failure_once() -> None:
    bench = BrokerBench()
    await bench.create("t")
    bench.disk.faults.fail_write(path="/journal/", count=None)
    told: list[ErrorCode] = []
    for _ in range(3):
        appended = bench.append("t")
        assert isinstance(appended, Appended)
        bench.partition("t").when_acknowledged(appended.end_offset, told.append)
    await bench.settle()
    assert told == [ErrorCode.kafka_storage_error] * 3
    bench.partition("t").when_acknowledged(99, told.append)
    assert told == [ErrorCode.kafka_storage_error] * 4


@pytest.mark.parametrize("durability", ["disk", "cache"])
async def test_a_full_disk_refuses_and_heals_by_itself(durability: str) -> None:
    bench = BrokerBench()
    await bench.create("t", durability=durability, segment_bytes="65536")
    values: list[bytes] = []
    bench.disk.capacity_bytes = bench.disk.used_bytes + 100_000
    errors = set()
    for number in range(300):
        value = b"%04d" % number * 250
        outcome = await bench.produce("t", value=value)
        if isinstance(outcome, ErrorCode):
            errors.add(outcome)
        else:
            values.append(value)
    assert errors == {ErrorCode.kafka_storage_error}
    assert await bench.values("t") == values
    bench.disk.capacity_bytes = None
    await bench.settle(2000)
    assert await bench.produce("t", value=b"again") == len(values)
    bench.restart("all")
    assert await bench.values("t") == [*values, b"again"]
