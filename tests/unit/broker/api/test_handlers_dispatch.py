"""Request dispatch: versions, unknown APIs, errors; and the small APIs about the broker itself."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from kio.schema.index import api_key_map, schema_name_map

from ottla.broker.api.error_replies import error_reply
from ottla.broker.api.registry import APIS, BETWEEN_BROKERS, MODULES, render_protocol_table
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.primitives import MalformedRequest
from ottla.protocol.wire.schema import decode, encode, response_type
from tests.support.handlers_caller import Caller, calling

API_VERSIONS, INIT_PRODUCER_ID, LOG_DIRS, CLUSTER = 18, 22, 35, 60
DESCRIBE_CLIENT_QUOTAS = 48
ROOT = Path(__file__).parents[4]


@pytest_asyncio.fixture
async def caller() -> AsyncIterator[Caller]:
    async with calling() as caller:
        yield caller


@pytest.mark.parametrize("version", range(5))
async def test_api_versions(caller: Caller, version: int) -> None:
    software = {"client_software_name": "rdkafka", "client_software_version": "2.6.0"} if version >= 3 else {}
    reply = await caller.call(API_VERSIONS, version, **software)
    assert reply.error_code is ErrorCode.none
    ranges = {each.api_key: (each.min_version, each.max_version) for each in reply.api_keys}
    assert ranges[0] == (0, 13), "without v0 of Produce, an older librdkafka does not compress"
    assert {**ranges, 0: (3, 13)} == {api.key: api.versions for api in APIS}
    assert {0, 1, 2, 3, 18} <= ranges.keys()
    if version >= 3:
        assert caller.connection.client_software_name == "rdkafka"


async def test_a_client_without_a_proper_name(caller: Caller) -> None:
    reply = await caller.call(API_VERSIONS, 3, client_software_name="", client_software_version="1 0")
    assert reply.error_code is ErrorCode.invalid_request


async def test_a_version_of_the_future_is_told_ours(caller: Caller) -> None:
    whole = await caller.send(request_header(API_VERSIONS, 77, 3, "test") + b"whatever this is")
    reply, end = decode(response_type(API_VERSIONS, 0), memoryview(whole), 4)
    assert (whole[:4], end) == (b"\0\0\0\x03", len(whole))
    assert reply.error_code is ErrorCode.unsupported_version
    assert [(each.api_key, each.min_version, each.max_version) for each in reply.api_keys] == [(API_VERSIONS, 0, 4)]


async def test_an_api_that_we_do_not_have(caller: Caller) -> None:
    described = await caller.call(DESCRIBE_CLIENT_QUOTAS, 0, components=(), strict=False)
    assert described.error_code is ErrorCode.unsupported_version


@pytest.mark.parametrize(("key", "version"), [(999, 0), (0, 2), (0, 99), (3, 99), (-1, 0)])
async def test_what_nobody_can_answer_ends_the_connection(caller: Caller, key: int, version: int) -> None:
    with pytest.raises(MalformedRequest):
        await caller.send(request_header(key, version, 1, "test"))


@pytest.mark.parametrize("frame", [b"", b"\0\x03", b"\0\x03\0\x09\0\0\0\x01\0\x7fabc"])
async def test_a_broken_header(caller: Caller, frame: bytes) -> None:
    with pytest.raises(MalformedRequest):
        await caller.send(frame)


async def test_a_fault_is_answered(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(caller.broker.context, "log_dir_free_bytes", broken)
    reply = await caller.call(LOG_DIRS, 4, topics=None)
    assert reply.error_code is ErrorCode.kafka_storage_error


@pytest.mark.parametrize(("key", "name"), api_key_map.items())
def test_every_response_can_carry_an_error(key: int, name: str) -> None:
    for version in schema_name_map[name]:
        response = error_reply(key, version, ErrorCode.unknown_server_error)
        assert response is not None
        decoded, _ = decode(type(response), memoryview(encode(response)))
        assert decoded == response
        assert "unknown_server_error" in repr(decoded)


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(caller: Caller, version: int) -> None:
    flags: dict[str, object] = {"include_cluster_authorized_operations": False}
    if version >= 1:
        flags["endpoint_type"] = 1
    if version >= 2:
        flags["include_fenced_brokers"] = True
    reply = await caller.call(CLUSTER, version, **flags)
    (node,) = reply.brokers
    assert (reply.error_code, reply.cluster_id, reply.controller_id) == (ErrorCode.none, "test-cluster", 1)
    assert (node.broker_id, node.host, node.port, node.rack) == (1, "broker.example", 9092, None)
    if version >= 1:
        controllers = await caller.call(CLUSTER, version, **{**flags, "endpoint_type": 2})
        assert controllers.error_code is ErrorCode.mismatched_endpoint_type


@pytest.mark.parametrize("version", range(1, 6))
async def test_describe_log_dirs(caller: Caller, version: int) -> None:
    await caller.create_topic("t", 2)
    await caller.create_topic("u")
    await caller.produce("t", records=3)
    reply = await caller.call(LOG_DIRS, version, topics=None)
    (directory,) = reply.results
    sizes = {
        (topic.name, each.partition_index): each.partition_size
        for topic in directory.topics
        for each in topic.partitions
    }
    assert sizes.keys() == {("t", 0), ("t", 1), ("u", 0)}
    assert sizes["t", 0] > 61
    assert sizes["t", 1] == 0
    if version >= 4:
        assert directory.usable_bytes > 0
    asked = [{"topic": "t", "partitions": [1, 7]}, {"topic": "missing", "partitions": [0]}]
    some = await caller.call(LOG_DIRS, version, topics=asked)
    assert [(topic.name, each.partition_index) for topic in some.results[0].topics for each in topic.partitions] == [
        ("t", 1)
    ]


async def test_a_directory_with_a_failed_log(caller: Caller) -> None:
    topic = await caller.create_topic("t")
    caller.disk.faults.fail_write(path="journal")
    await caller.produce("t", expected=ErrorCode.kafka_storage_error)
    assert topic.partitions[0].error is ErrorCode.kafka_storage_error
    reply = await caller.call(LOG_DIRS, 4, topics=None)
    assert reply.results[0].error_code is ErrorCode.kafka_storage_error


@pytest.mark.parametrize("version", range(7))
async def test_init_producer_id(caller: Caller, version: int) -> None:
    values: dict[str, object] = {"transactional_id": None, "transaction_timeout": timedelta(seconds=60)}
    if version >= 3:
        values |= {"producer_id": -1, "producer_epoch": -1}
    first = await caller.call(INIT_PRODUCER_ID, version, **values)
    second = await caller.call(INIT_PRODUCER_ID, version, **values)
    assert (first.error_code, first.producer_epoch) == (ErrorCode.none, 0)
    assert second.producer_id > first.producer_id >= 0
    transactional = await caller.call(INIT_PRODUCER_ID, version, **{**values, "transactional_id": "tx"})
    assert (transactional.error_code, transactional.producer_id) == (ErrorCode.not_coordinator, -1)
    empty = await caller.call(INIT_PRODUCER_ID, version, **{**values, "transactional_id": ""})
    assert empty.error_code is ErrorCode.invalid_request
    if version >= 3:
        again = await caller.call(
            INIT_PRODUCER_ID, version, **{**values, "producer_id": first.producer_id, "producer_epoch": 0}
        )
        assert again.producer_id > second.producer_id
        half = await caller.call(INIT_PRODUCER_ID, version, **{**values, "producer_id": 5})
        assert half.error_code is ErrorCode.invalid_request


def test_every_handler_module_is_in_the_list() -> None:
    """A new API module must be added to the explicit list by hand."""
    folder = ROOT / "src" / "ottla" / "broker" / "api"
    with_api = {path.stem for path in folder.glob("*.py") if re.search(r"^API = ", path.read_text(), re.MULTILINE)}
    listed = [*MODULES, *BETWEEN_BROKERS]
    assert {module.__name__.rpartition(".")[2] for module in listed} == with_api
    assert [api.key for api in APIS] == sorted(api.key for api in APIS)


def test_the_protocol_table_is_fresh() -> None:
    written = (ROOT / "docs" / "reference" / "protocol.md").read_text()
    assert written == render_protocol_table(), "run: python -m ottla.broker.api.registry > docs/reference/protocol.md"
