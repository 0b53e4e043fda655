"""The watches of one partition: who is woken by what, and when."""

from __future__ import annotations

from ottla.broker.partition.waits import LATER_MS, FetchWatch, ReplicaWatch, Wakeups
from ottla.broker.partition.watches import PartitionWatches
from ottla.sim.clock import SimClock

CONSUMER, FOLLOWER = 1, 2


class Bench:
    def __init__(self, *, follower_waits: bool = True) -> None:
        self.clock = SimClock()
        self.watches = PartitionWatches(Wakeups(self.clock))
        self.seen: list[str] = []
        self.follower_waits = follower_waits
        self.watches.add_replica(
            ReplicaWatch(
                FOLLOWER,
                lambda: self.seen.append("follower"),
                lambda: self.follower_waits,
                lambda: self.seen.append("watermark"),
            )
        )

    def add_consumer(self) -> None:
        self.watches.add(FetchWatch(CONSUMER, lambda: self.seen.append("consumer")))


def test_followers_hear_of_produced_records_after_a_moment() -> None:
    bench = Bench()
    bench.watches.on_produced()
    bench.clock.advance(0)
    assert bench.seen == []
    bench.clock.advance(LATER_MS)
    assert bench.seen == ["follower"]


def test_followers_hear_at_once_if_a_consumer_waits() -> None:
    bench = Bench()
    bench.add_consumer()
    bench.watches.on_produced()
    bench.clock.advance(0)
    assert bench.seen == ["follower"]


def test_a_consumer_that_comes_later_hurries_the_notification() -> None:
    bench = Bench()
    bench.watches.on_produced()
    assert bench.watches.is_unannounced
    bench.add_consumer()
    bench.clock.advance(0)
    assert bench.seen == ["follower"]
    assert not bench.watches.is_unannounced


def test_a_follower_without_a_parked_request_is_not_woken() -> None:
    bench = Bench(follower_waits=False)
    bench.watches.on_produced()
    bench.watches.wake_replicas()
    bench.clock.advance(LATER_MS)
    assert bench.seen == []
    assert not bench.watches.is_unannounced


def test_a_watermark_is_for_followers_and_new_data_for_consumers() -> None:
    bench = Bench()
    bench.add_consumer()
    bench.watches.on_watermark()
    assert bench.seen == ["watermark"]
    bench.watches.wake_fetches()
    bench.clock.advance(0)
    assert bench.seen == ["watermark", "consumer"]


def test_a_removed_watch_hears_nothing() -> None:
    bench = Bench()
    bench.add_consumer()
    bench.watches.remove(CONSUMER)
    bench.watches.remove(FOLLOWER)
    bench.watches.wake_fetches()
    bench.watches.on_produced()
    bench.watches.on_watermark()
    bench.clock.advance(LATER_MS)
    assert bench.seen == []
