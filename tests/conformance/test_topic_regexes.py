"""Subscriptions by regular expression in groups of the consumer protocol (KIP-848): the broker resolves them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from tests.conformance.conftest import ClientOf, TopicOf
from tests.conformance.leaders import wait_until_known

DEADLINE_S = 90.0
Rebalance = tuple[str, frozenset[str]]
"""Assigned or revoked, and the topics."""


class Member:
    """A librdkafka consumer that records each rebalance."""

    def __init__(self, bootstrap: str, group: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
        self._consumer = confluent_kafka.Consumer(settings)
        self.rebalances: list[Rebalance] = []

    def subscribe(self, *topics: str) -> None:
        self._consumer.subscribe(list(topics), on_assign=self._noting("assigned"), on_revoke=self._noting("revoked"))

    def unsubscribe(self) -> None:
        self._consumer.unsubscribe()

    def _noting(self, what: str) -> Callable[[Any, list[confluent_kafka.TopicPartition]], None]:
        def note(_: Any, partitions: list[confluent_kafka.TopicPartition]) -> None:
            self.rebalances.append((what, frozenset(partition.topic for partition in partitions)))

        return note

    def wait_for(self, *expected: Rebalance) -> None:
        """Waits for exactly these rebalances, in this order."""
        deadline_s = time.monotonic() + DEADLINE_S
        while len(self.rebalances) < len(expected) and time.monotonic() < deadline_s:
            message = self._consumer.poll(0.1)
            assert message is None or message.error() is None, message.error()
        assert self.rebalances == list(expected)
        self.rebalances.clear()

    def wait_for_error(self) -> confluent_kafka.KafkaError:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            message = self._consumer.poll(0.1)
            if message is not None and (error := message.error()) is not None:
                return error
        raise TimeoutError("no error")

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def member(bootstrap: str, fresh_topic: TopicOf) -> Iterator[Member]:
    member = Member(bootstrap, fresh_topic("group"))
    yield member
    member.close()


@pytest.fixture
def topics(client_of: ClientOf, fresh_topic: TopicOf, bootstrap: str) -> tuple[str, str, str]:
    """Two topics that end with .x1 and .x2, and another one."""
    base = fresh_topic("patterns")
    names = f"{base}.x1", f"{base}.x2", fresh_topic("literal")
    for name in names:
        client_of("confluent-kafka").create_topic(name, partitions=2)
        wait_until_known(bootstrap, name)
    return names


def test_names_come_first_and_matching_topics_later(member: Member, topics: tuple[str, str, str]) -> None:
    """The reply to the first heartbeat with an expression has only the topics subscribed by name, as in Kafka."""
    first, second, literal = topics
    regex = f"^{first[:-3]}[.]x.*"
    both = frozenset({first, second})
    member.subscribe(first)
    member.wait_for(("assigned", frozenset({first})))
    member.unsubscribe()
    member.wait_for(("revoked", frozenset({first})))
    member.subscribe(regex)
    member.wait_for(("assigned", both))
    member.unsubscribe()
    member.wait_for(("revoked", both))
    member.subscribe(regex, literal)
    member.wait_for(("assigned", frozenset({literal})), ("assigned", both))
    member.unsubscribe()
    member.wait_for(("revoked", both | {literal}))


def test_a_new_topic_that_matches(
    member: Member, topics: tuple[str, str, str], client_of: ClientOf, bootstrap: str
) -> None:
    first, second, _ = topics
    base = first[:-3]
    member.subscribe(f"^{base}[.]x.*")
    member.wait_for(("assigned", frozenset({first, second})))
    client_of("confluent-kafka").create_topic(f"{base}.x3")
    wait_until_known(bootstrap, f"{base}.x3")
    member.wait_for(("assigned", frozenset({f"{base}.x3"})))


def test_the_whole_name_has_to_match(member: Member, topics: tuple[str, str, str]) -> None:
    first, _, literal = topics
    member.subscribe(f"^{first[:-1]}", f"^{literal}$")
    member.wait_for(("assigned", frozenset({literal})))


def test_an_expression_that_re2_does_not_take(member: Member, topics: tuple[str, str, str]) -> None:
    """librdkafka sends it to the broker unchanged and passes on the error."""
    member.subscribe(r"^(a)\1")
    error = member.wait_for_error()
    assert "regular" in error.str().lower() or "regex" in error.str().lower(), error
