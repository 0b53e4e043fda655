"""The common part of the group and transaction coordinators: the time of a step, and the tickets of requests."""

from __future__ import annotations

from typing import Any, NamedTuple

Ticket = Any
"""An opaque value that the caller passes with a request and gets back with the reply."""


class Instant(NamedTuple):
    """A point in time, on both clocks that a coordinator uses."""

    elapsed_ms: int
    """Time of a monotonic clock. Timeouts are measured on it."""
    wall_ms: int
    """Wall-clock time, for timestamps in records."""
