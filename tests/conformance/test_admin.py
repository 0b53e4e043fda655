"""Topics, partitions, configurations and offsets through each client's admin API."""

from __future__ import annotations

import time

import pytest

from tests.conformance.clients.interface import Ability, Client, Record
from tests.conformance.clients.java_client import JavaClient
from tests.conformance.conftest import LEADERS_MOVE, NAMES, ONE_BROKER, ClientOf, TopicOf, World, named
from tests.conformance.leaders import wait_until_known
from tests.conformance.records import TIME_MS

ADMINS = named(Ability.ADMIN)
SOON_S = 30.0
pytestmark = pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)


def eventually(client: Client, topic: str, partitions: int | None) -> None:
    """Waits until the client sees the expected topic. Kafka's metadata follow its controller with a delay."""
    deadline = time.monotonic() + SOON_S
    while (found := client.topics().get(topic)) != partitions and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == partitions


def eventually_config(client: Client, topic: str, retention_ms: str) -> dict[str, str | None]:
    """Waits until any broker returns the expected config. A broker that does has the whole change."""
    deadline = time.monotonic() + SOON_S
    while (found := client.configs(topic))["retention.ms"] != retention_ms and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found["retention.ms"] == retention_ms
    return found


@pytest.mark.parametrize("name", ADMINS)
def test_topics_come_and_go(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("life")
    client.create_topic(topic, partitions=4)
    eventually(client, topic, 4)
    client.delete_topic(topic)
    eventually(client, topic, None)


@pytest.mark.parametrize("name", ADMINS)
def test_a_topic_created_again_is_empty(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("again")
    client.create_topic(topic)
    client.write(topic, [Record(b"old")] * 5)
    client.delete_topic(topic)
    eventually(client, topic, None)
    client.create_topic(topic)
    eventually(client, topic, 1)
    assert client.ends(topic) == (0, 0)
    client.write(topic, [Record(b"new")])
    assert [(r.offset, r.value) for r in client.read(topic, 1)] == [(0, b"new")]


@pytest.mark.parametrize("name", ADMINS)
def test_partitions_are_added(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("growing")
    client.create_topic(topic, partitions=1)
    client.create_partitions(topic, 3)
    eventually(client, topic, 3)
    client.write(topic, [Record(b"third", partition=2)])
    assert client.read(topic, 1, partition=2)[0].value == b"third"


@pytest.mark.parametrize("name", ADMINS)
def test_default_configs_are_kafkas(client_of: ClientOf, fresh_topic: TopicOf, world: World, name: str) -> None:
    """Except min.insync.replicas: Ottla's default is a majority."""
    client = client_of(name)
    topic = fresh_topic("defaults")
    client.create_topic(topic)
    wait_until_known(world.bootstrap, topic)
    found = client.configs(topic)
    expected = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": str(world.replicas // 2 + 1),
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "segment.bytes": "1073741824",
        "unclean.leader.election.enable": "false",
    }
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize("name", ADMINS)
def test_configs_are_set_at_creation_and_altered(
    client_of: ClientOf, fresh_topic: TopicOf, world: World, name: str
) -> None:
    client = client_of(name)
    topic = fresh_topic("configured")
    client.create_topic(topic, configs={"retention.ms": "60000", "max.message.bytes": "5000"})
    wait_until_known(world.bootstrap, topic)
    assert client.configs(topic)["retention.ms"] == "60000"
    client.alter_config(topic, "retention.ms", "120000")
    found = eventually_config(client, topic, "120000")
    # The old AlterConfigs replaces the whole set; the incremental one changes only the given keys.
    kept = Ability.INCREMENTAL_CONFIGS in client.abilities
    assert found["max.message.bytes"] == ("5000" if kept else "1048588")


@pytest.mark.parametrize("name", ADMINS)
def test_broker_configs(client_of: ClientOf, world: World, name: str) -> None:
    for node in range(1, world.replicas + 1):
        found = client_of(name).broker_configs(node)
        assert found["node.id"] == str(node)
        assert found["auto.create.topics.enable"] == "true"


@pytest.mark.parametrize("name", named(Ability.DELETE_RECORDS))
def test_records_are_deleted(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("trimmed")
    client.create_topic(topic)
    client.write(topic, [Record(b"%d" % number) for number in range(10)])
    assert client.delete_records(topic, 4) == 4
    assert client.ends(topic) == (4, 10)
    assert [record.offset for record in client.read(topic, 6, offset=4)] == list(range(4, 10))


@pytest.mark.parametrize("name", named(Ability.DELETE_RECORDS))
def test_all_records_are_deleted(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("emptied")
    client.create_topic(topic)
    client.write(topic, [Record(b"%d" % number) for number in range(10)])
    assert client.delete_records(topic, -1) == 10
    assert client.ends(topic) == (10, 10)


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("name", NAMES)
def test_offsets_by_time(client_of: ClientOf, fresh_topic: TopicOf, name: str, codec: str) -> None:
    """Exact within a batch, compressed or not."""
    client = client_of(name)
    writer = client if Ability.TIMESTAMPS in client.abilities else client_of("confluent-kafka")
    topic = fresh_topic("times")
    writer.create_topic(topic)
    writer.write(topic, [Record(b"x", timestamp_ms=TIME_MS + 100 * n) for n in range(10)], codec=codec)
    writer.write(topic, [Record(b"x", timestamp_ms=TIME_MS + 100 * n) for n in range(10, 20)], codec=codec)
    times = [0, TIME_MS, TIME_MS + 1, TIME_MS + 700, TIME_MS + 1450, TIME_MS + 1900]
    assert [client.offset_for_time(topic, when) for when in times] == [0, 0, 1, 7, 15, 19]
    # librdkafka returns the end of the log for a time after the last record, the others return nothing.
    assert client.offset_for_time(topic, TIME_MS + 1901) in (None, 20)


def java(client_of: ClientOf) -> JavaClient:
    client = client_of("java")
    assert isinstance(client, JavaClient)
    return client


def test_java_describes_the_cluster(client_of: ClientOf, world: World) -> None:
    ((cluster_id, nodes),) = java(client_of).ask("cluster")
    assert cluster_id not in ("", "null")
    assert nodes == str(world.replicas)


def test_java_describes_a_topic(client_of: ClientOf, fresh_topic: TopicOf, world: World) -> None:
    client = java(client_of)
    topic = fresh_topic("described")
    client.create_topic(topic, partitions=5)
    wait_until_known(world.bootstrap, topic)
    ((topic_id, partitions, leader),) = client.ask("describe", topic)
    assert len(topic_id) == 22
    assert topic_id != "A" * 22
    assert partitions == "5"
    assert leader in [str(node) for node in range(1, world.replicas + 1)]


def test_java_asks_for_the_latest_time(client_of: ClientOf, fresh_topic: TopicOf) -> None:
    client = java(client_of)
    topic = fresh_topic("latest")
    client.create_topic(topic)
    client.write(topic, [Record(b"x", timestamp_ms=TIME_MS + after) for after in (5, 90, 40, 20)])
    assert client.ask("offsets", topic, 0) == [["0"], ["4"], ["1"]]


def test_java_describes_the_log_directories(client_of: ClientOf, fresh_topic: TopicOf, world: World) -> None:
    client = java(client_of)
    topic = fresh_topic("sized")
    client.create_topic(topic, partitions=2)
    client.write(topic, [Record(b"x" * 10_000)])
    nodes = [str(node) for node in range(1, world.replicas + 1)]
    expected = {(node, index) for node in nodes for index in ("0", "1")}
    deadline = time.monotonic() + SOON_S
    while True:  # a follower creates its replica when it learns of the topic
        found = {(node, index): (int(size), int(total)) for node, index, size, total in client.ask("log-dirs", topic)}
        if set(found) == expected or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert set(found) == expected
    for node in nodes:
        assert 10_000 <= found[node, "0"][0] <= 11_000
        assert found[node, "1"][0] == 0
        assert found[node, "0"][1] > 10_000_000


def test_java_resets_a_config(client_of: ClientOf, fresh_topic: TopicOf, world: World) -> None:
    client = java(client_of)
    topic = fresh_topic("reset")
    client.create_topic(topic, configs={"retention.ms": "60000"})
    wait_until_known(world.bootstrap, topic)
    client.alter_config(topic, "retention.ms", "-")
    deadline = time.monotonic() + SOON_S
    while True:
        found = {name: source for name, _, source in client.ask("configs", "TOPIC", topic)}
        if found["retention.ms"] == "DEFAULT_CONFIG" or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert found["retention.ms"] == "DEFAULT_CONFIG"
    eventually_config(client, topic, "604800000")
