"""Kafka's error codes, and the value that carries one through the broker.

Expected failures are values; exceptions are bugs or I/O faults.
"""

from __future__ import annotations

from typing import NamedTuple

import ottla.protocol.model.light_kio  # noqa: F401 - before anything of kio

# isort: split
from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "RecordError", "Refused"]


class RecordError(NamedTuple):
    """An invalid record of a rejected batch."""

    batch_index: int
    """Its place in the batch, from 0."""
    message: str


class Refused(NamedTuple):
    """A rejected request or part of one: the error code for the client and a message for a person."""

    error: ErrorCode
    message: str | None = None
    record_errors: tuple[RecordError, ...] = ()
    """The invalid records of a batch, if the rejection is about single records."""
