"""Times and durations as people type them: `10m`, or an ISO 8601 time. Pure."""

from __future__ import annotations

from datetime import datetime

from ottla.model.durations import duration_ms

__all__ = ["duration_ms", "since_ms"]

_EPOCH_YEAR = 1970


def since_ms(text: str, now_ms: int) -> int:
    """The time in milliseconds, not before 1970: Kafka means other things by negative times. ValueError if the text is
    neither a duration nor a time."""
    ago_ms = duration_ms(text)
    if ago_ms is not None:
        return max(0, now_ms - ago_ms)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f'"{text}" is neither a duration (90s, 10m, 2h, 1d) nor a time (2026-01-31T12:00)') from None
    if moment.year < _EPOCH_YEAR:
        return 0
    return max(0, int(moment.timestamp() * 1000))  # without a zone it is the local one
