"""Requests of the benchmark that the driver does not measure: topics, offsets, metadata and single frames."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from ottla.bench.frames import CLIENT_ID, framed
from ottla.net.apis import CREATE_TOPICS, DELETE_TOPICS, LIST_OFFSETS, METADATA, ClientApi, build
from ottla.protocol.wire.headers import parse_response_header, request_header
from ottla.protocol.wire.schema import decode, encode, request_type, response_type

TIMEOUT_S = 60.0
LATEST = -1
_SIZE = struct.Struct(">i")


class RefusedError(Exception):
    """The broker replied with an error."""


class Caller:
    """A plain connection: one request, one reply."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = TIMEOUT_S) -> None:
        self._connection = socket.create_connection((host, port), timeout=timeout_s)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def exchange(self, frame: bytes) -> bytes:
        """Sends one frame and returns the whole reply, including its size field."""
        self._connection.sendall(frame)
        head = self._read(_SIZE.size)
        return head + self._read(_SIZE.unpack(head)[0])

    def exchange_all(self, frames: Sequence[bytes]) -> None:
        """Sends all frames at once, and reads and discards their replies."""
        self._connection.sendall(b"".join(frames))
        for _ in frames:
            self._read(_SIZE.unpack(self._read(_SIZE.size))[0])

    def exchange_many(self, frame: bytes, count: int) -> None:
        """Sends a frame `count` times at once, and discards the replies."""
        self.exchange_all([frame] * count)

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            byte_count = self._connection.recv_into(view)
            if not byte_count:
                raise ConnectionError("the broker closed the connection")
            view = view[byte_count:]
        return bytes(data)

    def call(self, api: ClientApi, body: Mapping[str, Any]) -> Any:
        """Sends a request in the newest version that the client supports."""
        version = api.versions[1]
        request = encode(build(request_type(api.key, version), body))
        reply = memoryview(self.exchange(framed(request_header(api.key, version, 1, CLIENT_ID), request)))[4:]
        _, at = parse_response_header(api.key, version, reply)
        return decode(response_type(api.key, version), reply, at)[0]

    def create_topics(
        self, names: Iterable[str], partitions: int, configs: Mapping[str, str], *, replicas: int = 1
    ) -> None:
        """Creates the topics in one request."""
        entries = [{"name": key, "value": value} for key, value in configs.items()]
        shape = {"num_partitions": partitions, "replication_factor": replicas, "assignments": [], "configs": entries}
        topics = [{"name": name, **shape} for name in names]
        timeout = timedelta(seconds=TIMEOUT_S)
        _check(self.call(CREATE_TOPICS, {"topics": topics, "timeout": timeout, "validate_only": False}).topics)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Deletes topics. Raises an error if one of them cannot be deleted."""
        topics = [{"name": name, "topic_id": None} for name in names]
        _check(self.call(DELETE_TOPICS, {"topics": topics, "timeout": timedelta(seconds=TIMEOUT_S)}).responses)

    def end_offset(self, topic: str) -> int:
        """Returns the end offset of partition 0."""
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": [partition]}],
            "timeout": timedelta(seconds=TIMEOUT_S),
        }
        (result,) = self.call(LIST_OFFSETS, body).topics[0].partitions
        _check([result])
        return int(result.offset)

    def describe_all(self) -> int:
        """Requests the metadata of every topic and returns the number of partitions."""
        body = {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        reply = self.call(METADATA, body)
        _check(reply.topics)
        return sum(len(topic.partitions) for topic in reply.topics)


def _check(results: Iterable[Any]) -> None:
    for result in results:
        if result.error_code:
            raise RefusedError(f"{result.error_code.name}: {getattr(result, 'error_message', None) or result}")
