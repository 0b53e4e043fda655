"""Kafka's error codes, and the value that carries one through the broker.

Expected failures are values; exceptions are bugs or I/O faults.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model.kio_import import ErrorCode

__all__ = ["ErrorCode", "Refused"]


class Refused(NamedTuple):
    """A request, or a part of one, that was turned down: the code for the client and a sentence for a person."""

    error: ErrorCode
    message: str | None = None
