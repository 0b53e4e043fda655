"""The archive's progress in a partition."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class ProgressQuery(NamedTuple):
    """The group and partition to ask about."""

    group: str
    topic: str
    partition: int


class ArchiveProgress(Protocol):
    """Finds out how far partitions are archived."""

    async def archived_end(self, asked: ProgressQuery) -> int | None:
        """Returns the first offset of the partition that is not archived, or None if it is unknown. Never raises for an
        expected failure."""
        ...
