"""What a broker's answer to a produce request means for the batch. Pure decisions, no I/O.

Two questions matter: can the batch be sent again, and may it already be in the log? With idempotence the broker
recognises a batch by its sequence, so sending it again is always safe while the numbering is unbroken.
"""

from __future__ import annotations

from enum import Enum, auto

from ottla.model.errors import ErrorCode


class Outcome(Enum):
    WRITTEN = auto()
    """Acknowledged."""
    RETRY_NOT_WRITTEN = auto()
    """Send it again; it is certainly not in the log."""
    RETRY_UNKNOWN = auto()
    """Send it again; it may be in the log already."""
    FAILED_NOT_WRITTEN = auto()
    """It will never be taken and is not in the log."""
    FAILED_UNKNOWN = auto()
    """It failed in a way that cannot be retried, and may be in the log."""
    CUT_IN_TWO = auto()
    """Too large as one batch."""
    OUT_OF_ORDER = auto()
    """An earlier batch is missing at the broker."""
    PRODUCER_FORGOTTEN = auto()
    """The broker does not know this producer any more."""
    FENCED = auto()
    """A producer with a higher epoch has taken over."""


_BY_CODE: dict[ErrorCode, Outcome] = {
    ErrorCode.none: Outcome.WRITTEN,
    ErrorCode.duplicate_sequence_number: Outcome.WRITTEN,
    ErrorCode.out_of_order_sequence_number: Outcome.OUT_OF_ORDER,
    ErrorCode.unknown_producer_id: Outcome.PRODUCER_FORGOTTEN,
    ErrorCode.invalid_producer_epoch: Outcome.FENCED,
    ErrorCode.producer_fenced: Outcome.FENCED,
    ErrorCode.message_too_large: Outcome.CUT_IN_TWO,
    ErrorCode.record_list_too_large: Outcome.CUT_IN_TWO,
    ErrorCode.unknown_server_error: Outcome.FAILED_UNKNOWN,
}

_REFUSED_BEFORE_WRITING = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_enough_replicas,
        ErrorCode.corrupt_message,
        ErrorCode.throttling_quota_exceeded,
        ErrorCode.concurrent_transactions,  # the producer's last transaction is being completed
    }
)

LEADER_MOVED = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.network_exception,
    }
)
"""Answers after which the metadata is asked for again."""


def outcome_of(error: ErrorCode) -> Outcome:
    known = _BY_CODE.get(error)
    if known is not None:
        return known
    if error in _REFUSED_BEFORE_WRITING:
        return Outcome.RETRY_NOT_WRITTEN
    return Outcome.RETRY_UNKNOWN if error.retriable else Outcome.FAILED_NOT_WRITTEN


def error_code(number: int) -> ErrorCode:
    """A code that a newer broker invented is an unknown server error to us."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error
