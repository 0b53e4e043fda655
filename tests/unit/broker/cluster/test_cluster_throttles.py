"""Replicas moved with a throttle, in virtual time: the rate is kept, and other traffic is unaffected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ottla.client.admin.admin import Admin
from ottla.client.producer.producer import Producer
from ottla.net.apis import ClientApi
from ottla.protocol.model.errors import ErrorCode
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

ALTER = ClientApi(44, "IncrementalAlterConfigs", (1, 1))
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_LIST, FOLLOWER_LIST = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
RATE = 500_000
VALUE_BYTES = 50_000
MOVED_BYTES = 80 * VALUE_BYTES
SLACK_BYTES = RATE + 2 * 1024 * 1024
"""At most a second's worth is saved up, and one round is in flight."""


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world, brokers=4)


def alter(
    bench: ClusterBench, at: int, type_: int, name: str, configs: Mapping[str, str | None], operation: int = SET
) -> None:
    entries = [{"name": key, "config_operation": operation, "value": value} for key, value in configs.items()]
    resource = {"resource_type": type_, "resource_name": name, "configs": entries}
    answer: Any = bench.run(bench.ask(at, ALTER, {"resources": [resource], "validate_only": False}))
    assert answer.responses[0].error_code is ErrorCode.none, answer.responses[0].error_message


def reassign(bench: ClusterBench, topic: str, replicas: list[int]) -> None:
    async def ask() -> None:
        async with Admin(bench.bootstrap) as admin:
            failures = await admin.alter_partition_reassignments({(topic, 0): replicas})
            assert not any(failures.values()), failures

    bench.run(ask())


