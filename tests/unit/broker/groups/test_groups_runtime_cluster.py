"""Coordinators that move between brokers: nothing acknowledged is lost, and no live member is removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ottla.broker.groups.led_shard import State
from ottla.client.admin.admin import Admin
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.machines.groups.replies import ConsumerHeartbeatReply, HeartbeatReply
from ottla.machines.groups.requests import FetchOffsets
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.sim.links import NetworkFault
from ottla.sim.world import SimWorld
from tests.support.groups_bench import PROPERTIES, GroupsCluster, commit, error_of, first_heartbeat, heartbeat, join

NOT_COORDINATOR = Refused(ErrorCode.not_coordinator)


@pytest.fixture
def bench() -> Iterator[GroupsCluster]:
    with SimWorld(1) as world:
        yield GroupsCluster(world, properties={**PROPERTIES, "min.insync.replicas": "2"})


def cut_off(bench: GroupsCluster, number: int) -> NetworkFault:
    others = [bench.name(other) for other in bench.ids if other != number]
    return bench.world.network.cut([bench.name(number)], others)


def test_no_commit_is_lost_when_the_coordinator_is_killed(bench: GroupsCluster) -> None:
    bench.ready()
    for offset in range(10):
        assert error_of(bench.get(commit("g", offset))) is ErrorCode.none
    killed = bench.coordinator()
    bench.kill(killed)
    assert bench.committed() == {("orders", 0): 9}
    assert bench.coordinator() != killed
    assert error_of(bench.get(commit("g", 10))) is ErrorCode.none
    bench.boot(killed)
    assert bench.committed() == {("orders", 0): 10}


def test_members_that_are_alive_stay_when_the_coordinator_is_killed(bench: GroupsCluster) -> None:
    bench.ready()
    classic, consumer = bench.member("g"), bench.consumer("h")
    bench.kill(bench.coordinator("g"))
    if bench.coordinator("h") != -1:
        bench.kill(bench.coordinator("h"))
        bench.boot(next(number for number in bench.ids if not bench.host(number).is_running))
    assert bench.get(heartbeat("g", classic)) == HeartbeatReply()
    again = bench.get(
        replace(first_heartbeat("h"), member_epoch=consumer.member_epoch, subscribed_names=None, owned=None), "h"
    )
    assert isinstance(again, ConsumerHeartbeatReply)
    assert again.error is ErrorCode.none
    assert again.member_epoch == consumer.member_epoch


def test_whoever_waits_is_sent_to_the_new_coordinator(bench: GroupsCluster) -> None:
    bench.ready()
    bench.member("g")
    old = bench.coordinator()
    waiting = bench.start(old, bench.broker(old).groups.ask(join("g", fresh_id="2"), "g"))
    bench.world.run_for(0.1)
    assert not waiting.done()
    cluster = bench.cluster(old)
    assert cluster.membership.lease is not None
    bench.store.lose_lease(cluster.membership.lease.id)
    bench.until(waiting.done)
    assert waiting.result() == NOT_COORDINATOR
    assert error_of(bench.ask_at(old, commit("g", 1))) in (ErrorCode.not_coordinator, ErrorCode.none)


def test_whoever_waits_at_a_broker_that_is_cut_off_is_sent_away(bench: GroupsCluster) -> None:
    """It does not know the new leader, but its lease has expired."""
    bench.ready()
    bench.member("g")
    old = bench.coordinator()
    waiting = bench.start(old, bench.broker(old).groups.ask(join("g", fresh_id="2"), "g"))
    bench.world.run_for(0.1)
    client = bench.programs[old].client
    assert client is not None
    bench.store.cut_off(client)
    bench.until(waiting.done, 5)  # before any session expires
    assert waiting.result() == NOT_COORDINATOR
    bench.store.reconnect(client)


def test_a_broker_that_does_not_lead_says_so(bench: GroupsCluster) -> None:
    bench.ready()
    others = [number for number in bench.ids if number != bench.coordinator()]
    assert [bench.ask_at(number, commit("g", 1)) for number in others] == [NOT_COORDINATOR] * 2
    coordinators = {bench.on(number, bench.broker(number).groups.coordinator_of("g")) for number in bench.ids}
    assert [node.id for node in coordinators if not isinstance(node, Refused)] == [bench.coordinator()]


def test_what_is_not_replicated_is_not_answered(bench: GroupsCluster) -> None:
    """Neither the commit nor a read that saw it. The next coordinator does not have it."""
    bench.ready()
    bench.get(commit("g", 1))
    old = bench.coordinator()
    fault = cut_off(bench, old)
    committing = bench.start(old, bench.broker(old).groups.ask(commit("g", 2), "g"))
    bench.world.run_for(0.01)
    reading = bench.start(old, bench.broker(old).groups.ask(FetchOffsets(group="g"), "g"))
    bench.world.run_for(1)
    assert not committing.done()
    assert not reading.done()
    client = bench.programs[old].client
    assert client is not None
    bench.store.cut_off(client)
    bench.until(lambda: committing.done() and reading.done())
    assert (committing.result(), reading.result()) == (NOT_COORDINATOR, NOT_COORDINATOR)
    assert bench.committed() == {("orders", 0): 1}
    fault.heal()
    bench.store.reconnect(client)


def test_a_coordinator_serves_only_what_is_committed(bench: GroupsCluster) -> None:
    """It leads with a commit that may not be replicated: it does not serve before that is replicated."""
    bench.ready()
    bench.get(commit("g", 1))
    index, old = bench.index_of("g"), bench.coordinator()
    end = bench.partition(old, OFFSETS_TOPIC, index).log.end_offset + 1
    followers = [number for number in bench.ids if number != old]
    asked = bench.start(old, bench.broker(old).groups.ask(commit("g", 2), "g"))

    def has_it(number: int) -> bool:
        partition = bench.partition(number, OFFSETS_TOPIC, index)
        return partition.log.acknowledged_end >= end > partition.high_watermark

    bench.until(lambda: all(has_it(number) for number in followers))
    bench.kill(old)
    assert not asked.done()
    fault = bench.world.network.cut([bench.name(followers[0])], [bench.name(followers[1])])
    bench.until(lambda: bench.leader(OFFSETS_TOPIC, index) in followers)
    new = bench.leader(OFFSETS_TOPIC, index)
    bench.world.run_for(1)
    assert error_of(bench.ask_at(new, FetchOffsets(group="g"))) is ErrorCode.coordinator_load_in_progress
    fault.heal()
    assert bench.committed() == {("orders", 0): 2}


def test_too_few_replicas_refuse_commits_and_lose_no_member(bench: GroupsCluster) -> None:
    bench.ready()
    joined = bench.member("g")
    bench.get(commit("simple", 1), "simple")
    leader = bench.coordinator("g")
    others = [number for number in bench.ids if number != leader]
    for number in others:
        bench.kill(number)
    bench.until(lambda: len(bench.isr(OFFSETS_TOPIC, bench.index_of("g"))) == 1)
    assert error_of(bench.ask_at(leader, heartbeat("g", joined))) is ErrorCode.coordinator_not_available
    bench.world.run_for(30)
    for number in others:
        bench.boot(number)
    bench.until(lambda: len(bench.isr(OFFSETS_TOPIC, bench.index_of("g"))) == 3)
    assert bench.get(heartbeat("g", joined)) == HeartbeatReply(), "it could not be heard for half a minute"
    assert bench.committed("simple") == {("orders", 0): 1}


def test_offsets_go_with_their_topic(bench: GroupsCluster) -> None:
    bench.ready()
    bench.run(bench.create("bills"))
    bench.get(commit("g", 1))
    bench.get(commit("g", 2, topic="bills"))

    async def delete() -> None:
        async with Admin(bench.bootstrap) as admin:
            await admin.delete_topic("bills")

    bench.run(delete())
    bench.until(lambda: bench.committed() == {("orders", 0): 1})
    bench.kill(bench.coordinator())
    assert bench.committed() == {("orders", 0): 1}


def test_a_coordinator_that_takes_over_hears_of_topics_that_went_meanwhile(bench: GroupsCluster) -> None:
    bench.ready()
    bench.run(bench.create("bills"))
    bench.get(commit("g", 1))
    bench.get(commit("g", 2, topic="bills"))
    old = bench.coordinator()
    bench.kill(old)

    async def delete() -> None:
        async with Admin(bench.bootstrap) as admin:
            await admin.delete_topic("bills")

    bench.run(delete())
    assert bench.leader(OFFSETS_TOPIC, bench.index_of("g")) == -1, "nobody leads yet"
    assert bench.committed() == {("orders", 0): 1}


def test_the_topic_has_as_many_replicas_as_it_should() -> None:
    with SimWorld(1) as world:
        bench = GroupsCluster(world, brokers=2, properties=PROPERTIES)
        early = bench.on(1, bench.broker(1).groups.coordinator_of("g"))
        assert isinstance(early, Refused), "a third broker may be about to start"
        assert early.error is ErrorCode.coordinator_not_available
        world.run_for(6)
        bench.on(1, bench.broker(1).groups.coordinator_of("g"))
        topic = bench.broker(1).topics.get(OFFSETS_TOPIC)
        assert topic is not None
        assert topic.replication_factor == 2
        assert topic.config.cleanup_policy == {"compact"}


def test_a_number_of_replicas_that_was_set_needs_a_majority_of_brokers() -> None:
    with SimWorld(1) as world:
        bench = GroupsCluster(world, brokers=2, properties={**PROPERTIES, "offsets.topic.replication.factor": "5"})
        for _ in range(3):
            refused = bench.on(1, bench.broker(1).groups.coordinator_of("g"))
            assert isinstance(refused, Refused)
            assert refused.error is ErrorCode.coordinator_not_available
            world.run_for(10)


def test_only_leaders_have_coordinators(bench: GroupsCluster) -> None:
    bench.ready()
    bench.world.run_for(1)
    for number in bench.ids:
        shards = bench.broker(number).groups._shards
        led = {index for index in range(3) if bench.leader(OFFSETS_TOPIC, index) == number}
        assert set(shards) == led
        assert {shard.state for shard in shards.values()} <= {State.SERVING}
