"""Without an authorizer, a client may perform every operation that applies to a resource, and replies say so."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from ottla.protocol.wire.headers import parse_response_header, request_header
from ottla.protocol.wire.schema import decode, encode, request_type, response_type
from tests.conformance.clients.group_librdkafka import ConfluentGroupUser
from tests.conformance.clients.interface import Record
from tests.conformance.clients.java_client import JavaClient
from tests.conformance.conftest import ClientOf, TopicOf
from tests.conformance.leaders import wait_until_known
from tests.support.handlers_caller import build

TOPIC = {"READ", "WRITE", "CREATE", "DESCRIBE", "DELETE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}
GROUP = {"READ", "DESCRIBE", "DELETE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}
CLUSTER = {"CREATE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "ALTER", "DESCRIBE"}
NOT_REQUESTED = -(2**31)
METADATA, DESCRIBE_GROUPS, DESCRIBE_CLUSTER, CONSUMER_GROUP_DESCRIBE, DESCRIBE_TOPIC_PARTITIONS = 3, 15, 60, 69, 75


def bits(names: set[str]) -> int:
    return sum(1 << AclOperation[name].value for name in names)


def names_of(operations: Any) -> set[str]:
    return {operation.name for operation in operations}


@pytest.fixture
def topic(client_of: ClientOf, fresh_topic: TopicOf, bootstrap: str) -> str:
    name = fresh_topic("authorized")
    client = client_of("confluent-kafka")
    client.create_topic(name)
    wait_until_known(bootstrap, name)
    client.write(name, [Record(b"1")])
    return name


@pytest.fixture(params=["classic", "consumer"])
def group(request: pytest.FixtureRequest, bootstrap: str, topic: str) -> tuple[str, str]:
    """Creates a group without members; returns its name and its protocol."""
    name = f"{topic}-group"
    ConfluentGroupUser(bootstrap).consume(name, topic, 1, request.param)
    return name, request.param


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.mark.parametrize("is_asked", [True, False])
def test_librdkafka_sees_the_operations_on_a_topic(admin: AdminClient, topic: str, is_asked: bool) -> None:
    futures = admin.describe_topics(TopicCollection([topic]), include_authorized_operations=is_asked)
    operations = futures[topic].result(30).authorized_operations
    assert names_of(operations or ()) == (TOPIC if is_asked else set())


@pytest.mark.parametrize("is_asked", [True, False])
def test_librdkafka_sees_the_operations_on_the_cluster(admin: AdminClient, is_asked: bool) -> None:
    operations = admin.describe_cluster(include_authorized_operations=is_asked).result(30).authorized_operations
    assert names_of(operations or ()) == (CLUSTER if is_asked else set())


@pytest.mark.parametrize("is_asked", [True, False])
def test_librdkafka_sees_the_operations_on_a_group(admin: AdminClient, group: tuple[str, str], is_asked: bool) -> None:
    name, _ = group
    futures = admin.describe_consumer_groups([name], include_authorized_operations=is_asked)
    operations = futures[name].result(30).authorized_operations
    assert names_of(operations or ()) == (GROUP if is_asked else set())


def test_java_sees_the_operations_on_a_group(client_of: ClientOf, group: tuple[str, str]) -> None:
    client = client_of("java")
    assert isinstance(client, JavaClient)
    name, _ = group
    (_, _, operations), *_ = client.ask("describe-group", name)
    assert set(operations.strip("[]").split(", ")) == GROUP


async def asked_raw(bootstrap: str, key: int, version: int, **values: Any) -> Any:
    host, port = bootstrap.split(",", maxsplit=1)[0].rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    frame = request_header(key, version, 7, "test") + encode(build(request_type(key, version), values))
    writer.write(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    whole = memoryview(await reader.readexactly(size))
    writer.close()
    return decode(response_type(key, version), whole, parse_response_header(key, version, whole)[1])[0]


@pytest.mark.parametrize("of_cluster", [True, False])
@pytest.mark.parametrize("of_topics", [True, False])
@pytest.mark.parametrize("version", [8, 10, 13])
def test_metadata(bootstrap: str, topic: str, version: int, of_topics: bool, of_cluster: bool) -> None:
    """Also for a topic that does not exist; from v11 on the cluster's operations have a separate API."""
    ids = {"topic_id": None} if version >= 10 else {}
    asked = [{"name": name, **ids} for name in (topic, f"{topic}-absent")]
    included = {"include_topic_authorized_operations": of_topics}
    if version <= 10:
        included["include_cluster_authorized_operations"] = of_cluster
    response = asyncio.run(
        asked_raw(bootstrap, METADATA, version, topics=asked, allow_auto_topic_creation=False, **included)
    )
    expected = bits(TOPIC) if of_topics else NOT_REQUESTED
    assert [each.topic_authorized_operations for each in response.topics] == [expected] * 2
    if version <= 10:
        assert response.cluster_authorized_operations == (bits(CLUSTER) if of_cluster else NOT_REQUESTED)


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_describe_cluster(bootstrap: str, version: int, is_asked: bool) -> None:
    asked: dict[str, Any] = {"include_cluster_authorized_operations": is_asked}
    if version >= 2:
        asked |= {"endpoint_type": 1, "include_fenced_brokers": False}
    response = asyncio.run(asked_raw(bootstrap, DESCRIBE_CLUSTER, version, **asked))
    assert response.cluster_authorized_operations == (bits(CLUSTER) if is_asked else NOT_REQUESTED)


def test_describe_topic_partitions_always_includes_them(bootstrap: str, topic: str) -> None:
    asked = [{"name": topic}, {"name": f"{topic}-absent"}]
    response = asyncio.run(
        asked_raw(bootstrap, DESCRIBE_TOPIC_PARTITIONS, 0, topics=asked, response_partition_limit=10, cursor=None)
    )
    assert [each.topic_authorized_operations for each in response.topics] == [bits(TOPIC)] * 2


@pytest.mark.parametrize("is_asked", [True, False])
def test_describe_groups(bootstrap: str, group: tuple[str, str], is_asked: bool) -> None:
    """A group that does not exist has none."""
    name, protocol = group
    absent = f"{name}-absent"
    if protocol == "classic":
        key, version, asked = DESCRIBE_GROUPS, 6, {"groups": [name, absent]}
    else:
        key, version, asked = CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": [name, absent]}
    response = asyncio.run(asked_raw(bootstrap, key, version, include_authorized_operations=is_asked, **asked))
    expected = {name: bits(GROUP) if is_asked else NOT_REQUESTED, absent: NOT_REQUESTED}
    assert {each.group_id: each.authorized_operations for each in response.groups} == expected
