"""Determines who a producer is from the producer id and epoch that it sends.

A transactional id has one producer at a time. That producer has the current id and epoch, with two exceptions: it does
not know yet that it was raised to them (the reply was lost), or it was already given an id that takes effect when the
transaction completes. Every other producer is fenced.
"""

from __future__ import annotations

from enum import Enum, auto

from ottla.machines.transactions.records import NO_EPOCH, NO_PRODUCER_ID, Transaction
from ottla.protocol.model.errors import ErrorCode


class Identity(Enum):
    """The relation of a request's producer to the transactional id."""

    CURRENT = auto()
    PREVIOUS = auto()
    """The producer retries: the reply that raised it to the current identity did not arrive."""
    NEXT = auto()
    """The epochs are exhausted, and the producer was given its next id while its transaction is being completed."""
    FENCED = auto()
    STRANGER = auto()
    """The request carries a different producer id."""


def identify(transaction: Transaction, producer_id: int, producer_epoch: int) -> Identity:
    """Compares the id and epoch of a request with the state of the transactional id."""
    brought = (producer_id, producer_epoch)
    if brought == (transaction.producer_id, transaction.producer_epoch):
        return Identity.CURRENT
    last = (transaction.previous_producer_id, transaction.last_producer_epoch)
    if brought == last and transaction.last_producer_epoch != NO_EPOCH:
        return Identity.PREVIOUS
    if brought == (transaction.next_producer_id, 0) and producer_id != NO_PRODUCER_ID:
        return Identity.NEXT
    return Identity.FENCED if producer_id == transaction.producer_id else Identity.STRANGER


def refusal(identity: Identity) -> ErrorCode | None:
    """Returns the error for a request that only the current producer may make, or None for the current producer."""
    match identity:
        case Identity.CURRENT:
            return None
        case Identity.NEXT:
            return ErrorCode.concurrent_transactions
        case Identity.STRANGER:
            return ErrorCode.invalid_producer_id_mapping
        case _:
            return ErrorCode.producer_fenced
