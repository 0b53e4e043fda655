"""Asks one particular broker for its view of the cluster; client libraries choose the broker themselves."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

METADATA = 3
VERSION = 1
CLIENT = b"siege"


class PartitionState(NamedTuple):
    leader: int
    replicas: frozenset[int]
    in_sync: frozenset[int]


State = dict[tuple[str, int], PartitionState]


def ask(address: str, timeout_s: float) -> State | None:
    """Returns None if there is no reply in time."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            connection.settimeout(timeout_s)
            body = struct.pack(f">hhih{len(CLIENT)}si", METADATA, VERSION, 1, len(CLIENT), CLIENT, -1)
            connection.sendall(struct.pack(">i", len(body)) + body)
            (length,) = struct.unpack(">i", _receive(connection, 4))
            return _parse(_Bytes(_receive(connection, length)))
    except (OSError, EOFError):
        return None


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise EOFError
        data += more
    return data


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, kind: str) -> int:
        (value,) = struct.unpack_from(">" + kind, self._data, self._at)
        self._at += struct.calcsize(">" + kind)
        return int(value)

    def string(self) -> str:
        length = max(self.take("h"), 0)
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def numbers(self) -> list[int]:
        return [self.take("i") for _ in range(self.take("i"))]


def _parse(data: _Bytes) -> State:
    data.take("i")  # correlation id
    for _ in range(data.take("i")):
        data.take("i")
        data.string()
        data.take("i")
        data.string()
    data.take("i")  # controller
    state: State = {}
    for _ in range(data.take("i")):
        data.take("h")
        topic = data.string()
        data.take("b")
        for _ in range(data.take("i")):
            data.take("h")
            index, leader = data.take("i"), data.take("i")
            state[topic, index] = PartitionState(leader, frozenset(data.numbers()), frozenset(data.numbers()))
    return state
