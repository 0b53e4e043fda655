"""What the admin client tells of transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ottla.client.fetched import TopicPartition

ONGOING = "Ongoing"
DECIDED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""How it ends is certain; not every partition has been told yet."""
OPEN = (ONGOING, *DECIDED)
STATES = ("Empty", *OPEN, "CompleteCommit", "CompleteAbort", "Dead")

_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """As its coordinator knows it."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """By the coordinator's clock; None if no transaction is open."""
    coordinator: int
    partitions: list[TopicPartition] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    def open_for_ms(self, now_ms: int) -> int | None:
        return None if self.started_ms is None else max(0, now_ms - self.started_ms)


class ProducerState(NamedTuple):
    """What a partition knows of a producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    """Of its last batch or marker there."""
    coordinator_epoch: int
    """Of its last marker there; -1 if there was none."""
    first_offset: int | None
    """Where its open transaction begins; None if none is open there."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that one partition waits for the end of."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int
    coordinator_epoch: int

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def name(self) -> tuple[TopicPartition, int, int]:
        """The same transaction has it later too."""
        return self.at, self.producer_id, self.first_offset


class HangingTransactions(NamedTuple):
    found: list[OpenTransaction]
    unknown: dict[TopicPartition, str]
    """Partitions that could not be asked, and why."""


def transaction_description(entry: Any, coordinator: int) -> TransactionDescription:
    started_ms = (entry.transaction_start_time - _EPOCH) // _MILLISECOND
    is_open = entry.transaction_state in OPEN
    return TransactionDescription(
        transactional_id=entry.transactional_id,
        state=entry.transaction_state,
        producer_id=int(entry.producer_id),
        producer_epoch=int(entry.producer_epoch),
        timeout_ms=entry.transaction_timeout // _MILLISECOND,
        started_ms=started_ms if is_open and started_ms >= 0 else None,
        coordinator=coordinator,
        partitions=sorted(
            TopicPartition(topic.topic, int(index)) for topic in entry.topics for index in topic.partitions
        ),
    )


def producer_state(entry: Any) -> ProducerState:
    first_offset = int(entry.current_txn_start_offset)
    return ProducerState(
        int(entry.producer_id),
        int(entry.producer_epoch),
        int(entry.last_sequence),
        int(entry.last_timestamp),
        int(entry.coordinator_epoch),
        first_offset if first_offset >= 0 else None,
    )


def open_transaction(at: TopicPartition, state: ProducerState) -> OpenTransaction:
    assert state.first_offset is not None, "nothing is open there"
    return OpenTransaction(
        at.topic,
        at.partition,
        state.producer_id,
        state.producer_epoch,
        state.first_offset,
        state.last_timestamp_ms,
        state.coordinator_epoch,
    )
