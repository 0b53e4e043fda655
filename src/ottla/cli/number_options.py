"""Validates numbers and durations of options before a command uses them."""

from __future__ import annotations

import math

import typer

from ottla.protocol.model.durations import duration_ms

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
INT64_MAX = 2**63 - 1
SECONDS_MAX = 100 * 365 * 86_400.0
DURATION_EXAMPLES = "500ms, 90s, 10m, 2h or 1d"


def check_seconds(seconds: float | None) -> float | None:
    """Rejects NaN, which a range check lets through, and infinity, which overflows a timer."""
    if seconds is not None and (math.isnan(seconds) or seconds > SECONDS_MAX):
        raise typer.BadParameter(f"{seconds} is not a number of seconds up to {SECONDS_MAX:.0f} (100 years)")
    return seconds


def check_count_or_default(count: int) -> int:
    """Validates a count for which -1 means the broker's default."""
    if count == 0 or count < -1:
        raise typer.BadParameter(f"{count} must be at least 1, or -1 for the broker's default")
    return count


def parse_duration_ms(text: str, option: str, *, min_ms: int = 0) -> int:
    """Parses a duration. Raises BadParameter, naming the option, if the text is not a duration or out of range."""
    found = duration_ms(text)
    if found is None:
        raise typer.BadParameter(f'"{text}" is not a duration such as {DURATION_EXAMPLES}', param_hint=option)
    if not min_ms <= found <= SECONDS_MAX * 1000:
        raise typer.BadParameter(f'"{text}" is not between {min_ms} ms and 100 years', param_hint=option)
    return found
