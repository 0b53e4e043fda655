"""Errors in record bytes that came from outside."""

from __future__ import annotations


class CorruptRecords(ValueError):  # noqa: N818 - it names what is wrong, as MalformedRequest does
    """The bytes are not a valid record batch."""


class TooLarge(CorruptRecords):
    """The records would take more memory than the caller allows: a large batch or a decompression bomb."""
