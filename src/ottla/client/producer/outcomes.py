"""Interprets a broker's reply to a produce request. Pure decisions, no I/O.

Two questions matter: can the batch be sent again, and may it already be in the log? With idempotence, the broker
recognises a batch by its sequence, so retrying is always safe while the sequence has no gap.
"""

from __future__ import annotations

from enum import Enum, auto

from ottla.protocol.model.errors import ErrorCode


class Outcome(Enum):
    """What the reply means for the batch."""

    WRITTEN = auto()
    """Acknowledged."""
    RETRY_NOT_WRITTEN = auto()
    """Retry; the batch is certainly not in the log."""
    RETRY_UNKNOWN = auto()
    """Retry; the batch may already be in the log."""
    FAILED_NOT_WRITTEN = auto()
    """The batch will never be accepted and is not in the log."""
    FAILED_UNKNOWN = auto()
    """The batch failed in a way that cannot be retried, and may be in the log."""
    CUT_IN_TWO = auto()
    """Too large as one batch; split it."""
    OUT_OF_ORDER = auto()
    """The broker is missing an earlier batch."""
    PRODUCER_FORGOTTEN = auto()
    """The broker no longer knows this producer."""
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
        ErrorCode.concurrent_transactions,  # the producer's previous transaction is still being completed
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
"""Errors after which the metadata is refreshed."""


def outcome_of(error: ErrorCode) -> Outcome:
    """Returns the meaning of an error code."""
    known = _BY_CODE.get(error)
    if known is not None:
        return known
    if error in _REFUSED_BEFORE_WRITING:
        return Outcome.RETRY_NOT_WRITTEN
    return Outcome.RETRY_UNKNOWN if error.retriable else Outcome.FAILED_NOT_WRITTEN


def error_code(number: int) -> ErrorCode:
    """Converts a number to an error code. Unknown numbers, from a newer broker, become unknown_server_error."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error
