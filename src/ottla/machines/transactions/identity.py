"""Who a producer is, by the id and epoch that it brings.

There is one producer of a transactional id at a time. It has the current id and epoch, but for two moments: it has
not heard yet that it was raised to them (its answer was lost), or it was already told an id that begins to count when
the transaction is complete. Everybody else is fenced.
"""

from __future__ import annotations

from enum import Enum, auto

from ottla.machines.transactions.records import NO_EPOCH, NO_PRODUCER_ID, Transaction
from ottla.model.errors import ErrorCode


class Identity(Enum):
    CURRENT = auto()
    PREVIOUS = auto()
    """It asks again: the answer that raised it to the current identity did not arrive."""
    NEXT = auto()
    """Epochs are used up, and it was told its next id while its transaction is being completed."""
    FENCED = auto()
    STRANGER = auto()
    """Another producer id."""


def identify(transaction: Transaction, producer_id: int, producer_epoch: int) -> Identity:
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
    """Of a request that only the current producer may make."""
    match identity:
        case Identity.CURRENT:
            return None
        case Identity.NEXT:
            return ErrorCode.concurrent_transactions
        case Identity.STRANGER:
            return ErrorCode.invalid_producer_id_mapping
        case _:
            return ErrorCode.producer_fenced
