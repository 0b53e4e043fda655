"""Faults that a test plans for a simulated disk. Calls are counted from the moment the fault was planned."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum, auto


class Effect(Enum):
    """What a fault does to a call."""

    FAIL = auto()
    """The call raises. A failed sync leaves the pages clean; a failed write may have written a part."""
    LOSE = auto()
    """The call reports success, but the device never writes the data."""
    MISDIRECT = auto()
    """The call reports success, but the device writes the data at another position in the file."""


@dataclass(slots=True)
class Fault:
    """A planned fault."""

    operation: str
    path_part: str
    nth: int
    count: int | None
    effect: Effect = Effect.FAIL
    error: int = errno.EIO
    shift_bytes: int = 0


class Faults:
    """The planned faults of a disk. Operations are read, write, sync and open.

    `path` is a substring of the path; empty means any file. `nth` = 1 is the next such call. `count` is the number of
    consecutive calls that fail; None means all from then on, until `clear`.
    """

    def __init__(self) -> None:
        self._planned: list[Fault] = []

    def fail_write(self, nth: int = 1, *, path: str = "", count: int | None = 1, error: int = errno.EIO) -> None:
        """Fails writes. A failed write may have stored a part of its data."""
        self._planned.append(Fault("write", path, nth, count, error=error))

    def fail_sync(self, nth: int = 1, *, path: str = "", count: int | None = 1, error: int = errno.EIO) -> None:
        """Fails file syncs, `replace_file` and `sync_dir`."""
        self._planned.append(Fault("sync", path, nth, count, error=error))

    def fail_read(self, nth: int = 1, *, path: str = "", count: int | None = 1, error: int = errno.EIO) -> None:
        """Fails reads, except those that are served from the page cache only (`read_cached`)."""
        self._planned.append(Fault("read", path, nth, count, error=error))

    def fail_open(self, nth: int = 1, *, path: str = "", count: int | None = 1, error: int = errno.EMFILE) -> None:
        """Fails the opening of files, by default because the process has too many open."""
        self._planned.append(Fault("open", path, nth, count, error=error))

    def lose_write(self, nth: int = 1, *, path: str = "", count: int | None = 1) -> None:
        """Makes writes report success, although the device never stores their data."""
        self._planned.append(Fault("write", path, nth, count, Effect.LOSE))

    def misdirect_write(self, nth: int = 1, *, path: str = "", shift_bytes: int = 4096) -> None:
        """Makes one write store its data `shift_bytes` after the intended position."""
        self._planned.append(Fault("write", path, nth, 1, Effect.MISDIRECT, shift_bytes=shift_bytes))

    def clear(self) -> None:
        """Cancels all planned faults."""
        self._planned.clear()

    def strike(self, operation: str, path: str) -> Fault | None:
        """Counts this call against all planned faults; returns the fault that hits it, or None."""
        hit: Fault | None = None
        for fault in list(self._planned):
            if fault.operation != operation or fault.path_part not in path:
                continue
            fault.nth -= 1
            if fault.nth > 0 or hit is not None:
                continue
            hit = fault
            if fault.count is not None:
                fault.count -= 1
                if fault.count <= 0:
                    self._planned.remove(fault)
        return hit
