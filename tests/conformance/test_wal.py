"""The append stream with independent clients: a Go client built from the proto alone, grpcio, and Kafka clients."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire import wal_calls as calls
from ottla.protocol.wire.wal_append import AppendRun, Begin, decode_append_reply, encode_begin, encode_run
from ottla.testing.broker_process import BrokerProcess
from ottla.wal import Log, LogSettings
from tests.conformance.clients.aiokafka_client import AiokafkaClient
from tests.conformance.clients.confluent_client import ConfluentClient
from tests.conformance.clients.interface import Client, Record, RefusedByBroker
from tests.conformance.clients.java_client import JavaClient
from tests.conformance.clients.java_client import why_missing as why_no_java
from tests.conformance.clients.kafka_python_client import KafkaPythonClient

GO_CLIENT = Path(__file__).resolve().parents[2] / ".cache" / "go" / "walclient"
KAFKA_CLIENTS: tuple[type[Client], ...] = (ConfluentClient, AiokafkaClient, KafkaPythonClient, JavaClient)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("wal") / "data"
    with BrokerProcess(directory, config={"ottla.wal.port": "0"}, ready_timeout_s=120) as running:
        yield running
        assert running.stop() == 0
    assert "Traceback" not in running.log(), running.log()[-8000:]


def test_a_go_client_from_the_proto(broker: BrokerProcess) -> None:
    if not GO_CLIENT.exists():
        pytest.skip("the client in Go is not there (make prepare builds it where it can: it needs go 1.24 and modules)")
    count = 20_000
    done = subprocess.run(
        [str(GO_CLIENT), broker.wal_server, "from-go", str(count)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["settled"] == found["entries"] == count
    assert found["in_order"]
    assert found["same_offsets"]
    assert found["found_last_id"] + 1 + found["resent"] == count, "it sent again only what the log did not have"
    assert found["conditional"] == "CODE_UNEXPECTED_END"
    assert found["old_writer"] == "CODE_FENCED"
    assert found["health"] == "SERVING"


async def fenced_log(servers: str, topic: str) -> list[tuple[int, bytes]]:
    """Two successive writers, so that there are fences before, between and after the records."""
    written: list[tuple[int, bytes]] = []
    for turn in range(3):
        log = await Log.open(servers, topic, create=LogSettings(replicas=1), fence=True)
        for number in range(5):
            data = b"%d %d" % (turn, number)
            written.append((await log.append(data), data))
        await log.close()
    last = await Log.open(servers, topic, fence=True)
    await last.close()
    return written


@pytest.mark.parametrize("kind", KAFKA_CLIENTS, ids=lambda kind: kind.name)
def test_kafka_clients_read_past_fences_and_may_not_write(broker: BrokerProcess, kind: type[Client]) -> None:
    if kind is JavaClient and (reason := why_no_java()):
        pytest.skip(reason)
    topic = f"fenced-{kind.name}"
    written = asyncio.run(fenced_log(broker.wal_server, topic))
    client = kind(broker.bootstrap)
    try:
        found = client.read(topic, len(written))
        assert [(record.offset, record.value) for record in found] == written
        with pytest.raises(RefusedByBroker) as refused:
            client.write(topic, [Record(b"not mine")])
        assert refused.value.error is ErrorCode.policy_violation
    finally:
        client.close()


def test_grpcio_speaks_to_it(broker: BrokerProcess) -> None:
    """The C core: another HTTP/2 implementation with its own windows and headers."""

    def same(message: bytes) -> bytes:
        return message

    with grpc.insecure_channel(broker.wal_server) as channel:
        opened = channel.unary_unary("/ottla.wal.v1.Wal/Open", same, same)
        name = calls.LogName("from-grpcio")
        reply = calls.decode_open_reply(
            opened(bytes(calls.encode_open_request(calls.OpenRequest(name, calls.CreateLog()))))
        )
        assert reply.leader == broker.wal_server
        append = channel.stream_stream("/ottla.wal.v1.Wal/Append", same, same)
        data = [b"%d" % number + bytes(1000) for number in range(5000)]
        messages = [bytes(encode_begin(Begin("from-grpcio")))]
        messages += [bytes(encode_run(AppendRun(at, data[at : at + 100]))) for at in range(0, len(data), 100)]
        offsets = {}
        for answer in append(iter(messages)):
            for first_id, count, first_offset in decode_append_reply(answer).acknowledged:
                offsets.update({first_id + place: first_offset + place for place in range(count)})
        assert offsets == {number: number for number in range(len(data))}
        read = channel.unary_stream("/ottla.wal.v1.Wal/Read", same, same)
        request = bytes(calls.encode_read_request(calls.ReadRequest(name, 0)))
        entries = [entry for each in read(request) for entry in calls.decode_read_reply(each).entries]
        assert [entry.data for entry in entries] == data
        with pytest.raises(grpc.RpcError) as unknown:
            channel.unary_unary("/ottla.wal.v1.Wal/Nothing", same, same)(b"")
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as broken:
            channel.unary_unary("/ottla.wal.v1.Wal/Tail", same, same)(b"\xff\xff")
        assert broken.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_reflection_tells_what_is_served(broker: BrokerProcess) -> None:
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2")

    def same(message: bytes) -> bytes:
        return message

    with grpc.insecure_channel(broker.wal_server) as channel:
        for version in ("v1", "v1alpha"):
            info = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo", same, same
            )
            listed, described = info(iter([b"\x3a\x00", b"\x22\x10ottla.wal.v1.Wal"]))
            assert b"ottla.wal.v1.Wal" in listed
            assert b"grpc.health.v1.Health" in listed
            start = described.index(b"\n\x16ottla/wal/v1/wal.proto")
            file = descriptor.FileDescriptorProto.FromString(described[start:])
            assert [method.name for method in file.service[0].method] == [
                "Open",
                "Append",
                "Read",
                "Tail",
                "Trim",
                "Fence",
            ]
