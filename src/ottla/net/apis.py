"""The Kafka APIs that the client calls, and the function that calls them.

A request is written once, as nested dictionaries with the fields of all versions; fields that the negotiated version
lacks are left out. Produce and Fetch are on the hot path and use `ottla.protocol.wire.produce` and
`ottla.protocol.wire.fetch` instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, get_args

from ottla.net.connection import Connection
from ottla.net.errors import ConnectionLostError, UnsupportedByBrokerError
from ottla.net.security import NO_SECURITY, ConnectionSecurity
from ottla.protocol.wire.primitives import MalformedRequest
from ottla.protocol.wire.schema import decode, encode, request_type, response_type


@dataclass(frozen=True, slots=True)
class ClientApi:
    """An API and the versions of it that this client speaks."""

    key: int
    name: str
    versions: tuple[int, int]
    """The lowest versions are those of Apache Kafka 3.0, the first release with topic ids throughout."""


PRODUCE = ClientApi(0, "Produce", (9, 13))
FETCH = ClientApi(1, "Fetch", (12, 17))
LIST_OFFSETS = ClientApi(2, "ListOffsets", (6, 10))
METADATA = ClientApi(3, "Metadata", (10, 13))
OFFSET_COMMIT = ClientApi(8, "OffsetCommit", (8, 9))
OFFSET_FETCH = ClientApi(9, "OffsetFetch", (8, 9))
FIND_COORDINATOR = ClientApi(10, "FindCoordinator", (4, 6))
JOIN_GROUP = ClientApi(11, "JoinGroup", (7, 9))
HEARTBEAT = ClientApi(12, "Heartbeat", (4, 4))
LEAVE_GROUP = ClientApi(13, "LeaveGroup", (4, 5))
SYNC_GROUP = ClientApi(14, "SyncGroup", (5, 5))
DESCRIBE_GROUPS = ClientApi(15, "DescribeGroups", (5, 6))
LIST_GROUPS = ClientApi(16, "ListGroups", (4, 5))
API_VERSIONS = ClientApi(18, "ApiVersions", (0, 4))
CREATE_TOPICS = ClientApi(19, "CreateTopics", (5, 7))
DELETE_TOPICS = ClientApi(20, "DeleteTopics", (4, 6))
DELETE_RECORDS = ClientApi(21, "DeleteRecords", (2, 2))
INIT_PRODUCER_ID = ClientApi(22, "InitProducerId", (2, 5))
ADD_PARTITIONS_TO_TXN = ClientApi(24, "AddPartitionsToTxn", (3, 3))
ADD_OFFSETS_TO_TXN = ClientApi(25, "AddOffsetsToTxn", (3, 4))
WRITE_TXN_MARKERS = ClientApi(27, "WriteTxnMarkers", (1, 1))
DESCRIBE_CONFIGS = ClientApi(32, "DescribeConfigs", (4, 4))
DESCRIBE_LOG_DIRS = ClientApi(35, "DescribeLogDirs", (2, 4))
CREATE_PARTITIONS = ClientApi(37, "CreatePartitions", (2, 3))
DELETE_GROUPS = ClientApi(42, "DeleteGroups", (2, 2))
ELECT_LEADERS = ClientApi(43, "ElectLeaders", (2, 2))
INCREMENTAL_ALTER_CONFIGS = ClientApi(44, "IncrementalAlterConfigs", (1, 1))
ALTER_PARTITION_REASSIGNMENTS = ClientApi(45, "AlterPartitionReassignments", (0, 1))
LIST_PARTITION_REASSIGNMENTS = ClientApi(46, "ListPartitionReassignments", (0, 0))
DESCRIBE_USER_SCRAM_CREDENTIALS = ClientApi(50, "DescribeUserScramCredentials", (0, 0))
ALTER_USER_SCRAM_CREDENTIALS = ClientApi(51, "AlterUserScramCredentials", (0, 0))
OFFSET_DELETE = ClientApi(47, "OffsetDelete", (0, 0))
DESCRIBE_CLUSTER = ClientApi(60, "DescribeCluster", (0, 1))
DESCRIBE_PRODUCERS = ClientApi(61, "DescribeProducers", (0, 0))
DESCRIBE_TRANSACTIONS = ClientApi(65, "DescribeTransactions", (0, 0))
LIST_TRANSACTIONS = ClientApi(66, "ListTransactions", (0, 1))
CONSUMER_GROUP_HEARTBEAT = ClientApi(68, "ConsumerGroupHeartbeat", (0, 1))
CONSUMER_GROUP_DESCRIBE = ClientApi(69, "ConsumerGroupDescribe", (0, 1))

TRANSACTION_VERSION = "transaction.version"
"""A cluster feature. At level 2 (KIP-890), the following requests have separate versions."""
PRODUCE_IN_V1 = ClientApi(0, "Produce", (9, 11))
PRODUCE_IN_V2 = ClientApi(0, "Produce", (12, 13))
END_TXN_IN_V1 = ClientApi(26, "EndTxn", (3, 4))
END_TXN_IN_V2 = ClientApi(26, "EndTxn", (5, 5))
TXN_OFFSET_COMMIT_IN_V1 = ClientApi(28, "TxnOffsetCommit", (3, 4))
TXN_OFFSET_COMMIT_IN_V2 = ClientApi(28, "TxnOffsetCommit", (5, 5))


async def call(
    connection: Connection, api: ClientApi, body: Mapping[str, Any], *, what: str, timeout_ms: int | None = None
) -> Any:
    """Sends a request and decodes the reply into an entity of kio's schema for the negotiated version."""
    version = connection.version_for(api.key, api.versions, api.name)
    request = build(request_type(api.key, version), body)
    reply = await connection.request(api.key, version, [encode(request)], what=what, timeout_ms=timeout_ms)
    return decode_reply(connection, api, version, reply)


