"""Internal topics are created on the available brokers, and get their other replicas when more brokers join."""

from __future__ import annotations

from collections import Counter

import pytest

from ottla.broker.endpoints import Node
from ottla.client.admin.admin import Admin
from ottla.machines.controller.assignment import Replicas
from ottla.machines.controller.encoding import decode_topic
from ottla.machines.controller.keys import topic as topic_key
from ottla.machines.controller.partition_requests import TopicPartitionName
from ottla.machines.controller.replica_growth import finish_growth, missing_replicas
from ottla.machines.controller.writes import Write
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.sim.world import SimWorld
from tests.support.controller_store import TOPIC, Store, partition
from tests.support.groups_bench import PROPERTIES, GroupsCluster, commit, error_of

STATE_TOPIC = "__transaction_state"
FACTOR = "offsets.topic.replication.factor"
STATE = {"transaction.state.log.num.partitions": "2"}


def layouts(bench: GroupsCluster, topic: str, number: int = 1) -> list[tuple[tuple[int, ...], int]]:
    """Returns the sorted replicas of each partition and how many are in sync, as one broker reports them."""
    found = bench.broker(number).topics.get(topic)
    return [] if found is None else [(tuple(sorted(each.replicas)), len(each.isr)) for each in found.layouts]


def is_placed(bench: GroupsCluster, topic: str, replicas: tuple[int, ...]) -> bool:
    found = layouts(bench, topic)
    return bool(found) and all(each == (replicas, len(replicas)) for each in found)


def ask_for_coordinator(bench: GroupsCluster, timeout_s: float = 30) -> None:
    """Looks for the coordinator repeatedly, as a client does."""
    deadline = bench.world.now_s + timeout_s
    while not isinstance(found := bench.on(1, bench.broker(1).groups.coordinator_of("g")), Node):
        assert bench.world.now_s < deadline, found
        bench.world.run_for(0.5)


def lose(bench: GroupsCluster, *numbers: int) -> None:
    for number in numbers:
        bench.kill(number)
    bench.until(lambda: len(bench.broker(1).metadata.nodes()) == len(bench.ids) - len(numbers))


@pytest.mark.parametrize("given", [{}, {FACTOR: "3"}])
def test_groups_start_without_a_broker_and_the_topic_grows_when_it_is_back(given: dict[str, str]) -> None:
    with SimWorld(1) as world:
        bench = GroupsCluster(world, properties={**PROPERTIES, **given})
        lose(bench, 3)
        bench.run(bench.create("orders", partitions=4, factor=2))
        ask_for_coordinator(bench)
        assert is_placed(bench, OFFSETS_TOPIC, (1, 2))
        assert error_of(bench.get(commit("g", 5))) is ErrorCode.none
        bench.boot(3)
        bench.until(lambda: is_placed(bench, OFFSETS_TOPIC, (1, 2, 3)))
        assert bench.committed() == {("orders", 0): 5}
        assert error_of(bench.get(commit("g", 6))) is ErrorCode.none
        bench.kill(bench.coordinator())
        assert bench.committed() == {("orders", 0): 6}


def test_a_minority_of_the_replicas_that_were_asked_for_is_not_enough() -> None:
    with SimWorld(1) as world:
        bench = GroupsCluster(world, properties={**PROPERTIES, FACTOR: "3"})
        lose(bench, 2, 3)
        for _ in range(3):
            refused = bench.on(1, bench.broker(1).groups.coordinator_of("g"))
            assert isinstance(refused, Refused)
            assert refused.error is ErrorCode.coordinator_not_available
            world.run_for(10)
        bench.boot(2)
        ask_for_coordinator(bench)
        assert is_placed(bench, OFFSETS_TOPIC, (1, 2))


