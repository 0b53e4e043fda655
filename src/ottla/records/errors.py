"""What can be wrong with record bytes that came from elsewhere."""

from __future__ import annotations


class CorruptRecords(ValueError):  # noqa: N818 - it names what is wrong, as MalformedRequest does
    """The bytes are not a record batch as its format has it."""


class TooLarge(CorruptRecords):
    """The records would take more memory than the caller allows: an honest giant or a compression bomb."""
