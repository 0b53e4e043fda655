"""Replies of the transaction coordinator."""

from __future__ import annotations

from typing import NamedTuple

from ottla.machines.transactions.records import NO_EPOCH, NO_PRODUCER_ID, TopicPartition, Transaction
from ottla.protocol.model.errors import ErrorCode

NONE = ErrorCode.none


class InitProducerReply(NamedTuple):
    """The reply to InitProducerId: the id and epoch with which the producer writes."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class AddPartitionsReply(NamedTuple):
    """Results for one transaction. If the request is rejected as a whole, each partition has the same error."""

    errors: tuple[tuple[TopicPartition, ErrorCode], ...]


class EndTransactionReply(NamedTuple):
    """The reply to EndTxn, given once the outcome is recorded, before all markers are written."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    """The id with which the producer continues, sent to clients of transaction version 2."""
    producer_epoch: int = NO_EPOCH


class AbortTransactionReply(NamedTuple):
    """The reply to an abort by an administrator."""

    error: ErrorCode


class DescribeTransactionReply(NamedTuple):
    """The reply to DescribeTransactions for one transactional id."""

    error: ErrorCode
    transaction: Transaction | None = None


class ListedTransaction(NamedTuple):
    """One transaction of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsReply(NamedTuple):
    """The reply to ListTransactions, for the transactional ids of one coordinator."""

    unknown_states: tuple[str, ...]
    """Requested states that do not exist."""
    transactions: tuple[ListedTransaction, ...]


Reply = (
    InitProducerReply
    | AddPartitionsReply
    | EndTransactionReply
    | AbortTransactionReply
    | DescribeTransactionReply
    | ListTransactionsReply
)
