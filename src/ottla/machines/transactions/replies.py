"""What the coordinator answers."""

from __future__ import annotations

from typing import NamedTuple

from ottla.machines.transactions.records import NO_EPOCH, NO_PRODUCER_ID, TopicPartition, Transaction
from ottla.model.errors import ErrorCode

NONE = ErrorCode.none


class InitProducerReply(NamedTuple):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class AddPartitionsReply(NamedTuple):
    """Of one transaction. If it is refused as a whole, each partition has the same error."""

    errors: tuple[tuple[TopicPartition, ErrorCode], ...]


class EndTransactionReply(NamedTuple):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    """What the producer goes on with, which a client of transaction version 2 is told."""
    producer_epoch: int = NO_EPOCH


class AbortTransactionReply(NamedTuple):
    error: ErrorCode


class DescribeTransactionReply(NamedTuple):
    error: ErrorCode
    transaction: Transaction | None = None


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsReply(NamedTuple):
    unknown_states: tuple[str, ...]
    """Filters that name no state."""
    transactions: tuple[ListedTransaction, ...]


Reply = (
    InitProducerReply
    | AddPartitionsReply
    | EndTransactionReply
    | AbortTransactionReply
    | DescribeTransactionReply
    | ListTransactionsReply
)
