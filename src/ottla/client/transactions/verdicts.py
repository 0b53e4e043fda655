"""Interprets a broker's error for a transaction. Pure decisions, no I/O.

There are four kinds, as in Kafka's clients: retry; abort this transaction and continue with the next one; this producer
was fenced; and errors that no retry can fix.
"""

from __future__ import annotations

from enum import Enum, auto

from ottla.protocol.model.errors import ErrorCode


class Verdict(Enum):
    """What an error means for the transaction."""

    AGAIN = auto()
    """Repeat the request after a pause."""
    ABORT = auto()
    """This transaction cannot be committed, but the next one can."""
    FENCED = auto()
    """Another producer started with the transactional id, or the coordinator aborted a slow transaction."""
    STOP = auto()


_AGAIN = frozenset(
    {
        ErrorCode.operation_not_attempted,  # another partition of the same request was refused
        ErrorCode.stale_member_epoch,  # the member has a newer epoch by now
    }
)
_FENCED = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})
_ABORT = frozenset(
    {
        ErrorCode.transaction_abortable,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.topic_authorization_failed,
        ErrorCode.invalid_topic_exception,
        ErrorCode.group_authorization_failed,
        ErrorCode.group_id_not_found,
        ErrorCode.invalid_group_id,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.fenced_instance_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.offset_metadata_too_large,
        ErrorCode.invalid_commit_offset_size,
    }
)


def verdict_of(error: ErrorCode) -> Verdict:
    """Returns the meaning of an error code."""
    if error in _FENCED:
        return Verdict.FENCED
    if error in _ABORT:
        return Verdict.ABORT
    return Verdict.AGAIN if error in _AGAIN or error.retriable else Verdict.STOP
