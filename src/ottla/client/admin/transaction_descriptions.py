"""Results of the admin client about transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ottla.client.consumer.types import TopicPartition

ONGOING = "Ongoing"
DECIDED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""The outcome is decided, but not all partitions have their marker yet."""
OPEN = (ONGOING, *DECIDED)
STATES = ("Empty", *OPEN, "CompleteCommit", "CompleteAbort", "Dead")

_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One entry of a list of transactions."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transaction as its coordinator knows it."""

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
        """Whether a transaction is open."""
        return self.state in OPEN

    def open_for_ms(self, now_ms: int) -> int | None:
        """Returns how long the transaction has been open, or None."""
        return None if self.started_ms is None else max(0, now_ms - self.started_ms)


class ProducerState(NamedTuple):
    """The state of a producer in one partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    """The timestamp of its last batch or marker in the partition."""
    coordinator_epoch: int
    """The coordinator epoch of its last marker in the partition, or -1 if there was none."""
    first_offset: int | None
    """The first offset of its open transaction, or None if there is none."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in one partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int
    coordinator_epoch: int

    @property
    def at(self) -> TopicPartition:
        """The topic and the partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def name(self) -> tuple[TopicPartition, int, int]:
        """Identifies the transaction, also in later descriptions."""
        return self.at, self.producer_id, self.first_offset


class HangingTransactions(NamedTuple):
    """The result of a search for hanging transactions."""

    found: list[OpenTransaction]
    unknown: dict[TopicPartition, str]
    """Partitions that could not be checked, and why."""


def transaction_description(entry: Any, coordinator: int) -> TransactionDescription:
    """Builds the description from a DescribeTransactions reply."""
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
    """Builds the state from a DescribeProducers reply."""
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
    """Builds the transaction from a producer's state. Requires that one is open."""
    assert state.first_offset is not None, "no transaction is open"
    return OpenTransaction(
        at.topic,
        at.partition,
        state.producer_id,
        state.producer_epoch,
        state.first_offset,
        state.last_timestamp_ms,
        state.coordinator_epoch,
    )
