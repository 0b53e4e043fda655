"""The hand-written messages of the append stream, compared with protoc's for wal.proto; and the served descriptor."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.net.grpc.messages import MessageSplitter, framed
from ottla.net.grpc.status import RpcError
from ottla.protocol.wire import wal_append as append
from ottla.protocol.wire import wal_calls as calls
from ottla.protocol.wire.protobuf import MalformedMessageError

ROOT = Path(__file__).resolve().parents[3]
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
FAILURES = st.builds(append.WalFailure, st.sampled_from(append.Code), st.text(), st.text(), INT64, INT64)
LOGS = st.builds(calls.LogName, st.text(), INT32)


@pytest.fixture(scope="session")
def pb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed: pip install grpcio-tools")
    target = tmp_path_factory.mktemp("wal-pb")
    source = ROOT / "src" / "ottla" / "broker" / "wal_service"
    assert protoc.main(["protoc", f"-I{source}", f"--python_out={target}", "wal.proto"]) == 0
    sys.path.insert(0, str(target))
    yield importlib.import_module("wal_pb2")
    sys.path.remove(str(target))


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_descriptor_that_is_served_is_that_of_the_proto() -> None:
    generator = script("generate_wal_descriptor")
    assert generator.TARGET.read_bytes() == generator.described(), "run: python scripts/generate_wal_descriptor.py"


def same_failure(theirs: Any, ours: append.WalFailure) -> bool:
    found = (theirs.code, theirs.message, theirs.leader, theirs.offset, theirs.epoch)
    return bool(found == tuple(ours))


@given(
    st.builds(
        append.Begin,
        st.text(),
        INT32,
        st.sampled_from(append.Acks),
        INT64,
        st.none() | INT64,
        st.none() | UINT64,
        INT64,
    )
)
def test_begin(pb: Any, begin: append.Begin) -> None:
    encoded = bytes(append.encode_begin(begin))
    theirs = pb.AppendRequest.FromString(encoded).begin
    assert (theirs.topic, theirs.partition, theirs.acks, theirs.epoch) == begin[:4]
    assert (theirs.writer_id if theirs.HasField("writer_id") else None) == begin.writer_id
    assert (theirs.settled_id if theirs.HasField("settled_id") else None) == begin.settled_id
    assert append.decode_append_request(pb.AppendRequest.FromString(encoded).SerializeToString()) == begin


@given(st.builds(append.AppendRun, UINT64, st.lists(st.binary(max_size=300)), st.booleans(), st.none() | INT64))
def test_runs(pb: Any, run: append.AppendRun) -> None:
    encoded = bytes(append.encode_run(run))
    theirs = pb.AppendRequest.FromString(encoded)
    assert (theirs.first_id, list(theirs.data), theirs.atomic) == run[:3]
    assert append.decode_append_request(theirs.SerializeToString()) == run


@given(
    st.none() | st.builds(append.StreamBegun, INT64, st.none() | UINT64, INT64, INT32),
    st.lists(st.builds(append.AcknowledgedIds, st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), INT64)),
    st.lists(st.builds(append.RefusedIds, UINT64, st.integers(0, 2**32 - 1), FAILURES)),
    st.none() | FAILURES,
)
def test_replies(
    pb: Any,
    begun: append.StreamBegun | None,
    acknowledged: list[append.AcknowledgedIds],
    refused: list[append.RefusedIds],
    failure: append.WalFailure | None,
) -> None:
    reply = append.AppendReply(begun, acknowledged, refused, failure)
    theirs = pb.AppendReply.FromString(bytes(append.encode_append_reply(reply)))
    assert [(each.first_id, each.count, each.first_offset) for each in theirs.acknowledged] == acknowledged
    assert failure is None or same_failure(theirs.error, failure)
    assert append.decode_append_reply(theirs.SerializeToString()) == reply


@given(LOGS, INT64, st.none() | INT64, st.booleans(), st.booleans())
def test_read(pb: Any, log: calls.LogName, first: int, until: int | None, follow: bool, batches: bool) -> None:
    request = calls.ReadRequest(log, first, until, follow, batches)
    theirs = pb.ReadRequest.FromString(bytes(calls.encode_read_request(request)))
    assert (theirs.topic, theirs.partition, theirs.first, theirs.follow, theirs.format) == (
        *log,
        first,
        follow,
        batches,
    )
    assert calls.decode_read_request(theirs.SerializeToString()) == request


@given(st.lists(st.builds(calls.WalEntry, INT64, INT64, st.binary())), st.binary(), INT64, INT64, st.none() | FAILURES)
def test_read_replies(pb: Any, entries: Any, batches: bytes, following: int, end: int, failure: Any) -> None:
    reply = calls.ReadReply(entries, batches, following, end, failure)
    theirs = pb.ReadReply.FromString(bytes(calls.encode_read_reply(reply)))
    assert [(each.offset, each.timestamp_ms, each.data) for each in theirs.entries] == entries
    assert calls.decode_read_reply(theirs.SerializeToString()) == reply


@given(LOGS, st.none() | INT64, INT64, INT64, INT64, st.none() | FAILURES)
def test_numbers(pb: Any, log: calls.LogName, number: int | None, one: int, two: int, three: int, failure: Any) -> None:
    request = calls.LogRequest(log, number)
    theirs = pb.FenceRequest.FromString(bytes(calls.encode_log_request(request)))
    assert calls.decode_log_request(theirs.SerializeToString()) == request
    tail = pb.TailReply.FromString(bytes(calls.encode_numbers(calls.Numbers([one, two, three], failure), 3)))
    assert (tail.start_offset, tail.end_offset, tail.epoch) == (one, two, three)
    assert calls.decode_numbers(tail.SerializeToString(), 3) == calls.Numbers([one, two, three], failure)
    fence = pb.FenceReply.FromString(bytes(calls.encode_numbers(calls.Numbers([one, two], failure), 2)))
    assert failure is None or same_failure(fence.error, failure)


@given(
    LOGS,
    st.none() | st.builds(calls.CreateLog, st.integers(1, 2**31 - 1), INT32, st.dictionaries(st.text(), st.text())),
    st.lists(st.text()),
)
def test_open(pb: Any, log: calls.LogName, create: calls.CreateLog | None, servers: list[str]) -> None:
    request = calls.OpenRequest(log, create)
    theirs = pb.OpenRequest.FromString(bytes(calls.encode_open_request(request)))
    assert calls.decode_open_request(theirs.SerializeToString()) == request
    reply = calls.OpenReply("leader:1", servers, "disk", None)
    assert (
        calls.decode_open_reply(pb.OpenReply.FromString(bytes(calls.encode_open_reply(reply))).SerializeToString())
        == reply
    )


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused_and_nothing_worse(data: bytes) -> None:
    for decode in (
        append.decode_append_request,
        append.decode_append_reply,
        calls.decode_read_request,
        calls.decode_log_request,
        calls.decode_open_request,
    ):
        with contextlib.suppress(MalformedMessageError):
            decode(data)


@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(1, 30))
def test_messages_are_whole_however_they_are_cut(messages: list[bytes], step: int) -> None:
    splitter = MessageSplitter(100)
    sent = b"".join(framed(message) for message in messages)
    found = [each for at in range(0, len(sent), step) for each in splitter.feed(sent[at : at + step])]
    assert found == messages


def test_a_length_that_is_too_large_is_refused_before_anything_is_kept() -> None:
    with pytest.raises(RpcError, match="4294967295 bytes"):
        MessageSplitter(100).feed(b"\x00\xff\xff\xff\xff")
    with pytest.raises(RpcError, match="compressed"):
        MessageSplitter(100).feed(b"\x01\x00\x00\x00\x01a")
