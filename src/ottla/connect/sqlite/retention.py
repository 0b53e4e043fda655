"""What of the history is kept: any moment of the last so many days can be restored."""

from __future__ import annotations

from ottla.connect.sqlite.history import last_item, snapshots
from ottla.connect.sqlite.log_port import WritableLog


def trim_history(log: WritableLog, before_ms: int) -> int | None:
    """Gives up what no moment after `before_ms` needs: all before the newest snapshot that is older than that. It is
    whole, since later entries point to it. Where the log was cut, or None."""
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
