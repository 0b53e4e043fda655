"""Requests of producers, brokers and administrators to the coordinator, without API versions and wire formats.

`transaction_version` expresses a client's API version: it is 2 if the client knows that each end of a transaction
raises its epoch (EndTxn from version 5; AddPartitionsToTxn that a broker sends for a Produce from version 12).
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
    """Set, with the epoch, by a producer that continues after an error (KIP-360). Otherwise the producer is new, and
    its predecessor is fenced."""
    producer_epoch: int = NO_EPOCH
    two_phase_commit: bool = False
    """KIP-939; rejected."""
    keep_prepared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """AddPartitionsToTxn for one transaction. Also AddOffsetsToTxn, for the group's partition of
    `__consumer_offsets`."""

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
    """Ends a transaction at an operator's request and fences its producer."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransaction:
    """DescribeTransactions for one id."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    """ListTransactions, with its filters; an empty filter matches everything."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    running_longer_than_ms: int = -1
    """A negative value matches every transaction."""
    id_matches: Callable[[str], bool] | None = None
    """The caller compiles the regular expression and rejects an invalid one."""


Request = InitProducer | AddPartitions | EndTransaction | AbortTransaction | DescribeTransaction | ListTransactions
