"""The limit on the WAL that a slot retains, which keeps the server's disk from filling up.

A slot keeps WAL on the server until the log has it. The limit is a setting of the server (max_slot_wal_keep_size),
because it must also hold while no connector runs. The server removes WAL beyond the limit, which leaves a gap in the
log, so warnings are given long before.
"""

from __future__ import annotations

import re

from ottla.connect.postgres_wal.failures import RefusedError

_UNITS = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SIZE = re.compile(r"(-?\d+)(B|kB|MB|GB|TB)?")
WARN_AT_PERCENT = (25, 50, 75, 90)
UNBOUNDED_WARN_BYTES = 1 << 30


def parse_size(text: str) -> int | None:
    """Parses a size as SHOW prints it and returns bytes; None if it is unlimited (-1)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size")
    number = int(found.group(1))
    # Without a unit it is 0 or -1; the unit of max_slot_wal_keep_size is megabytes.
    return None if number < 0 else number * _UNITS[found.group(2) or "MB"]


def check_bound(bound_bytes: int | None, *, unbounded: bool) -> None:
    """Raises RefusedError if the slot has no limit and the operator has not accepted that."""
    if bound_bytes is None and not unbounded:
        raise RefusedError(
            "the server keeps an unlimited amount of WAL for a slot (max_slot_wal_keep_size is -1), so its "
            "disk could fill up while the log is unavailable. Set a limit that fits the disk; no restart is "
            "needed:\n\n    psql -c \"ALTER SYSTEM SET max_slot_wal_keep_size = '20GB'\" -c 'SELECT "
            "pg_reload_conf()'\n\nor accept the risk with --unbounded-slot"
        )


class SlotWatch:
    """Converts the lag of the log into warnings: one at each threshold, and one message when the lag is over."""

    def __init__(self, bound_bytes: int | None) -> None:
        self._bound_bytes = bound_bytes
        self._warned = 0

    def warning(self, behind_bytes: int) -> str | None:
        """Returns the message for the current lag, or None."""
        limit = UNBOUNDED_WARN_BYTES if self._bound_bytes is None else max(self._bound_bytes, 1)
        percent = behind_bytes * 100 // limit
        reached = sum(percent >= each for each in WARN_AT_PERCENT)
        if reached == 0 and self._warned:
            self._warned = 0
            return "the log has caught up; the server's slot keeps little WAL again"
        if reached <= self._warned:
            return None
        self._warned = reached
        behind_mb = behind_bytes >> 20
        if self._bound_bytes is None:
            return (
                f"WARNING: the log is {behind_mb:,} MB behind, which the server keeps on its disk without a "
                "limit. Check the brokers (ottla cluster describe), and set max_slot_wal_keep_size"
            )
        return (
            f"WARNING: the log is {behind_mb:,} MB behind, {percent} % of the WAL that the server keeps for "
            f"the slot ({limit >> 20:,} MB, max_slot_wal_keep_size). Beyond it the server removes WAL, and a "
            "new base backup is needed. Check the brokers: ottla cluster describe"
        )
