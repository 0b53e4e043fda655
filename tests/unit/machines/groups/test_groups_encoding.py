"""Records of `__consumer_offsets`, byte for byte as Kafka writes them; and invalid records."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.coordinator import GroupCoordinator
from ottla.machines.groups.encoding import decode, encode
from ottla.machines.groups.records import (
    ClassicGeneration,
    ClassicMember,
    ClassicProtocols,
    ClassicRecord,
    CommittedOffset,
    ConsumerMember,
    CurrentAssignment,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    MemberState,
    OffsetRecord,
    Record,
    RegexRecord,
    ResolvedRegex,
    SubscribedTopicsRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicFacts,
    Unknown,
    Unreadable,
)
from ottla.protocol.model.ids import TopicId

TOPIC = TopicId(UUID(int=7))
TOPIC_HEX = "00000000000000000000000000000007"
CONSUMER = ConsumerMember(None, None, "c", "h", ("t",), None, 9, "range")

GOLDEN: list[tuple[Record, str, str | None]] = [
    (
        OffsetRecord("g", "t", 3, CommittedOffset(5, 2, "m", 1)),
        "0001 0001 67 0001 74 00000003",
        "0003 0000000000000005 00000002 0001 6d 0000000000000001",
    ),
    (
        OffsetRecord("g", "t", 3, CommittedOffset(5, -1, "", 1, 9)),
        "0001 0001 67 0001 74 00000003",
        "0001 0000000000000005 0000 0000000000000001 0000000000000009",
    ),
    (OffsetRecord("g", "t", 3, None), "0001 0001 67 0001 74 00000003", None),
    (
        ClassicRecord(
            "g",
            ClassicGeneration("consumer", 4, "range", "a", 8, (ClassicMember("a", "i", "c", "h", 7, 6, b"S", b"A"),)),
        ),
        "0002 0001 67",
        (
            "0003 0008 636f6e73756d6572 00000004 0005 72616e6765 0001 61 0000000000000008 "
            "00000001 0001 61 0001 69 0001 63 0001 68 00000007 00000006 00000001 53 00000001 41"
        ),
    ),
    (
        ClassicRecord("g", ClassicGeneration("", 0, None, None, 8)),
        "0002 0001 67",
        "0003 0000 00000000 ffff ffff 0000000000000008 00000000",
    ),
    (GroupEpochRecord("g", 5), "0003 0001 67", "0000 00000005 00"),
    (GroupEpochRecord("g", None), "0003 0001 67", None),
    (
        SubscribedTopicsRecord("g", (("t", TopicFacts(TOPIC, 2)),)),
        "0004 0001 67",
        f"0000 02 {TOPIC_HEX} 02 74 00000002 01 00 00",
    ),
    (
        MemberRecord("g", "a", CONSUMER),
        "0005 0001 67 0001 61",
        "0000 00 00 02 63 02 68 02 02 74 00 00000009 06 72616e6765 00",
    ),
    (
        MemberRecord(
            "g", "a", ConsumerMember("i", "r", "c", "h", (), "x", 9, None, ClassicProtocols(6, (("p", b"B"),)))
        ),
        "0005 0001 67 0001 61",
        "0000 02 69 02 72 02 63 02 68 01 02 78 00000009 00 01 00 0c 01 00000006 02 02 70 02 42 00 00",
    ),
    (TargetEpochRecord("g", 5), "0006 0001 67", "0000 00000005 00"),
    (
        TargetRecord("g", "a", frozenset({(TOPIC, 1), (TOPIC, 0)})),
        "0007 0001 67 0001 61",
        f"0000 02 {TOPIC_HEX} 03 00000000 00000001 00 00",
    ),
    (
        CurrentRecord(
            "g", "a", CurrentAssignment(5, 4, MemberState.UNREVOKED_PARTITIONS, frozenset(), frozenset({(TOPIC, 1)}))
        ),
        "0008 0001 67 0001 61",
        f"0000 00000005 00000004 02 01 02 {TOPIC_HEX} 02 00000001 00 00",
    ),
    (
        RegexRecord("g", "t.*", ResolvedRegex(("t",), 3, 4)),
        "0010 0001 67 0003 742e2a",
        "0000 02 02 74 0000000000000003 0000000000000004 00",
    ),
]


def hexed(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def bytes_of(text: str) -> bytes:
    return bytes.fromhex(text)


@pytest.mark.parametrize(("record", "key", "value"), GOLDEN, ids=lambda each: type(each).__name__)
def test_kafkas_own_bytes(record: Record, key: str, value: str | None) -> None:
    assert encode(record) == (bytes_of(key), hexed(value))
    assert decode(bytes_of(key), hexed(value)) == record


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000 0000000000000005 0001 6d 0000000000000001", CommittedOffset(5, -1, "m", 1)),
        ("0002 0000000000000005 0001 6d 0000000000000001", CommittedOffset(5, -1, "m", 1)),
        ("0004 0000000000000005 00000002 02 6d 0000000000000001 00", CommittedOffset(5, 2, "m", 1)),
        ("0004 0000000000000005 00000002 02 6d 0000000000000001 01 09 02 aabb", CommittedOffset(5, 2, "m", 1)),
    ],
    ids=["v0", "v2", "v4", "v4 with a tag of the future"],
)
def test_offsets_of_other_versions(value: str, expected: CommittedOffset) -> None:
    assert decode(bytes_of("0001 0001 67 0001 74 00000003"), hexed(value)) == OffsetRecord("g", "t", 3, expected)


def test_a_generation_of_the_first_version_waits_for_a_rebalance_as_long_as_for_a_session() -> None:
    value = "0000 0000 00000001 ffff 0001 61 00000001 0001 61 0001 63 0001 68 00000006 00000000 00000000"
    member = ClassicMember("a", None, "c", "h", 6, 6, b"", b"")
    assert decode(bytes_of("0002 0001 67"), hexed(value)) == ClassicRecord(
        "g", ClassicGeneration("", 1, None, "a", -1, (member,))
    )


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("00", None, "2 bytes expected"),
        ("0001 0001 67 0001 74", None, "4 bytes expected"),
        ("0001 0001 67 0001 74 00000003 00", None, "1 unexpected bytes at the end"),
        ("0001 ffff 0001 74 00000003", None, "null"),
        ("0001 0001 ff 0001 74 00000003", None, "UTF-8"),
        ("0001 fffe 0001 74 00000003", None, "-2 bytes expected"),
        ("0001 0001 67 0001 74 00000003", "0005 00", "version 5"),
        ("0001 0001 67 0001 74 00000003", "ffff 00", "version -1"),
        (
            "0001 0001 67 0001 74 00000003",
            "0003 0000000000000005 00000002 0001 6d 0000000000000001 00",
            "1 unexpected bytes at the end",
        ),
        ("0002 0001 67", "0003 0000 00000000 ffff ffff 0000000000000008 00000000 00", "1 unexpected bytes at the end"),
        ("0003 0001 67", "0001 00000005 00", "version 1"),
        ("0003 0001 67", "0000 00000005 00 00", "1 unexpected bytes at the end"),
        ("0006 0001 67", "0000 0000", "4 bytes expected"),
        ("0007 0001 67 0001 61", "0000 ffffffff0f 00", "array of"),
        ("0007 0001 67 0001 61", "0000 ffffffffff0f 00", "varint"),
        ("0007 0001 67 0001 61", "0000 00 00", "null"),
        ("0002 0001 67", "0003 0000 00000000 ffff ffff 0000000000000008 ffffffff", "null"),
    ],
)
def test_what_is_wrong_is_said(key: str, value: str | None, why: str) -> None:
    found = decode(bytes_of(key), hexed(value))
    assert isinstance(found, Unreadable)
    assert why in found.why


def test_a_state_of_the_future_is_unknown() -> None:
    found = decode(bytes_of("0008 0001 67 0001 61"), bytes_of("0000 00000005 00000004 09 01 01 00"))
    assert found == CurrentRecord("g", "a", CurrentAssignment(5, 4, MemberState.UNKNOWN))


def test_records_of_other_groups_are_kept_and_counted() -> None:
    coordinator = GroupCoordinator(GroupConfig())
    assert decode(bytes_of("000b 0001 67"), b"") == Unknown(11)
    coordinator.replay(bytes_of("000b 0001 67"), b"\0")
    coordinator.replay(bytes_of("000b 0001 68"), None)
    coordinator.replay(bytes_of("0001"), None)
    coordinator.replay(None, b"")
    assert coordinator.skipped == {11: 2}
    assert len(coordinator.unreadable) == 2
    assert "kind 1" in coordinator.unreadable[0]
