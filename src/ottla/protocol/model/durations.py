"""Durations as people type them: `90s`, `1h30m`. Pure."""

from __future__ import annotations

import re

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration_ms(text: str) -> int | None:
    """Parses a duration such as `90s` or `1h30m`; None if the text is not one."""
    compact = text.replace(" ", "")
    parts = _DURATION.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        return None
    return int(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))
