"""The messages to etcd and the nodes of ZooKeeper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coordination.etcd.messages import (
    Compare,
    Event,
    KeyValue,
    LeaseRequest,
    PutRequest,
    RangeResponse,
    ResponseHeader,
    TxnRequest,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from ottla.coordination.port import Batch, Change, Entry, LeaseId, Revision
from ottla.coordination.zookeeper.history import newest
from ottla.coordination.zookeeper.layout import (
    INLINE_BYTES_MAX,
    Head,
    Paths,
    Reference,
    decode_changes,
    decode_entry,
    encode_changes,
    encode_entry,
    key_of,
)
from ottla.protocol.wire.protobuf import MalformedMessageError
from ottla.protocol.wire.protobuf_messages import Message

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


# -- etcd ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (PutRequest(b"a", b"b", 300), "0a0161 120162 18ac02"),
        (PutRequest(b"a"), "0a0161"),
        (LeaseRequest(-1), "08ffffffffffffffffff01"),
        (Compare(0, 2, b"k", 7), "1002 1a016b 3007"),
        (TxnRequest(compare=[Compare(key=b"k"), Compare()]), "0a031a016b 0a00"),
        (WatchRequest(WatchCreateRequest(b"a", b"b", 5)), "0a08 0a0161 120162 1805"),
        (Message(), ""),
    ],
)
def test_messages_are_as_protobuf_has_them(message: Message, encoded: str) -> None:
    assert message.encode() == bytes.fromhex(encoded)
    assert type(message).decode(bytes.fromhex(encoded)) == message


@given(key=st.binary(max_size=300), value=st.binary(max_size=300), revision=INT64, lease=INT64, more=st.integers(0, 3))
def test_messages_come_back(key: bytes, value: bytes, revision: int, lease: int, more: int) -> None:
    found = KeyValue(key, revision, value, lease)
    response = WatchResponse(ResponseHeader(1, revision), events=[Event(1, found)] * more)
    assert WatchResponse.decode(response.encode()) == response
    page = RangeResponse(ResponseHeader(0, revision), [found] * more, bool(more))
    assert RangeResponse.decode(page.encode()) == page


def test_unknown_fields_are_skipped() -> None:
    """An integer, eight bytes, a string, four bytes, before and after the known fields."""
    unknown = bytes.fromhex("9801ff01 99010102030405060708 9a0103616263 9d0101020304")
    assert PutRequest.decode(unknown + PutRequest(b"a", b"b", 3).encode() + unknown) == PutRequest(b"a", b"b", 3)


@pytest.mark.parametrize("encoded", ["0a05616263", "18", "18ffffffffffffffffffff01", "0b", "190102"])
def test_what_is_no_message_is_refused(encoded: str) -> None:
    with pytest.raises(MalformedMessageError, match=r"extends past|does not end|more than 64 bits|unknown wire type"):
        PutRequest.decode(bytes.fromhex(encoded))


# -- ZooKeeper ---------------------------------------------------------------------------------------------------


@given(key=KEYS)
def test_names_of_nodes_are_what_zookeeper_takes(key: str) -> None:
    name = Paths("cluster").entry(key).rpartition("/")[2]
    assert key_of(name) == key
    assert name.isascii()
    assert name.isprintable()
    assert name not in (".", "..", "")


@given(key=KEYS, value=st.binary(), version=st.integers(1, 1 << 62), lease=INT64)
def test_entries_come_back(key: str, value: bytes, version: int, lease: int) -> None:
    entry = Entry(key, value, Revision(version), LeaseId(lease) if lease else None)
    assert decode_entry(key, encode_entry(entry)) == entry
    assert Head.decode(Head(Revision(version), Revision(3)).encode()) == (version, 3)


@given(st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=100), INT64), max_size=6))
def test_changes_come_back(found: list[tuple[str, bytes | None, int]]) -> None:
    changes = [
        Change(key, None if value is None else Entry(key, value, Revision(9), LeaseId(lease) if lease else None))
        for key, value, lease in found
    ]
    assert decode_changes(encode_changes(changes), Revision(9)) == changes


def test_large_values_are_not_repeated() -> None:
    large = Change("large", Entry("large", bytes(INLINE_BYTES_MAX + 1), Revision(9)))
    encoded = encode_changes([large, Change("gone", None)])
    assert len(encoded) < 100
    assert decode_changes(encoded, Revision(9)) == [Reference("large"), Change("gone", None)]


def entry_at(key: str, version: int) -> Entry:
    return Entry(key, b"%d" % version, Revision(version))


def test_entries_that_were_read_one_by_one_are_brought_to_one_revision() -> None:
    """Each was read at another time of a history in which everything changes."""
    history = [
        Batch((Change("put", entry_at("put", 11)), Change("gone", None)), Revision(11)),
        Batch((Change("gone", entry_at("gone", 12)), Change("new", entry_at("new", 12))), Revision(12)),
        Batch((Change("gone", None), Change("put", entry_at("put", 13))), Revision(13)),
        Batch((Change("back", None),), Revision(14)),
        Batch((Change("back", entry_at("back", 15)),), Revision(15)),
    ]
    expected = {
        "put": entry_at("put", 13), "new": entry_at("new", 12), "back": entry_at("back", 15), "old": entry_at("old", 1),
    }  # fmt: skip
    for put in (10, 11, 13):
        for gone in (5, 12, None):
            for new in (12, None):
                for back in (10, 15, None):
                    seen = {"old": 1, "put": put, "gone": gone, "new": new, "back": back}
                    entries = {key: entry_at(key, version) for key, version in seen.items() if version is not None}
                    assert newest(entries, history) == expected
