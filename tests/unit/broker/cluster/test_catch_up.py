"""The rounds of the catch-up lane, by themselves: what the next one waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from uuid import UUID

from ottla.broker.cluster.catch_up import FLUSH_EVERY_BYTES, CatchUp
from ottla.broker.partition.batch_validation import Appended
from ottla.broker.partition.partition import Partition
from tests.support.sim_broker import BrokerBench
from tests.support.sim_logs import batch_of

KEY = UUID(int=1), 0


async def partition_of(bench: BrokerBench) -> Partition:
    await bench.create("t", durability="disk")
    return bench.partition("t")


def append(bench: BrokerBench, partition: Partition) -> None:
    """Appends a record, which is not durable before time passes."""
    assert isinstance(partition.append(memoryview(bytearray(batch_of())), bench.clock.now_ms()), Appended)


async def test_a_round_ends_when_the_disk_has_its_records() -> None:
    bench = BrokerBench()
    partition = await partition_of(bench)
    append(bench, partition)
    catch_up = CatchUp()
    ending = asyncio.ensure_future(catch_up.end_round({KEY: partition}, 100, 0, 0.0))
    await asyncio.sleep(0)
    assert not ending.done()
    await bench.settle()
    catch_up.on_progress()
    await asyncio.wait_for(ending, 0.5)


async def test_nothing_is_waited_for_when_the_disk_has_everything() -> None:
    bench = BrokerBench()
    partition = await partition_of(bench)
    await asyncio.wait_for(CatchUp().end_round({KEY: partition}, 100, 0, 0.0), 0.5)


async def test_a_removed_partition_is_not_waited_for() -> None:
    bench = BrokerBench()
    partition = await partition_of(bench)
    append(bench, partition)
    catch_up, followed = CatchUp(), {KEY: partition}
    ending = asyncio.ensure_future(catch_up.end_round(followed, 100, 0, 0.0))
    await asyncio.sleep(0)
    del followed[KEY]
    catch_up.on_progress()
    await asyncio.wait_for(ending, 0.5)
    assert partition.log.acknowledged_end == 0


async def test_much_data_is_flushed_before_the_next_round() -> None:
    bench = BrokerBench()
    partition = await partition_of(bench)
    flushed: list[list[Partition]] = []

    def flush(partitions: Iterable[Partition], done: Callable[[], None]) -> None:
        flushed.append(list(partitions))
        done()

    catch_up = CatchUp(flush)
    await catch_up.end_round({KEY: partition}, FLUSH_EVERY_BYTES - 1, 0, 0.0)
    assert flushed == []
    await catch_up.end_round({KEY: partition}, 1, 0, 0.0)
    assert flushed == [[partition]]
    await catch_up.end_round({KEY: partition}, 1, 0, 0.0)
    assert len(flushed) == 1, "the count begins anew"