def decode_reply(connection: Connection, api: ClientApi, version: int, reply: memoryview) -> Any:
    """Decodes a reply. If it is malformed, ends the connection and raises ConnectionLostError."""
    try:
        entity, _ = decode(response_type(api.key, version), reply)
    except MalformedRequest as damage:
        lost = ConnectionLostError(f"cannot decode the {api.name} response from {connection.address}: {damage}")
        connection.end(lost)
        raise lost from damage
    return entity


def build(entity_type: Any, values: Mapping[str, Any]) -> Any:
    """Builds an entity from nested dictionaries. Drops fields that this version does not have."""
    nested = _nested_types(entity_type)
    chosen: dict[str, Any] = {}
    for name, value in values.items():
        if name not in nested:
            continue
        inner = nested[name]
        if inner is not None and value is not None:
            value = build(inner, value) if isinstance(value, Mapping) else tuple(build(inner, each) for each in value)
        chosen[name] = tuple(value) if isinstance(value, list) else value
    return entity_type(**chosen)


@cache
def _nested_types(entity_type: Any) -> dict[str, Any]:
    """Maps each field to its entity type, or None if it holds no entities (single, optional or in a tuple)."""
    return {field.name: _entity_in(field.type) for field in fields(entity_type)}


def _entity_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    for argument in get_args(annotation):
        found = _entity_in(argument)
        if found is not None:
            return found
    return None


async def negotiate(connection: Connection, software_version: str) -> None:
    """Requests the broker's API versions. A broker that does not know our request version replies in version 0."""
    version = API_VERSIONS.versions[1]
    body = {"client_software_name": "ottla", "client_software_version": software_version}
    while True:
        request = encode(build(request_type(API_VERSIONS.key, version), body))
        what = "requesting the API versions"
        reply = await connection.request(API_VERSIONS.key, version, [request], what=what)
        unsupported = int.from_bytes(reply[:2], "big") == 35  # UNSUPPORTED_VERSION, followed by a body of version 0
        if unsupported and version > 0:
            version = 0
            continue
        try:
            rejected, versions, features = _supported(version, bytes(reply))
        except MalformedRequest:
            decode_reply(connection, API_VERSIONS, version, reply)  # ends the connection and raises
            raise
        if rejected:
            raise UnsupportedByBrokerError(f"the broker at {connection.address} rejected ApiVersions")
        connection.versions, connection.features = dict(versions), dict(features)
        return


@lru_cache(maxsize=16)
def _supported(version: int, reply: bytes) -> tuple[bool, Mapping[int, tuple[int, int]], Mapping[str, int]]:
    """Returns whether the request was rejected, the versions of each API, and the features. Brokers of one version send
    the same reply on every connection."""
    answer, _ = decode(response_type(API_VERSIONS.key, version), memoryview(reply))
    versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    finalized = getattr(answer, "finalized_features", ())
    return bool(answer.error_code), versions, {each.name: int(each.max_version_level) for each in finalized}


async def open_connection(
    address: Any,
    *,
    client_id: str,
    software_version: str,
    connect_timeout_ms: int,
    request_timeout_ms: int,
    security: ConnectionSecurity = NO_SECURITY,
) -> Connection:
    """Opens a connection, authenticates, and negotiates API versions."""
    connection = await Connection.open(
        address,
        client_id=client_id,
        timeout_ms=connect_timeout_ms,
        request_timeout_ms=request_timeout_ms,
        security=security,
    )
    try:
        async with asyncio.timeout(connect_timeout_ms / 1000):
            await negotiate(connection, software_version)
    except BaseException:
        connection.end()
        raise
    return connection
