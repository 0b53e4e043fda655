"""Rates and ratios of measured values, which can be zero.

A fast machine finishes a small step in less than the resolution of a clock (10 ms for CPU time in ticks), and a busy
one may finish nothing in the measured time. Benchmarks divide through these functions, so that neither case aborts
them.
"""

from __future__ import annotations


def rate(count: float, seconds: float) -> float:
    """Returns the count per second, or 0.0 if no time was measured."""
    return count / seconds if seconds > 0 else 0.0


def per(total: float, count: float) -> float:
    """Returns the cost of one out of `count`, or 0.0 if there is none."""
    return total / count if count > 0 else 0.0


def ratio(value: float, other: float) -> float | None:
    """Returns how many times `other` fits into `value`, or None if `other` is not positive."""
    return value / other if other > 0 else None


def times_text(found: float | None, digits: int = 2) -> str:
    """Formats a ratio for people, as `?` if there is none."""
    return "?" if found is None else f"{found:,.{digits}f}"
