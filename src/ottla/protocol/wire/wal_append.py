"""Hand-written codecs for the messages of an append stream, defined in `broker/wal_service/wal.proto`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from ottla.protocol.wire.protobuf import (
    MalformedMessageError,
    content,
    fields,
    get_varint,
    put_bytes,
    put_int,
    put_text,
    put_varint,
    signed,
    text,
    unsigned,
)


class Code(IntEnum):
    """Why a request of the append stream failed."""

    NONE = 0
    NOT_LEADER = 1
    NOT_FOUND = 2
    FENCED = 3
    UNEXPECTED_END = 4
    TRIMMED = 5
    TOO_LARGE = 6
    UNAVAILABLE = 7
    UNKNOWN_WRITER = 8
    INVALID = 9


_CODES = frozenset(Code)


class Acks(IntEnum):
    """When an append is acknowledged."""

    ALL = 0
    LEADER = 1
    NONE = 2


class WalFailure(NamedTuple):
    """A failure reported by the service."""

    code: Code
    message: str = ""
    leader: str = ""
    offset: int = 0
    epoch: int = 0


def encode_failure(failure: WalFailure) -> bytearray:
    """Encodes a `Failure`, which other messages contain."""
    out = bytearray()
    put_int(out, 1, failure.code)
    put_text(out, 2, failure.message)
    put_text(out, 3, failure.leader)
    put_int(out, 4, failure.offset)
    put_int(out, 5, failure.epoch)
    return out


def decode_failure(data: bytes) -> WalFailure:
    """Decodes a `Failure`. An unknown code becomes UNAVAILABLE, so that clients retry."""
    code, message, leader, offset, epoch = 0, "", "", 0, 0
    for number, value in fields(data):
        match number:
            case 1:
                code = unsigned(value)
            case 2:
                message = text(value)
            case 3:
                leader = text(value)
            case 4:
                offset = signed(value)
            case 5:
                epoch = signed(value)
    return WalFailure(Code(code) if code in _CODES else Code.UNAVAILABLE, message, leader, offset, epoch)


# -- requests: what a writer sends ----------------------------------------------------------------------------------


class Begin(NamedTuple):
    """Opens an append stream."""

    topic: str
    partition: int = 0
    acks: Acks = Acks.ALL
    epoch: int = 0
    writer_id: int | None = None
    settled_id: int | None = None
    from_offset: int = 0


class AppendRun(NamedTuple):
    """Appends records with consecutive ids."""

    first_id: int
    data: Sequence[bytes]
    atomic: bool = False
    expected_end: int | None = None


def encode_begin(begin: Begin) -> bytearray:
    """Encodes the first message of an append stream."""
    inner = bytearray()
    put_text(inner, 1, begin.topic)
    put_int(inner, 2, begin.partition)
    put_int(inner, 3, begin.acks)
    put_int(inner, 4, begin.epoch)
    if begin.writer_id is not None:
        put_int(inner, 5, begin.writer_id, always=True)
    if begin.settled_id is not None:
        put_int(inner, 6, begin.settled_id, always=True)
    put_int(inner, 7, begin.from_offset)
    out = bytearray()
    put_bytes(out, 1, inner, always=True)
    return out


def encode_run(run: AppendRun) -> bytearray:
    """Encodes records with consecutive ids, as one message of an append stream."""
    out = bytearray()
    put_int(out, 2, run.first_id)
    for data in run.data:
        size = len(data)
        out.append(0x1A)
        if size < 0x80:
            out.append(size)
        else:
            put_varint(out, size)
        out += data
    put_int(out, 4, run.atomic)
    if run.expected_end is not None:
        put_int(out, 5, run.expected_end, always=True)
    return out


def decode_append_request(message: bytes) -> Begin | AppendRun:
    """Decodes a request. Raises MalformedMessageError."""
    begin: Begin | None = None
    first_id, atomic, expected_end = 0, False, None
    data: list[bytes] = []
    at, end = 0, len(message)
    while at < end:
        if message[at] == 0x1A:  # data, the bulk of the message
            at = _take_data(message, at, end, data)
            continue
        number, value, at = _one_field(message, at)
        match number:
            case 1:
                begin = _decode_begin(content(value))
            case 2:
                first_id = unsigned(value)
            case 4:
                atomic = bool(unsigned(value))
            case 5:
                expected_end = signed(value)
    if begin is not None:
        return begin
    return AppendRun(first_id, data, atomic, expected_end)


def _take_data(message: bytes, at: int, end: int, into: list[bytes]) -> int:
    while at < end and message[at] == 0x1A:
        if at + 1 < end and (size := message[at + 1]) < 0x80:
            at += 2
        else:
            size, at = get_varint(message, at + 1)
        if size > end - at:
            raise MalformedMessageError("a record extends past its message")
        into.append(message[at : at + size])
        at += size
    return at


def _one_field(message: bytes, at: int) -> tuple[int, int | bytes, int]:
    key, behind = get_varint(message, at)
    if key & 7 == 0:
        value, behind = get_varint(message, behind)
        return key >> 3, value, behind
    if key & 7 == 2:
        length, behind = get_varint(message, behind)
        if length > len(message) - behind:
            raise MalformedMessageError(f"field {key >> 3} extends past its message")
        return key >> 3, message[behind : behind + length], behind + length
    for kind, length in ((1, 8), (5, 4)):
        if key & 7 == kind:
            return 0, 0, behind + length
    raise MalformedMessageError(f"field {key >> 3} has the unknown wire type {key & 7}")


def _decode_begin(data: bytes) -> Begin:
    topic, partition, acks, epoch, from_offset = "", 0, 0, 0, 0
    writer_id: int | None = None
    settled_id: int | None = None
    for number, value in fields(data):
        match number:
            case 1:
                topic = text(value)
            case 2:
                partition = signed(value)
            case 3:
                acks = unsigned(value)
            case 4:
                epoch = signed(value)
            case 5:
                writer_id = signed(value)
            case 6:
                settled_id = unsigned(value)
            case 7:
                from_offset = signed(value)
    if acks not in (0, 1, 2):
        raise MalformedMessageError(f"acks is {acks}, not ALL, LEADER or NONE")
    return Begin(topic, partition, Acks(acks), epoch, writer_id, settled_id, from_offset)


# -- replies: what a broker sends -----------------------------------------------------------------------------------


class StreamBegun(NamedTuple):
    """The reply to `Begin`."""

    writer_id: int
    last_id: int | None
    committed_end: int
    batch_bytes_max: int


class AcknowledgedIds(NamedTuple):
    """A range of record ids that are acknowledged, and their first offset."""

    first_id: int
    record_count: int
    first_offset: int


class RefusedIds(NamedTuple):
    """A range of record ids that were rejected."""

    first_id: int
    record_count: int
    failure: WalFailure


class AppendReply(NamedTuple):
    """A reply on an append stream."""

    begun: StreamBegun | None = None
    acknowledged: Sequence[AcknowledgedIds] = ()
    refused: Sequence[RefusedIds] = ()
    failure: WalFailure | None = None


def encode_append_reply(reply: AppendReply) -> bytearray:
    """Encodes a reply on an append stream; any of its parts may be absent."""
    out = bytearray()
    if reply.begun is not None:
        put_bytes(out, 1, _encode_begun(reply.begun), always=True)
    for first_id, count, first_offset in reply.acknowledged:
        inner = bytearray()
        put_int(inner, 1, first_id)
        put_int(inner, 2, count)
        put_int(inner, 3, first_offset)
        put_bytes(out, 2, inner, always=True)
    for refused in reply.refused:
        inner = bytearray()
        put_int(inner, 1, refused.first_id)
        put_int(inner, 2, refused.record_count)
        put_bytes(inner, 3, encode_failure(refused.failure), always=True)
        put_bytes(out, 3, inner, always=True)
    if reply.failure is not None:
        put_bytes(out, 4, encode_failure(reply.failure), always=True)
    return out


def _encode_begun(begun: StreamBegun) -> bytearray:
    out = bytearray()
    put_int(out, 1, begun.writer_id)
    if begun.last_id is not None:
        put_int(out, 2, begun.last_id, always=True)
    put_int(out, 3, begun.committed_end)
    put_int(out, 4, begun.batch_bytes_max)
    return out


def decode_append_reply(message: bytes) -> AppendReply:
    """Decodes a reply on an append stream. Raises MalformedMessageError."""
    begun: StreamBegun | None = None
    acknowledged: list[AcknowledgedIds] = []
    refused: list[RefusedIds] = []
    failure: WalFailure | None = None
    for number, value in fields(message):
        match number:
            case 1:
                begun = _decode_begun(content(value))
            case 2:
                found = {field: signed(item) for field, item in fields(content(value))}
                acknowledged.append(AcknowledgedIds(found.get(1, 0), found.get(2, 0), found.get(3, 0)))
            case 3:
                refused.append(_decode_refused(content(value)))
            case 4:
                failure = decode_failure(content(value))
    return AppendReply(begun, acknowledged, refused, failure)


def _decode_begun(data: bytes) -> StreamBegun:
    writer_id, committed_end, batch_bytes_max = 0, 0, 0
    last_id: int | None = None
    for number, value in fields(data):
        match number:
            case 1:
                writer_id = signed(value)
            case 2:
                last_id = unsigned(value)
            case 3:
                committed_end = signed(value)
            case 4:
                batch_bytes_max = signed(value)
    return StreamBegun(writer_id, last_id, committed_end, batch_bytes_max)


def _decode_refused(data: bytes) -> RefusedIds:
    first_id, count, failure = 0, 0, WalFailure(Code.NONE)
    for number, value in fields(data):
        match number:
            case 1:
                first_id = unsigned(value)
            case 2:
                count = unsigned(value)
            case 3:
                failure = decode_failure(content(value))
    return RefusedIds(first_id, count, failure)
