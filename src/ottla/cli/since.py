"""Times as people type them: `10m` ago, or an ISO 8601 time. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def since_ms(text: str, now_ms: int) -> int:
    """The time in milliseconds. ValueError if it is neither a duration nor a time."""
    compact = text.replace(" ", "")
    parts = _DURATION.findall(compact)
    if parts and "".join(number + unit for number, unit in parts) == compact:
        return now_ms - int(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f'"{text}" is neither a duration (90s, 10m, 2h, 1d) nor a time (2026-01-31T12:00)') from None
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return int(moment.astimezone(UTC).timestamp() * 1000)
