"""Hand-written codecs for the messages of all calls but Append, defined in `broker/wal_service/wal.proto`.

That file describes the fields. `wal_append` has the codecs of Append.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.protocol.wire.protobuf import (
    Value,
    content,
    fields,
    put_bytes,
    put_int,
    put_text,
    signed,
    text,
    unsigned,
    view,
)
from ottla.protocol.wire.wal_append import WalFailure, decode_failure, encode_failure


class LogName(NamedTuple):
    """A log: one partition of a topic."""

    topic: str
    partition: int = 0


class LogRequest(NamedTuple):
    """A Tail, Trim (`number` is the offset) or Fence (`number` is the expected epoch) request. All have one layout."""

    log: LogName
    number: int | None = None


def encode_log_request(request: LogRequest) -> bytearray:
    """Encodes a call that names a log and possibly a number, such as an offset."""
    out = _log(request.log)
    if request.number is not None:
        put_int(out, 3, request.number, always=True)
    return out


def decode_log_request(message: bytes) -> LogRequest:
    """Decodes a call that names a log and possibly a number. Raises MalformedMessageError."""
    found = dict(fields(message))
    return LogRequest(_log_of(found), signed(found[3]) if 3 in found else None)


class Numbers(NamedTuple):
    """A TailReply (start, end, epoch), TrimReply (start) or FenceReply (epoch, offset)."""

    numbers: Sequence[int] = ()
    failure: WalFailure | None = None


def encode_numbers(reply: Numbers, count: int) -> bytearray:
    """Encodes a reply. `count` is the number of its numbers; the field after them is the error."""
    out = bytearray()
    for number, value in enumerate(reply.numbers, 1):
        put_int(out, number, value)
    if reply.failure is not None:
        put_bytes(out, count + 1, encode_failure(reply.failure), always=True)
    return out


def decode_numbers(message: bytes, count: int) -> Numbers:
    """Decodes a reply of `count` numbers in the fields 1 to `count`, followed by a failure."""
    found = dict(fields(message))
    failure = decode_failure(content(found[count + 1])) if count + 1 in found else None
    return Numbers([signed(found.get(number, 0)) for number in range(1, count + 1)], failure)


def _log(log: LogName) -> bytearray:
    out = bytearray()
    put_text(out, 1, log.topic)
    put_int(out, 2, log.partition)
    return out


def _log_of(found: Mapping[int, Value]) -> LogName:
    return LogName(text(found.get(1, b"")), signed(found.get(2, 0)))


# -- Read -----------------------------------------------------------------------------------------------------------


class ReadRequest(NamedTuple):
    """A request for the committed records from `first` to `until` (exclusive)."""

    log: LogName
    first: int
    until: int | None = None
    follow: bool = False
    as_batches: bool = False


def encode_read_request(request: ReadRequest) -> bytearray:
    """Encodes a Read call."""
    out = _log(request.log)
    put_int(out, 3, request.first)
    if request.until is not None:
        put_int(out, 4, request.until, always=True)
    put_int(out, 5, request.follow)
    put_int(out, 6, request.as_batches)
    return out


def decode_read_request(message: bytes) -> ReadRequest:
    """Decodes a Read call. Raises MalformedMessageError."""
    found = dict(fields(message))
    until = signed(found[4]) if 4 in found else None
    follow, as_batches = bool(unsigned(found.get(5, 0))), unsigned(found.get(6, 0)) == 1
    return ReadRequest(_log_of(found), signed(found.get(3, 0)), until, follow, as_batches)


class WalEntry(NamedTuple):
    """A record of a log."""

    offset: int
    timestamp_ms: int
    data: bytes


class ReadReply(NamedTuple):
    """Some of the requested records, as `entries` or as `record_batches`."""

    entries: Sequence[WalEntry] = ()
    record_batches: bytes | memoryview = b""
    next_offset: int = 0
    committed_end: int = 0
    failure: WalFailure | None = None


def encode_read_reply(reply: ReadReply) -> bytearray:
    """Encodes one message of a Read: entries or record batches, and where the next message begins."""
    out = bytearray()
    for entry in reply.entries:
        inner = bytearray()
        put_int(inner, 1, entry.offset)
        put_int(inner, 2, entry.timestamp_ms)
        put_bytes(inner, 3, entry.data)
        put_bytes(out, 1, inner, always=True)
    put_bytes(out, 2, reply.record_batches)
    put_int(out, 3, reply.next_offset)
    put_int(out, 4, reply.committed_end)
    if reply.failure is not None:
        put_bytes(out, 5, encode_failure(reply.failure), always=True)
    return out


def decode_read_reply(message: bytes) -> ReadReply:
    """Decodes one message of a Read. Record batches are a view of the message, not a copy."""
    entries: list[WalEntry] = []
    batches: bytes | memoryview = b""
    next_offset, committed_end, failure = 0, 0, None
    for number, value in fields(memoryview(message)):
        match number:
            case 1:
                found = dict(fields(content(value)))
                entry = WalEntry(signed(found.get(1, 0)), signed(found.get(2, 0)), content(found.get(3, b"")))
                entries.append(entry)
            case 2:
                batches = view(value)
            case 3:
                next_offset = signed(value)
            case 4:
                committed_end = signed(value)
            case 5:
                failure = decode_failure(content(value))
    return ReadReply(entries, batches, next_offset, committed_end, failure)


# -- Open -----------------------------------------------------------------------------------------------------------


class CreateLog(NamedTuple):
    """The topic to create if the log does not exist. `replicas` is 0 for the broker's default."""

    partitions: int = 1
    replicas: int = 0
    configs: Mapping[str, str] = {}


