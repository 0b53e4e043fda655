"""The port by which a follower truncates its log."""

from __future__ import annotations

from typing import Protocol

from ottla.broker.storage.any_log import AnyLog
from ottla.ports import Completion


class LogTruncator(Protocol):
    """Truncates logs. `done` is called when the truncation is as durable as the log."""

    def truncate(self, log: AnyLog, offset: int, done: Completion) -> None:
        """Truncates a log to an offset, or to the start of the batch that holds it."""
        ...

    def reset(self, log: AnyLog, offset: int, done: Completion) -> None:
        """Replaces a log by an empty one that starts at the offset."""
        ...