def test_a_small_cluster_grows_step_by_step() -> None:
    with SimWorld(1) as world:
        bench = GroupsCluster(world, properties={**PROPERTIES, **STATE})
        lose(bench, 2, 3)
        ask_for_coordinator(bench)
        assert isinstance(bench.on(1, bench.broker(1).transactions.ensure_topic()), Refused)
        world.run_for(6)
        assert not isinstance(bench.on(1, bench.broker(1).transactions.ensure_topic()), Refused)
        topics = (OFFSETS_TOPIC, STATE_TOPIC)
        assert all(is_placed(bench, name, (1,)) for name in topics)
        bench.boot(2)
        bench.until(lambda: all(is_placed(bench, name, (1, 2)) for name in topics))
        bench.boot(3)
        bench.until(lambda: all(is_placed(bench, name, (1, 2, 3)) for name in topics))

        def min_insync() -> str | None:
            topic = bench.broker(1).topics.get(STATE_TOPIC)
            assert topic is not None
            return topic.overrides.get("min.insync.replicas")

        bench.until(lambda: min_insync() == "2")


def test_an_operator_may_take_replicas_away_afterwards() -> None:
    """Only a topic that has never had all its replicas grows by itself."""
    with SimWorld(1) as world:
        bench = GroupsCluster(world, properties=PROPERTIES)
        lose(bench, 3)
        ask_for_coordinator(bench)
        bench.boot(3)
        bench.until(lambda: is_placed(bench, OFFSETS_TOPIC, (1, 2, 3)))
        world.run_for(10)

        async def shrink() -> None:
            async with Admin(bench.bootstrap) as admin:
                targets = {(OFFSETS_TOPIC, index): [1, 2] for index in range(3)}
                assert await admin.alter_partition_reassignments(targets) == {}

        bench.run(shrink())
        bench.until(lambda: is_placed(bench, OFFSETS_TOPIC, (1, 2)))
        world.run_for(30)
        assert is_placed(bench, OFFSETS_TOPIC, (1, 2))


# -- which replicas are added ----------------------------------------------------------------------------------------


def store_with(replicas: list[Replicas], *brokers: tuple[int, str]) -> Store:
    store = Store()
    for broker_id, machine in brokers:
        store.add_broker(broker_id, machine=machine)
    store.add_topic([partition(" ".join(map(str, each)), str(each[0])) for each in replicas], replicas_wanted=3)
    return store


def missing(store: Store, factor: int = 3, *, shared: bool = False) -> dict[TopicPartitionName, Replicas]:
    image = store.image()
    topic = image.topic(TOPIC)
    assert topic is not None
    return missing_replicas(image, topic, factor, allow_shared_machine=shared)


def test_replicas_are_added_to_those_that_are_there() -> None:
    store = store_with([(1, 2)] * 6, (1, "a"), (2, "b"), (3, "c"), (4, "d"))
    found = missing(store)
    assert len(found) == 6
    assert all({1, 2} < set(replicas) and len(replicas) == 3 for replicas in found.values())
    assert Counter(broker for replicas in found.values() for broker in replicas)[3] == 3
    leaders = Counter(replicas[0] for replicas in found.values())
    assert max(leaders.values()) - min(leaders.values()) <= 1


def test_no_machine_gets_two_replicas() -> None:
    store = store_with([(1, 2)], (1, "a"), (2, "b"), (3, "b"))
    assert missing(store) == {}
    assert {*missing(store, shared=True)[TopicPartitionName("events", 0)]} == {1, 2, 3}


def test_as_many_as_there_are_brokers() -> None:
    store = store_with([(1,)], (1, "a"), (2, "b"))
    assert {*missing(store)[TopicPartitionName("events", 0)]} == {1, 2}
    assert missing(store_with([(1, 2)], (1, "a"), (2, "b"))) == {}


def test_growth_is_finished_when_every_partition_has_its_replicas() -> None:
    store = store_with([(1, 2, 3), (1, 2)], (1, "a"), (2, "b"), (3, "c"))
    image = store.image()
    assert finish_growth(image, TOPIC, 3, {}) is None
    write = finish_growth(image, TOPIC, 2, {"min.insync.replicas": "2"})
    assert isinstance(write, Write)
    store.commit(write)
    topic = decode_topic(store.entries[topic_key(TOPIC)], TOPIC)
    assert topic.replicas_wanted == 0
    assert topic.configs["min.insync.replicas"] == "2"
    assert finish_growth(store.image(), TOPIC, 2, {}) is None
