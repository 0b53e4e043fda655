"""Retention of the history: any point of the last N days can be restored."""

from __future__ import annotations

from ottla.connect.log_ports import SyncWritableLog
from ottla.connect.sqlite.history import last_item, snapshots


def trim_history(log: SyncWritableLog, before_ms: int) -> int | None:
    """Trims everything before the newest snapshot that is not after `before_ms`. No later point needs it.

    That snapshot is complete, because later entries refer to it. Returns the offset at which the log was trimmed, or
    None.
    """
    last = last_item(log)
    if last is None:
        return None
    start = log.tail().start_offset
    for offset, part in snapshots(log, last):
        if part.time_ms <= before_ms:
            if offset <= start:
                return None
            return log.trim(offset)
    return None
