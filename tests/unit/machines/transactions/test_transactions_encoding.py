"""Records of `__transaction_state`, byte for byte as in Kafka's message schema; and invalid records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.machines.transactions.config import TransactionConfig
from ottla.machines.transactions.coordinator import TransactionCoordinator
from ottla.machines.transactions.encoding import decode, encode
from ottla.machines.transactions.records import (
    TopicPartition,
    Transaction,
    TransactionRecord,
    TransactionState,
    Unknown,
    Unreadable,
)

KEY = "0000 0001 78"
FRESH = Transaction(
    producer_id=7,
    producer_epoch=0,
    timeout_ms=60_000,
    state=TransactionState.EMPTY,
    updated_ms=9,
    previous_producer_id=7,
)
ONGOING = Transaction(
    producer_id=7,
    producer_epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("t", 1), TopicPartition("t", 0), TopicPartition("__consumer_offsets", 12)}),
    updated_ms=9,
    started_ms=8,
    previous_producer_id=7,
    client_version=2,
)

GOLDEN: list[tuple[str, Transaction | None, str | None]] = [
    # version, producer id, epoch, timeout, state, no partitions, updated, started, one tag: the previous producer id
    (
        "empty",
        FRESH,
        "0001 0000000000000007 0000 0000ea60 00 00 0000000000000009 ffffffffffffffff 01 00 08 0000000000000007",
    ),
    (
        "ongoing",
        ONGOING,
        (
            "0001 0000000000000007 0003 0000ea60 01 "
            "03 13 5f5f636f6e73756d65725f6f666673657473 02 0000000c 00 02 74 03 00000000 00000001 00 "
            "0000000000000009 0000000000000008 02 00 08 0000000000000007 02 02 0002"
        ),
    ),
    (
        "prepared, with the epochs used up",
        replace(
            ONGOING,
            state=TransactionState.PREPARE_COMMIT,
            partitions=frozenset({TopicPartition("t", 0)}),
            producer_epoch=0x7FFF,
            next_producer_id=11,
            last_producer_epoch=0x7FFE,
        ),
        (
            "0001 0000000000000007 7fff 0000ea60 02 02 02 74 02 00000000 00 0000000000000009 0000000000000008 "
            "04 00 08 0000000000000007 01 08 000000000000000b 02 02 0002 904e 02 7ffe"
        ),
    ),
    (
        "complete",
        replace(ONGOING, state=TransactionState.COMPLETE_ABORT, partitions=frozenset(), previous_producer_id=-1),
        "0001 0000000000000007 0003 0000ea60 05 01 0000000000000009 0000000000000008 01 02 02 0002",
    ),
    ("expired", None, None),
]


def in_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize(("value", "data"), [case[1:] for case in GOLDEN], ids=[case[0] for case in GOLDEN])
def test_as_kafka_writes_it(value: Transaction | None, data: str | None) -> None:
    record = TransactionRecord("x", value)
    assert encode(record) == (in_bytes(KEY), None if data is None else in_bytes(data))
    assert decode(in_bytes(KEY), None if data is None else in_bytes(data)) == record


def test_version_0_as_older_brokers_write_it() -> None:
    """Lengths of fixed size, null partitions where there is no transaction, and no tagged fields."""
    old = in_bytes(
        "0000 0000000000000007 0003 0000ea60 01 00000001 0001 74 00000002 00000000 00000001 "
        "0000000000000009 0000000000000008"
    )
    partitions = frozenset({TopicPartition("t", 0), TopicPartition("t", 1)})
    expected = replace(ONGOING, partitions=partitions, previous_producer_id=-1, client_version=0)
    assert decode(in_bytes(KEY), old) == TransactionRecord("x", expected)
    empty = in_bytes("0000 0000000000000007 0000 0000ea60 00 ffffffff 0000000000000009 ffffffffffffffff")
    assert decode(in_bytes(KEY), empty) == TransactionRecord("x", replace(FRESH, previous_producer_id=-1))


def test_a_tagged_field_of_a_later_kafka_is_skipped() -> None:
    """Such as the next producer epoch of two-phase commit (KIP-939)."""
    later = in_bytes(
        "0001 0000000000000007 0000 0000ea60 00 00 0000000000000009 ffffffffffffffff "
        "02 00 08 0000000000000007 03 02 0005"
    )
    assert decode(in_bytes(KEY), later) == TransactionRecord("x", FRESH)


UNREADABLE = {
    "an empty key": ("", None),
    "a key that is cut": ("0000 0002 78", None),
    "a key with more": (KEY + "00", None),
    "a name that is not UTF-8": ("0000 0001 ff", None),
    "a name that is null": ("0000 ffff", None),
    "an empty value": (KEY, ""),
    "a version that is not known": (KEY, "0002" + GOLDEN[0][2][4:] if GOLDEN[0][2] else ""),
    "a value that is cut": (KEY, "0001 0000000000000007 0000"),
    "a value with more": (KEY, f"{GOLDEN[0][2]} 00"),
    "a state that is never written": (
        KEY,
        "0001 0000000000000007 0000 0000ea60 06 01 0000000000000009 ffffffffffffffff 00",
    ),
    "a state that nobody knows": (
        KEY,
        "0001 0000000000000007 0000 0000ea60 09 01 0000000000000009 ffffffffffffffff 00",
    ),
    "more partitions than bytes": (KEY, "0001 0000000000000007 0000 0000ea60 01 7f 0000000000000009"),
    "a topic without partitions": (KEY, "0001 0000000000000007 0000 0000ea60 01 02 02 74 00 00 0000000000000009"),
    "a tagged field of another size": (
        KEY,
        "0001 0000000000000007 0000 0000ea60 00 00 0000000000000009 ffffffffffffffff 01 00 02 0007",
    ),
    "a varint without an end": (KEY, "0001 0000000000000007 0000 0000ea60 01 ffffffffffff"),
}


@pytest.mark.parametrize(("key", "value"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_record(key: str, value: str | None) -> None:
    found = decode(in_bytes(key), None if value is None else in_bytes(value))
    assert isinstance(found, Unreadable)
    assert found.why


def test_another_kind_of_record_is_left_alone() -> None:
    assert decode(in_bytes("0005 0001 78"), b"whatever") == Unknown(5)


def test_a_coordinator_counts_what_it_does_not_read() -> None:
    coordinator = TransactionCoordinator(TransactionConfig())
    coordinator.replay(None, b"")
    coordinator.replay(in_bytes("0005 0001 78"), b"")
    coordinator.replay(in_bytes(KEY), b"")
    coordinator.replay(*encode(TransactionRecord("x", FRESH)))
    assert coordinator.skipped == {5: 1}
    assert len(coordinator.unreadable) == 2
    assert coordinator.tables == {"x": FRESH}


def test_a_tombstone_takes_it_away() -> None:
    coordinator = TransactionCoordinator(TransactionConfig())
    coordinator.replay(*encode(TransactionRecord("x", FRESH)))
    coordinator.replay(*encode(TransactionRecord("x", None)))
    coordinator.replay(*encode(TransactionRecord("y", None)))
    assert coordinator.tables == {}
