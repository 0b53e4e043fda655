"""Kafka's error codes for invalid requests, as each client reports them to its user."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.protocol.model.errors import ErrorCode
from tests.conformance.clients.interface import Ability, Client, Record, RefusedByBroker
from tests.conformance.conftest import LEADERS_MOVE, NAMES, ONE_BROKER, ClientOf, TopicOf, named
from tests.conformance.leaders import wait_until_known

ADMINS = named(Ability.ADMIN)
pytestmark = pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)


def refusal_of(call: Callable[[], object]) -> RefusedByBroker:
    with pytest.raises(RefusedByBroker) as caught:
        call()
    return caught.value


@pytest.fixture
def topic(client_of: ClientOf, fresh_topic: TopicOf, bootstrap: str) -> str:
    """A topic of one partition with ten records."""
    name = fresh_topic("refused")
    client = client_of("confluent-kafka")
    client.create_topic(name)
    wait_until_known(bootstrap, name)
    client.write(name, [Record(b"%d" % number) for number in range(10)])
    return name


CREATIONS: dict[str, tuple[ErrorCode, Callable[[Client, str], None]]] = {
    "a name with a slash": (
        ErrorCode.invalid_topic_exception,
        lambda client, name: client.create_topic(f"{name}/x"),
    ),
    "a name of 250 characters": (
        ErrorCode.invalid_topic_exception,
        lambda client, name: client.create_topic("n" * 250),
    ),
    "a name of one dot": (
        ErrorCode.invalid_topic_exception,
        lambda client, name: client.create_topic("."),
    ),
    "no partitions": (
        ErrorCode.invalid_partitions,
        lambda client, name: client.create_topic(name, partitions=0),
    ),
    "an unknown config": (
        ErrorCode.invalid_config,
        lambda client, name: client.create_topic(name, configs={"retention.mss": "1"}),
    ),
    "a config that is no number": (
        ErrorCode.invalid_config,
        lambda client, name: client.create_topic(name, configs={"retention.ms": "soon"}),
    ),
    "a config out of range": (
        ErrorCode.invalid_config,
        lambda client, name: client.create_topic(name, configs={"min.insync.replicas": "0"}),
    ),
    "a config with an unknown word": (
        ErrorCode.invalid_config,
        lambda client, name: client.create_topic(name, configs={"cleanup.policy": "burn"}),
    ),
}


@pytest.mark.parametrize("mistake", CREATIONS)
@pytest.mark.parametrize("name", ADMINS)
def test_creating_a_topic_with(client_of: ClientOf, fresh_topic: TopicOf, name: str, mistake: str) -> None:
    expected, create = CREATIONS[mistake]
    client = client_of(name)
    topic = fresh_topic("mistake")
    refusal = refusal_of(lambda: create(client, topic))
    assert refusal.error == expected
    assert topic not in client.topics()


@pytest.mark.parametrize("name", ADMINS)
def test_creating_a_topic_twice(client_of: ClientOf, topic: str, name: str) -> None:
    assert refusal_of(lambda: client_of(name).create_topic(topic)).error == ErrorCode.topic_already_exists


@pytest.mark.parametrize("name", ADMINS)
def test_names_that_collide_in_metrics(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    """Kafka rejects a.b beside a_b."""
    client = client_of(name)
    topic = fresh_topic("a.b")
    client.create_topic(topic)
    refusal = refusal_of(lambda: client.create_topic(topic.replace(".", "_")))
    assert refusal.error == ErrorCode.invalid_topic_exception


@pytest.mark.parametrize("name", ADMINS)
def test_deleting_what_is_not_there(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    refusal = refusal_of(lambda: client_of(name).delete_topic(fresh_topic("absent")))
    assert refusal.error == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("total", [1, 2])
@pytest.mark.parametrize("name", ADMINS)
def test_partitions_never_become_fewer(
    client_of: ClientOf, fresh_topic: TopicOf, bootstrap: str, name: str, total: int
) -> None:
    client = client_of(name)
    topic = fresh_topic("two")
    client.create_topic(topic, partitions=2)
    wait_until_known(bootstrap, topic)
    assert refusal_of(lambda: client.create_partitions(topic, total)).error == ErrorCode.invalid_partitions
    assert client.topics()[topic] == 2


@pytest.mark.parametrize(("config", "value"), [("retention.mss", "1"), ("retention.ms", "soon")])
@pytest.mark.parametrize("name", ADMINS)
def test_altering_to_nonsense(client_of: ClientOf, topic: str, name: str, config: str, value: str) -> None:
    client = client_of(name)
    if name == "kafka-python" and config == "retention.mss":
        pytest.skip("kafka-python refuses an unknown name by itself")
    assert refusal_of(lambda: client.alter_config(topic, config, value)).error == ErrorCode.invalid_config
    assert client.configs(topic)["retention.ms"] == "604800000"


@pytest.mark.parametrize("name", named(Ability.ERROR_OF_WRITE))
def test_a_record_that_is_too_large(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("small")
    client.create_topic(topic, configs={"max.message.bytes": "1000"})
    client.write(topic, [Record(b"x" * 900)])
    refusal = refusal_of(lambda: client.write(topic, [Record(b"x" * 1000)]))
    assert refusal.error == ErrorCode.message_too_large
    assert client.ends(topic) == (0, 1)


@pytest.mark.parametrize("name", named(Ability.ERROR_OF_WRITE))
def test_a_record_without_a_key_on_a_compacted_topic(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("compacted")
    client.create_topic(topic, configs={"cleanup.policy": "compact"})
    client.write(topic, [Record(b"x", b"key")])
    refusal = refusal_of(lambda: client.write(topic, [Record(b"x")]))
    # aiokafka does not know this code and reports an unknown error.
    expected = ErrorCode.unknown_server_error if name == "aiokafka" else ErrorCode.invalid_record
    assert refusal.error == expected
    assert client.ends(topic) == (0, 1)


@pytest.mark.parametrize("name", named(Ability.ERROR_OF_WRITE))
def test_a_timestamp_too_far_ahead(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("future")
    client.create_topic(topic)
    refusal = refusal_of(lambda: client.write(topic, [Record(b"x", timestamp_ms=9_999_999_999_999)]))
    assert refusal.error == ErrorCode.invalid_timestamp


@pytest.mark.parametrize("name", named(Ability.DELETE_RECORDS))
def test_deleting_more_than_there_is(client_of: ClientOf, topic: str, name: str) -> None:
    assert refusal_of(lambda: client_of(name).delete_records(topic, 11)).error == ErrorCode.offset_out_of_range


@pytest.mark.parametrize("name", NAMES)
def test_reading_past_the_end(client_of: ClientOf, topic: str, name: str) -> None:
    client = client_of(name)
    if name == "kcat":
        pytest.skip("kcat goes to the end of the log by itself")
    with pytest.raises(Exception, match=r"(?i)out.?of.?range") as caught:
        client.read(topic, 1, offset=1000)
    assert "Timeout" not in type(caught.value).__name__
