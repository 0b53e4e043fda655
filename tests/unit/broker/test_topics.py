"""Valid topic names, as in Kafka."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.broker.topics.topics import Topic, Topics
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId
from ottla.protocol.model.topic_names import check_name
from tests.support.sim_logs import config_of


def topic(name: str, number: int = 1) -> Topic:
    return Topic(name, TopicId(UUID(int=number)), config_of(), {}, 0)


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "a" * 249, "...", "-", "__consumer_offsets", ".a", "a."])
def test_names_that_are_taken(name: str) -> None:
    assert check_name(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "ä", "a\n", "a:b", "a\0", "a,b", "*"])
def test_names_that_are_not(name: str) -> None:
    refused = check_name(name)
    assert refused is not None
    assert refused.error is ErrorCode.invalid_topic_exception


def test_two_names_that_are_one_in_metrics_collide() -> None:
    topics = Topics()
    topics.add(topic("a.b"))
    assert topics.check_new_name("a_b") == Refused(
        ErrorCode.invalid_topic_exception, "Topic 'a_b' collides with existing topics: a.b"
    )
    assert topics.check_new_name("a.c") is None


def test_a_name_is_free_again_after_its_topic_is_gone() -> None:
    topics = Topics()
    first = topic("a.b")
    topics.add(first)
    refused = topics.check_new_name("a.b")
    assert refused is not None
    assert refused.error is ErrorCode.topic_already_exists
    topics.remove(first)
    assert topics.check_new_name("a.b") is None
    assert topics.check_new_name("a_b") is None
    assert topics.get("a.b") is None
    assert topics.by_id(first.id) is None


def test_topics_come_sorted_and_each_change_counts() -> None:
    topics = Topics()
    versions = [topics.version]
    for number, name in enumerate(["c", "a", "b"]):
        topics.add(topic(name, number + 1))
        versions.append(topics.version)
    topics.changed()
    versions.append(topics.version)
    assert [each.name for each in topics] == ["a", "b", "c"]
    assert versions == sorted(set(versions))
    assert len(topics) == 3


def test_a_partition_that_is_not_there() -> None:
    assert topic("a").partition(0) is None
    assert topic("a").partition(-1) is None


def test_internal_topics() -> None:
    assert topic("__consumer_offsets").internal
    assert not topic("orders").internal
