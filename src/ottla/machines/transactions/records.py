"""What a partition of `__transaction_state` holds, as values: one record for each transactional id.

A record says what is now; `value` None is a tombstone: the id has expired. Nothing else survives a failover.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

NO_TIME = -1
NO_PRODUCER_ID = -1
NO_EPOCH = -1

EPOCH_MAX = 0x7FFF
"""Never given to a producer: it is there so that the last one that was given can be fenced."""
EPOCH_LAST_GIVEN = EPOCH_MAX - 1

EPOCH_BUMPS_SINCE_VERSION = 2
"""From this version of the transaction protocol on (KIP-890), each end of a transaction raises the epoch."""


class TransactionState(IntEnum):
    """The numbers are those of Kafka's records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    """Decided. Partitions are being marked; nothing can change the outcome any more."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """On its way to a tombstone. Never in a record."""
    PREPARE_EPOCH_FENCE = 7
    """About to be aborted with a higher epoch. Here that is one step with PREPARE_ABORT, and never in a record."""

    @property
    def label(self) -> str:
        """As administrators see it."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def is_commit(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


WRITTEN_STATES = frozenset(TransactionState) - {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE}


class TopicPartition(NamedTuple):
    topic: str
    partition: int


NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id: who may use it, and how far its last transaction is."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    updated_ms: int
    started_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id of the record before."""
    next_producer_id: int = NO_PRODUCER_ID
    """Only while prepared: the epochs are used up, and the producer goes on with this id."""
    client_version: int = 0
    """Of the transaction protocol, by which it was begun or ended."""
    last_producer_epoch: int = NO_EPOCH
    """With `previous_producer_id`: whom the last answer raised to the identity that is current now. Whoever asks again
    with this one did not get the answer. Kafka keeps it in memory only; here it is a tagged field of our own."""

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_LAST_GIVEN

    @property
    def bumps_epochs(self) -> bool:
        return self.client_version >= EPOCH_BUMPS_SINCE_VERSION


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    transactional_id: str
    value: Transaction | None


class Unknown(NamedTuple):
    """A record of a kind that this coordinator does not keep. It stays in the log."""

    key_version: int


class Unreadable(NamedTuple):
    why: str