class OpenRequest(NamedTuple):
    """A request to find a log, and to create it if `create` is given."""

    log: LogName
    create: CreateLog | None = None


class OpenReply(NamedTuple):
    """The append-stream addresses of the log's leader (empty while there is none) and of all brokers."""

    leader: str = ""
    servers: Sequence[str] = ()
    durability: str = ""
    failure: WalFailure | None = None


def encode_open_request(request: OpenRequest) -> bytearray:
    """Encodes an Open call, with the settings of a log to create if there are any."""
    out = _log(request.log)
    if request.create is not None:
        inner = bytearray()
        put_int(inner, 1, request.create.partitions)
        put_int(inner, 2, request.create.replicas)
        for name, value in request.create.configs.items():
            pair = bytearray()
            put_text(pair, 1, name, always=True)
            put_text(pair, 2, value, always=True)
            put_bytes(inner, 3, pair, always=True)
        put_bytes(out, 3, inner, always=True)
    return out


def decode_open_request(message: bytes) -> OpenRequest:
    """Decodes an Open call. Raises MalformedMessageError."""
    found = dict(fields(message))
    create = _decode_create(content(found[3])) if 3 in found else None
    return OpenRequest(_log_of(found), create)


def _decode_create(data: bytes) -> CreateLog:
    partitions, replicas = 1, 0
    configs: dict[str, str] = {}
    for number, value in fields(data):
        match number:
            case 1:
                partitions = signed(value)
            case 2:
                replicas = signed(value)
            case 3:
                pair = dict(fields(content(value)))
                configs[text(pair.get(1, b""))] = text(pair.get(2, b""))
    return CreateLog(partitions, replicas, configs)


def encode_open_reply(reply: OpenReply) -> bytearray:
    """Encodes the reply to Open: the leader, all servers and the log's durability, or a failure."""
    out = bytearray()
    put_text(out, 1, reply.leader)
    for server in reply.servers:
        put_text(out, 2, server, always=True)
    put_text(out, 3, reply.durability)
    if reply.failure is not None:
        put_bytes(out, 4, encode_failure(reply.failure), always=True)
    return out


def decode_open_reply(message: bytes) -> OpenReply:
    """Decodes the reply to Open. Raises MalformedMessageError."""
    leader, durability, failure = "", "", None
    servers: list[str] = []
    for number, value in fields(message):
        match number:
            case 1:
                leader = text(value)
            case 2:
                servers.append(text(value))
            case 3:
                durability = text(value)
            case 4:
                failure = decode_failure(content(value))
    return OpenReply(leader, servers, durability, failure)
