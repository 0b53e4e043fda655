"""Manual replica assignments in CreateTopics and CreatePartitions, through librdkafka's admin client.

The same cases as librdkafka's own test 0081: the placement is exactly the requested one, and an invalid assignment is
rejected and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.conformance.conftest import LEADERS_MOVE, ONE_BROKER, TopicOf

pytestmark = [
    pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE),
    pytest.mark.leaders_at_rest("each topic must keep its preferred leader"),
]
TIMEOUT_S = 30.0
UNKNOWN_BROKER = 4711

Placement = list[list[int]]


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def brokers(admin: AdminClient) -> list[int]:
    return sorted(admin.list_topics(timeout=TIMEOUT_S).brokers)


def rotated(brokers: list[int], first: int, count: int) -> Placement:
    """Every broker leads in turn. As many replicas as there are brokers, or one less if that leaves two or more."""
    factor = max(1, min(len(brokers), 3) - (len(brokers) > 2))
    return [
        [brokers[(index + position) % len(brokers)] for position in range(factor)]
        for index in range(first, first + count)
    ]


def create(admin: AdminClient, topic: str, placement: Placement, *, validate_only: bool = False) -> None:
    asked = NewTopic(topic, num_partitions=len(placement), replica_assignment=placement)
    admin.create_topics([asked], validate_only=validate_only, operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)


def grow(
    admin: AdminClient, topic: str, total: int, placement: Placement | None, *, validate_only: bool = False
) -> None:
    asked = NewPartitions(topic, total, placement) if placement is not None else NewPartitions(topic, total)
    admin.create_partitions([asked], validate_only=validate_only, operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)


def eventually_placed(admin: AdminClient, topic: str, placement: Placement) -> None:
    """Waits, since Kafka's metadata follow its controller with a delay. The first replica of each partition leads."""
    wanted = {index: (replicas[0], replicas) for index, replicas in enumerate(placement)}
    deadline = time.monotonic() + TIMEOUT_S
    found: dict[int, Any] = {}
    while found != wanted and time.monotonic() < deadline:
        described = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        found = {index: (each.leader, list(each.replicas)) for index, each in described.items()}
    assert found == wanted


def refused(call: Callable[[], None]) -> None:
    with pytest.raises(KafkaException) as caught:
        call()
    error: KafkaError = caught.value.args[0]
    assert error.code() == KafkaError.INVALID_REPLICA_ASSIGNMENT, error


def test_a_topic_is_placed_as_assigned(admin: AdminClient, brokers: list[int], fresh_topic: TopicOf) -> None:
    topic, placement = fresh_topic("placed"), rotated(brokers, 0, 7)
    create(admin, topic, placement)
    eventually_placed(admin, topic, placement)


def test_new_partitions_are_placed_as_assigned(admin: AdminClient, brokers: list[int], fresh_topic: TopicOf) -> None:
    topic, old, new = fresh_topic("grown"), rotated(brokers, 0, 2), rotated(brokers, 1, 5)
    create(admin, topic, old)
    grow(admin, topic, 7, new)
    eventually_placed(admin, topic, old + new)


def test_validate_only_changes_nothing(admin: AdminClient, brokers: list[int], fresh_topic: TopicOf) -> None:
    topic, placement = fresh_topic("validated"), rotated(brokers, 0, 3)
    create(admin, topic, placement, validate_only=True)
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics
    create(admin, topic, placement)
    eventually_placed(admin, topic, placement)
    grow(admin, topic, 4, rotated(brokers, 1, 1), validate_only=True)
    eventually_placed(admin, topic, placement)


@pytest.mark.parametrize("validate_only", [True, False])
def test_topics_with_invalid_assignments_are_refused(
    admin: AdminClient, brokers: list[int], fresh_topic: TopicOf, validate_only: bool
) -> None:
    topic, (first, *others) = fresh_topic("refused"), brokers
    invalid = [[[first], [UNKNOWN_BROKER]], [[UNKNOWN_BROKER]], [[first, first]]]
    if others:
        invalid += [[[first], [first, others[0]]], [[first, others[0]], [others[0]]]]
    for placement in invalid:
        refused(partial(create, admin, topic, placement, validate_only=validate_only))
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics


@pytest.mark.parametrize("validate_only", [True, False])
def test_partitions_with_invalid_assignments_are_refused(
    admin: AdminClient, brokers: list[int], fresh_topic: TopicOf, validate_only: bool
) -> None:
    topic, placement = fresh_topic("not-grown"), rotated(brokers, 0, 2)
    create(admin, topic, placement)
    eventually_placed(admin, topic, placement)
    factor, leader = len(placement[0]), brokers[0]
    unknown = [UNKNOWN_BROKER, *brokers][:factor]
    invalid = [[unknown, unknown], [[leader] * (factor + 1)] * 2]
    if factor > 1:
        invalid.append([[leader], [leader]])
    for new in invalid:
        refused(partial(grow, admin, topic, 4, new, validate_only=validate_only))
    eventually_placed(admin, topic, placement)
