"""Changes of topics that coordinators are notified of, and the topic that stores their state."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ottla.broker.groups.topic_changes import TopicChanges
from ottla.broker.groups.topic_patterns import compile_pattern
from ottla.broker.topics.topics import Topic
from ottla.machines.coordinators import Instant
from ottla.machines.groups.coordinator import GroupCoordinator
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.machines.groups.replies import ConsumerHeartbeatReply
from ottla.machines.groups.requests import TopicsChanged
from ottla.machines.groups.shard import Step
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from tests.support.groups_bench import GroupsAlone, commit, first_heartbeat


async def test_many_topics_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = GroupsAlone(offsets_topic_num_partitions="8")
    await bench.ready()
    for number in range(8):
        await bench.ask(first_heartbeat(f"g{number}"), f"g{number}")
    told = 0
    original = GroupCoordinator.topics_changed

    def count(self: GroupCoordinator, topics: TopicsChanged, now: Instant) -> Step:
        nonlocal told
        told += 1
        return original(self, topics, now)

    monkeypatch.setattr(GroupCoordinator, "topics_changed", count)
    names = [f"topic-{number}" for number in range(100)]
    await bench.until(asyncio.gather(*(bench.admin.create_topic(name, 1, {}) for name in names)))
    await bench.settle(500)
    assert 1 <= told <= 40, "a few times for each coordinator, not a hundred times"
    facts = bench.broker.groups._news.facts
    assert facts.keys() >= set(names)


async def test_a_deleted_topic_is_gone_though_it_is_there_again() -> None:
    bench = GroupsAlone()
    await bench.ready()
    await bench.ask(commit("g", 5))
    topic = bench.broker.topics.get("orders")
    assert topic is not None
    assert await bench.until(bench.admin.delete_topic(topic)) is None
    await bench.create("orders", partitions=4)
    await bench.settle(1000)
    assert await bench.committed() == {}
    await bench.ask(commit("g", 1))
    bench.restart()
    await bench.until(bench.loaded())
    assert await bench.committed() == {("orders", 0): 1}


async def test_more_partitions_are_assigned() -> None:
    bench = GroupsAlone()
    await bench.ready()
    topic = bench.broker.topics.get("orders")
    assert topic is not None
    joined = await bench.ask(first_heartbeat("g"))
    assert isinstance(joined, ConsumerHeartbeatReply)
    assert joined.assignment is not None
    assert len(joined.assignment) == 4
    await bench.until(bench.admin.create_partitions(topic, 6))
    await bench.settle(500)
    silent = replace(first_heartbeat("g"), member_epoch=joined.member_epoch, subscribed_names=None, owned=None)
    again = await bench.ask(silent)
    assert isinstance(again, ConsumerHeartbeatReply)
    assert again.assignment is not None
    assert len(again.assignment) == 6


async def test_regular_expressions_match_whole_names_of_topics_as_they_are_now() -> None:
    bench = GroupsAlone()
    await bench.ready()
    news = TopicChanges(bench.broker.topics, lambda: True)

    def matching(regex: str) -> tuple[str, ...] | Refused:
        news.changed()
        news.refresh()
        return news.matching(regex)

    await bench.create("orders-eu")
    assert matching("orders.*") == ("orders", "orders-eu")
    assert matching("orders") == ("orders",)
    assert matching("rders") == ()
    topic = await bench.create("orders-us")
    assert matching("orders.*") == ("orders", "orders-eu", "orders-us")
    assert await bench.until(bench.admin.delete_topic(topic)) is None
    assert matching("orders.*") == ("orders", "orders-eu")


@pytest.mark.parametrize("regex", ["(", "a{2,1}", "(?=a)", r"(a)\1", "x{1000}{1000}", "a" * 5000, "\ud800"])
def test_what_re2_does_not_take_is_refused(regex: str) -> None:
    refused = compile_pattern(regex)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.invalid_regular_expression
    assert refused.message


def test_a_hostile_expression_costs_what_others_cost() -> None:
    """With `re` this expression would practically never finish."""
    pattern = compile_pattern("(a+)+b")
    assert not isinstance(pattern, Refused)
    assert pattern.fullmatch("a" * 249) is None


async def test_a_regex_that_is_subscribed_to_finds_new_topics() -> None:
    bench = GroupsAlone()
    await bench.ready()
    joined = await bench.ask(replace(first_heartbeat("g", topics=()), subscribed_regex="new-.*"))
    assert isinstance(joined, ConsumerHeartbeatReply)
    topic = await bench.create("new-1")
    await bench.settle(500)
    silent = replace(first_heartbeat("g"), member_epoch=joined.member_epoch, subscribed_names=None, owned=None)
    again = await bench.ask(silent)
    assert isinstance(again, ConsumerHeartbeatReply)
    assert again.assignment == frozenset({(topic.id, 0)})


async def test_a_regex_is_resolved_after_the_heartbeat_that_brings_it() -> None:
    """Topics by name are assigned at once, matching topics with the next heartbeat."""
    bench = GroupsAlone()
    await bench.ready()
    named = await bench.create("named")
    matched = await bench.create("matched-1")
    first = replace(first_heartbeat("g", topics=("named",)), subscribed_regex="matched-.*")
    joined = await bench.ask(first)
    assert isinstance(joined, ConsumerHeartbeatReply)
    assert joined.assignment == frozenset({(named.id, 0)})
    await bench.settle(10)
    silent = replace(first_heartbeat("g"), member_epoch=joined.member_epoch, subscribed_names=None, owned=None)
    again = await bench.ask(silent)
    assert isinstance(again, ConsumerHeartbeatReply)
    assert again.assignment == frozenset({(named.id, 0), (matched.id, 0)})


# -- the topic itself ------------------------------------------------------------------------------------------------


async def test_the_topic_is_made_once_and_as_it_should_be() -> None:
    bench = GroupsAlone(offsets_topic_num_partitions="7", offsets_topic_segment_bytes="1000000")
    made = asyncio.gather(*(bench.broker.groups.coordinator_of(f"g{number}") for number in range(20)))
    nodes = await bench.until(made)
    assert not any(isinstance(node, Refused) for node in nodes)
    topic = bench.broker.topics.get(OFFSETS_TOPIC)
    assert topic is not None
    assert topic.internal
    assert topic.partition_count == 7
    assert topic.config.cleanup_policy == {"compact"}
    assert topic.config.durability is Durability.DISK
    assert topic.config.segment_bytes == 1_000_000


async def test_asking_for_its_metadata_makes_it_too() -> None:
    bench = GroupsAlone(offsets_topic_num_partitions="7", auto_create_topics_enable="false")
    topic = await bench.until(bench.broker.ensure_topic(OFFSETS_TOPIC))
    assert isinstance(topic, Topic)
    assert topic.partition_count == 7


async def test_clients_neither_write_to_it_nor_make_it_larger() -> None:
    bench = GroupsAlone()
    await bench.ready()
    refused = bench.append(OFFSETS_TOPIC)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.invalid_topic_exception
    topic = bench.broker.topics.get(OFFSETS_TOPIC)
    assert topic is not None
    grown = await bench.until(bench.admin.create_partitions(topic, 10))
    assert grown is not None
    assert grown.error is ErrorCode.invalid_partitions


async def test_after_its_deletion_groups_begin_anew() -> None:
    bench = GroupsAlone()
    await bench.ready()
    await bench.ask(commit("g", 5))
    topic = bench.broker.topics.get(OFFSETS_TOPIC)
    assert topic is not None
    assert await bench.until(bench.admin.delete_topic(topic)) is None
    assert await bench.ask(commit("g", 6)) == Refused(ErrorCode.not_coordinator)
    await bench.until(bench.broker.groups.coordinator_of("g"))
    await bench.until(bench.loaded())
    assert await bench.committed() == {}


async def test_partitions_without_groups_take_no_space() -> None:
    bench = GroupsAlone(offsets_topic_num_partitions="50", offsets_retention_check_interval_ms="1000")
    await bench.ready()
    await bench.settle(3000)
    partitions = [bench.partition(OFFSETS_TOPIC, index) for index in range(50)]
    assert not any(partition.log.segments[-1].allocated_end for partition in partitions)  # type: ignore[union-attr]  # all are files
