"""Maps consumer settings to the numbers of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

from ottla.client.consumer.partition_reader import EARLIEST, LATEST
from ottla.client.consumer.types import READ_COMMITTED, READ_UNCOMMITTED

OffsetReset = Literal["earliest", "latest", "none"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]
_RESETS: dict[str, int | None] = {"earliest": EARLIEST, "latest": LATEST, "none": None}
_ISOLATION = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
T = TypeVar("T")


def reset_to(auto_offset_reset: str) -> int | None:
    """Returns the timestamp to look up for a partition without a usable offset; None means to fail instead."""
    return _one_of("auto_offset_reset", _RESETS, auto_offset_reset)


def isolation_number(isolation_level: str) -> int:
    """Returns the number of an isolation level."""
    return _one_of("isolation_level", _ISOLATION, isolation_level)


def _one_of(setting: str, known: Mapping[str, T], name: str) -> T:
    if name not in known:
        raise ValueError(f"{setting} must be one of {', '.join(known)}, not {name!r}")
    return known[name]
