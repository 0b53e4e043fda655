"""The contents of a partition of `__transaction_state` as values: one record for each transactional id.

A record holds the current state. A `value` of None is a tombstone: the id has expired. Nothing else survives a
failover.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

NO_TIME = -1
NO_PRODUCER_ID = -1
NO_EPOCH = -1

EPOCH_MAX = 0x7FFF
"""Never given to a producer. It exists so that the last epoch that was given can be fenced."""
EPOCH_LAST_GIVEN = EPOCH_MAX - 1

EPOCH_BUMPS_SINCE_VERSION = 2
"""From this version of the transaction protocol on (KIP-890), every end of a transaction raises the epoch."""


class TransactionState(IntEnum):
    """The states of a transaction. The numbers are those of Kafka's records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    """Decided. Partitions are being marked, and the outcome can no longer change."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """About to get a tombstone. Never in a record."""
    PREPARE_EPOCH_FENCE = 7
    """About to be aborted with a higher epoch. Ottla does this in one step with PREPARE_ABORT; never in a record."""

    @property
    def label(self) -> str:
        """The name shown to administrators."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """True if the outcome is decided and markers are still being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        """True if all markers are written."""
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def is_commit(self) -> bool:
        """True if the transaction was committed, or will be."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


WRITTEN_STATES = frozenset(TransactionState) - {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE}


class TopicPartition(NamedTuple):
    """A partition that takes part in a transaction."""

    topic: str
    partition: int


NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The state of a transactional id: who may use it, and the progress of its last transaction."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    updated_ms: int
    started_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    """Producer id of the preceding record."""
    next_producer_id: int = NO_PRODUCER_ID
    """Set only while prepared: the epochs are exhausted, and the producer continues with this id."""
    client_version: int = 0
    """Version of the transaction protocol with which the transaction was started or ended."""
    last_producer_epoch: int = NO_EPOCH
    """Together with `previous_producer_id`, the identity that the last reply raised to the current one. A producer that
    retries with it did not get the reply. Kafka keeps this in memory only; Ottla stores it in its own tagged field."""

    @property
    def is_epoch_exhausted(self) -> bool:
        """True if the producer id has no more epochs, so that a new id is needed."""
        return self.producer_epoch >= EPOCH_LAST_GIVEN

    @property
    def bumps_epochs(self) -> bool:
        """True if every end of a transaction raises the epoch (KIP-890)."""
        return self.client_version >= EPOCH_BUMPS_SINCE_VERSION


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A record of one transactional id; a value of None is a tombstone."""

    transactional_id: str
    value: Transaction | None


class Unknown(NamedTuple):
    """A record of a kind that this coordinator does not keep. It stays in the log."""

    key_version: int


class Unreadable(NamedTuple):
    """A record that could not be decoded."""

    why: str
