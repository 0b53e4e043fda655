"""What producers, brokers and administrators ask of the coordinator, without API versions and wire formats.

`transaction_version` is how a client's version of an API counts: 2 if it knows that each end of a transaction raises
its epoch (EndTxn from version 5 on; AddPartitionsToTxn that a broker sends for a Produce from version 12 on).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ottla.machines.transactions.records import NO_EPOCH, NO_PRODUCER_ID, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """InitProducerId with a transactional id."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    """With the epoch: a producer that goes on after an error (KIP-360). Without them it is a new one, and the one
    before it is fenced."""
    producer_epoch: int = NO_EPOCH
    two_phase_commit: bool = False
    """KIP-939; refused."""
    keep_prepared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """AddPartitionsToTxn of one transaction; AddOffsetsToTxn too, for the group's partition of `__consumer_offsets`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    transaction_version: int = 0
    verify_only: bool = False
    """A broker asks whether the partitions are part of the transaction (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """EndTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    transaction_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransaction:
    """An operator ends a transaction, and fences its producer."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransaction:
    """DescribeTransactions, of one."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    running_longer_than_ms: int = -1
    """Negative: any."""
    id_matches: Callable[[str], bool] | None = None
    """The caller knows regular expressions, and refuses one that is invalid."""


Request = InitProducer | AddPartitions | EndTransaction | AbortTransaction | DescribeTransaction | ListTransactions
