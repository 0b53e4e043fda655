"""Parses times and durations as people type them: `10m`, or an ISO 8601 time. Pure."""

from __future__ import annotations

from datetime import datetime

from ottla.protocol.model.durations import duration_ms

__all__ = ["duration_ms", "since_ms"]

_EPOCH_YEAR = 1970


def since_ms(text: str, now_ms: int) -> int:
    """Returns the time in milliseconds, but not before 1970, because negative times have other meanings in Kafka.

    Raises ValueError if the text is neither a duration nor a time.
    """
    ago_ms = duration_ms(text)
    if ago_ms is not None:
        return max(0, now_ms - ago_ms)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f'"{text}" is neither a duration (90s, 10m, 2h, 1d) nor a time (2026-01-31T12:00)') from None
    if moment.year < _EPOCH_YEAR:
        return 0
    return max(0, int(moment.timestamp() * 1000))  # a time without a zone is local time
