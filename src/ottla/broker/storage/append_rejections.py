"""Messages that say why a log rejects an append."""

from __future__ import annotations

import errno
from typing import Protocol

from ottla.broker.storage.log_resources import LogResources
from ottla.protocol.model.errors import ErrorCode, Refused


class AppendedLog(Protocol):
    """The state of a log on disk that decides whether it accepts appends."""

    shared: LogResources
    directory: str
    failed: OSError | None
    truncating: bool


def sentence_for(error: OSError, directory: str) -> str:
    """Returns the message for a failed write: that of a full disk, or the error itself."""
    return full_disk(directory) if error.errno == errno.ENOSPC else f"{directory}: {error}"


def slow_disk(directory: str) -> str:
    """Returns the message for a disk that is too slow for the appends."""
    return f"the disk of {directory} is too slow: the memory for unwritten records is used up"


def full_disk(directory: str) -> str:
    """Returns the message for a full disk."""
    return f"no space left on the disk of {directory}; writes resume when space is freed"


def refusal_of_any(log: AppendedLog) -> Refused | None:
    """Returns why a log accepts no batch of any size now, or None."""
    if log.failed is not None:
        return Refused(ErrorCode.kafka_storage_error, f"the log has failed: {log.failed}")
    if log.truncating:
        return Refused(ErrorCode.not_leader_or_follower, f"{log.directory} is being truncated")
    if log.shared.tail.is_overfull:
        return Refused(ErrorCode.kafka_storage_error, slow_disk(log.directory))
    reserve = log.shared.reserve
    if reserve is not None and not reserve.is_held:
        return Refused(ErrorCode.kafka_storage_error, full_disk(log.directory))
    return None