def with_data(bench: ClusterBench, topic: str) -> tuple[int, int]:
    """Creates the topic with data; returns its leader and a broker without a replica of it."""
    bench.run(bench.create(topic, factor=2))
    bench.until_in_sync(topic, count=2)
    bench.run(bench.write(topic, [bytes([number]) * VALUE_BYTES for number in range(MOVED_BYTES // VALUE_BYTES)]))
    leader = bench.leader(topic)
    there = bench.partition(leader, topic).placement.replicas
    return leader, next(number for number in bench.ids if number not in there)


def followed_bytes(bench: ClusterBench, number: int, topic: str) -> int:
    found = bench.broker(number).topics.get(topic)
    return 0 if found is None else found.traffic.bytes_followed


def move(bench: ClusterBench, topic: str, leader: int, new: int) -> float:
    """Moves the other replica and returns how long that took. Checks the rate at each moment of it."""
    began_s = bench.world.clock.seconds()
    reassign(bench, topic, [leader, new])

    def is_moved() -> bool:
        elapsed_s = bench.world.clock.seconds() - began_s
        assert followed_bytes(bench, new, topic) <= RATE * elapsed_s + SLACK_BYTES
        return bench.isr(topic) == tuple(sorted((leader, new)))

    bench.until(is_moved)
    assert bench.partition(new, topic).log.end_offset == MOVED_BYTES // VALUE_BYTES
    return bench.world.clock.seconds() - began_s


@pytest.mark.parametrize("side", ["leader", "follower", "both"])
def test_a_move_keeps_to_the_rate(bench: ClusterBench, side: str) -> None:
    leader, new = with_data(bench, "big")
    if side != "follower":
        alter(bench, leader, TOPIC, "big", {LEADER_LIST: f"0:{leader}"})
        alter(bench, leader, BROKER, str(leader), {LEADER_RATE: str(RATE)})
    if side != "leader":
        alter(bench, leader, TOPIC, "big", {FOLLOWER_LIST: f"0:{new}"})
        alter(bench, new, BROKER, str(new), {FOLLOWER_RATE: str(RATE)})
    took_s = move(bench, "big", leader, new)
    ideal_s = MOVED_BYTES / RATE
    assert (MOVED_BYTES - SLACK_BYTES) / RATE <= took_s <= 1.5 * ideal_s + 3


def test_without_a_throttle_it_is_over_soon(bench: ClusterBench) -> None:
    leader, new = with_data(bench, "big")
    began_s = bench.world.clock.seconds()
    reassign(bench, "big", [leader, new])
    bench.until(lambda: bench.isr("big") == tuple(sorted((leader, new))))
    assert bench.world.clock.seconds() - began_s < MOVED_BYTES / RATE / 3


@pytest.mark.parametrize(
    ("leader_list", "follower_list"),
    [("1:9", "1:9"), ("", ""), ("0:{new}", "0:{leader}")],
    ids=["other", "none", "swapped"],
)
def test_replicas_that_are_not_listed_are_not_throttled(
    bench: ClusterBench, leader_list: str, follower_list: str
) -> None:
    leader, new = with_data(bench, "big")
    names = {"leader": leader, "new": new}
    lists = {LEADER_LIST: leader_list.format(**names), FOLLOWER_LIST: follower_list.format(**names)}
    alter(bench, leader, TOPIC, "big", lists)
    alter(bench, leader, BROKER, "", {LEADER_RATE: "1", FOLLOWER_RATE: "1"})
    began_s = bench.world.clock.seconds()
    reassign(bench, "big", [leader, new])
    bench.until(lambda: bench.isr("big") == tuple(sorted((leader, new))))
    assert bench.world.clock.seconds() - began_s < MOVED_BYTES / RATE / 3


def test_replicas_in_sync_are_never_throttled(bench: ClusterBench) -> None:
    bench.run(bench.create("live", factor=3))
    bench.until_in_sync("live")
    alter(bench, bench.leader("live"), TOPIC, "live", {LEADER_LIST: "*", FOLLOWER_LIST: "*"})
    alter(bench, 1, BROKER, "", {LEADER_RATE: "1", FOLLOWER_RATE: "1"})
    bench.world.run_for(1)
    began_s = bench.world.clock.seconds()
    bench.run(bench.write("live", [b"x" * VALUE_BYTES] * 20))  # acks=all
    assert bench.world.clock.seconds() - began_s < 5
    assert len(bench.isr("live")) == 3


def test_other_partitions_of_the_same_brokers_do_not_notice(bench: ClusterBench) -> None:
    """Their records share the connections of the throttled partition for the whole time."""
    leader, new = with_data(bench, "big")
    bench.run(bench.create("live", factor=4))
    bench.until_in_sync("live", count=4)
    alter(bench, leader, TOPIC, "big", {LEADER_LIST: "*", FOLLOWER_LIST: "*"})
    alter(bench, leader, BROKER, "", {LEADER_RATE: str(RATE), FOLLOWER_RATE: str(RATE)})
    bench.world.run_for(1)
    reassign(bench, "big", [leader, new])
    slowest_s = 0.0

    async def write_steadily() -> None:
        nonlocal slowest_s
        async with Producer(bench.bootstrap) as producer:
            for _ in range(30):
                began_s = bench.world.clock.seconds()
                await producer.send("live", b"v", partition=0)
                slowest_s = max(slowest_s, bench.world.clock.seconds() - began_s)

    bench.run(write_steadily())
    assert followed_bytes(bench, new, "big") < MOVED_BYTES, "the move goes on all the while"
    assert slowest_s < 0.4, "none waited for a throttle, or for the end of a long wait at the leader"
    assert len(bench.isr("live")) == 4


def test_a_throttle_that_is_removed_ends_at_once(bench: ClusterBench) -> None:
    leader, new = with_data(bench, "big")
    alter(bench, leader, TOPIC, "big", {LEADER_LIST: "*", FOLLOWER_LIST: "*"})
    alter(bench, leader, BROKER, "", {LEADER_RATE: "1000", FOLLOWER_RATE: "1000"})
    reassign(bench, "big", [leader, new])
    bench.world.run_for(10)
    assert followed_bytes(bench, new, "big") < MOVED_BYTES / 2
    began_s = bench.world.clock.seconds()
    alter(bench, leader, BROKER, "", {LEADER_RATE: None, FOLLOWER_RATE: None}, DELETE)
    bench.until(lambda: bench.isr("big") == tuple(sorted((leader, new))))
    assert bench.world.clock.seconds() - began_s < 5


def test_the_rates_outlive_a_restart(bench: ClusterBench) -> None:
    alter(bench, 2, BROKER, "2", {LEADER_RATE: "4000"})
    bench.kill(2)
    bench.boot(2)
    bench.until(lambda: bench.broker(2).config.leader_replication_throttled_rate == 4000)
    assert bench.broker(1).config.leader_replication_throttled_rate == 2**63 - 1
