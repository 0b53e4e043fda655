"""Times as people type them: `10m` ago, or an ISO 8601 time. Pure."""

from __future__ import annotations

import re
from datetime import datetime

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH_YEAR = 1970
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def since_ms(text: str, now_ms: int) -> int:
    """The time in milliseconds, not before 1970: Kafka means other things by negative times. ValueError if the text is
    neither a duration nor a time."""
    compact = text.replace(" ", "")
    parts = _DURATION.findall(compact)
    if parts and "".join(number + unit for number, unit in parts) == compact:
        return max(0, now_ms - int(sum(float(number) * _UNITS_MS[unit] for number, unit in parts)))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f'"{text}" is neither a duration (90s, 10m, 2h, 1d) nor a time (2026-01-31T12:00)') from None
    if moment.year < _EPOCH_YEAR:
        return 0
    return max(0, int(moment.timestamp() * 1000))  # without a zone it is the local one
