"""A replica that is far behind is fetched on a separate connection from the live ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from ottla.broker.cluster.replica_fetcher import ReplicaFetcher
from ottla.broker.cluster.replication_lanes import (
    CATCH_UP,
    LIVE,
    ROUND_BYTES_MAX,
    ROUND_BYTES_MIN,
    Pace,
)
from ottla.broker.cluster.roles import PartitionRoles
from ottla.broker.partition.follower_lag import LAGGING_FROM_BYTES, LIVE_BELOW_BYTES, Lag
from ottla.broker.partition.partition import Partition
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

LARGE = 200_000


def fetcher_of(partition: Partition) -> ReplicaFetcher | None:
    return cast("PartitionRoles", partition.events).fetchers.of(partition)


def test_who_has_everything_is_live() -> None:
    lag = Lag(is_lagging=True)
    lag.note(10, 1000, 0)
    assert not lag.is_lagging
    assert lag.size_bytes == 0


def test_a_lag_is_counted_in_bytes() -> None:
    lag = Lag(is_lagging=False)
    lag.note(10, 1000, 50)
    assert lag.size_bytes == 5000
    assert not lag.is_lagging
    lag.note(10, 1000, LAGGING_FROM_BYTES // 100 + 1)
    assert lag.is_lagging


def test_between_the_two_bounds_nothing_changes() -> None:
    middle = (LAGGING_FROM_BYTES + LIVE_BELOW_BYTES) // 2
    for was_lagging in (False, True):
        lag = Lag(is_lagging=was_lagging)
        lag.note(1, 1, middle)
        assert lag.is_lagging is was_lagging


def test_an_empty_answer_keeps_the_size_of_records() -> None:
    lag = Lag(is_lagging=False)
    lag.note(1, 1000, LAGGING_FROM_BYTES // 1000 + 1)
    lag.note(0, 0, LAGGING_FROM_BYTES // 1000 + 1)
    assert lag.is_lagging


def test_a_lag_of_unknown_size_changes_nothing() -> None:
    for was_lagging in (False, True):
        lag = Lag(is_lagging=was_lagging)
        lag.note(0, 0, 1_000_000)
        assert lag.is_lagging is was_lagging
        assert lag.is_known


def test_rounds_grow_while_the_lag_does_not_shrink() -> None:
    pace = Pace()
    lag_bytes = 1 << 30
    for second in range(1, 12):
        pace.note(lag_bytes, second * 1000.0)
    assert pace.round_bytes == ROUND_BYTES_MAX
    for second in range(12, 24):
        lag_bytes = lag_bytes * 8 // 10
        pace.note(lag_bytes, second * 1000.0)
    assert pace.round_bytes == ROUND_BYTES_MIN


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world, properties={"replica.lag.time.max.ms": "2000", "ottla.tail.cache.bytes": "1000000"})


def test_a_replica_that_was_away_catches_up_beside_the_live_ones_and_joins_them(bench: ClusterBench) -> None:
    bench.run(bench.create("old"))
    bench.run(bench.create("live"))
    for topic in ("old", "live"):
        bench.until_in_sync(topic)
    away = next(number for number in bench.ids if number not in (bench.leader("old"), bench.leader("live")))
    bench.kill(away)
    values = [bytes([number]) * LARGE for number in range(100)]
    bench.run(bench.write("old", values))
    bench.until_in_sync("old", count=2)
    bench.boot(away)
    lanes = set()

    def is_back() -> bool:
        old, live = bench.find(away, "old"), bench.find(away, "live")
        for partition in (old, live):
            fetcher = fetcher_of(partition) if partition is not None else None
            if partition is not None and fetcher is not None:
                lanes.add((partition.topic.name, fetcher.lane))
        return len(bench.isr("old")) == len(bench.isr("live")) == 3

    bench.until(is_back)
    assert lanes >= {("old", CATCH_UP), ("old", LIVE), ("live", LIVE)}
    bench.run(bench.write("live", [b"1"]))
    bench.until(lambda: bench.partition(away, "old").high_watermark == 100)
    assert bench.partition(away, "old").log.end_offset == 100


def test_a_new_partition_does_not_wait_for_the_silence_of_the_others(bench: ClusterBench) -> None:
    """Nor is the connection of the others closed for it."""
    bench.run(bench.create("first", partitions=3))
    bench.until_in_sync("first")
    bench.world.run_for(2)
    follower = next(number for number in bench.ids if number != bench.leader("first"))
    fetcher = fetcher_of(bench.partition(follower, "first"))
    assert fetcher is not None
    connection = fetcher.connection
    bench.run(bench.create("second", partitions=3))
    for index in range(3):
        bench.run(bench.write("second", [b"1"], index), timeout_s=0.3)
    assert fetcher_of(bench.partition(follower, "first")) is fetcher
    assert fetcher.connection is connection
