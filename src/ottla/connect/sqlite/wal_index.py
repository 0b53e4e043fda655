"""SQLite's wal-index (the -shm file), whose header says what is committed in the WAL.

The WAL alone does not: a writer that is killed between its last frame and the header leaves a complete transaction in
the file that did not commit and that the next writer overwrites. All processes that use the database map this file into
memory, so reading it costs nothing.

Closing any descriptor of the file drops all locks that this process holds on it, including SQLite's own (POSIX). So it
is closed after the connections, or never.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.connect.sqlite.checksum import WalChecksum, wal_checksum_in_python
from ottla.connect.sqlite.wal_format import Salts

_HEADER_BYTES = 48
_CHECKED_BYTES = 40
_NATIVE = struct.Struct("=IIIBBHII II")
_SALTS = struct.Struct(">II")
_SALTS_AT = 32
_CHECKSUM = struct.Struct("=II")
_BACKFILLED_AT = 96
_U32 = struct.Struct("=I")
LOOK_BYTES = 100
_TRIES = 2000
_IS_BIG_ENDIAN_MACHINE: Final = struct.pack("=H", 1) == struct.pack(">H", 1)


@dataclass(frozen=True, slots=True)
class WalState:
    """The state of the WAL as of the last commit."""

    salts: Salts
    frames: int
    """The number of committed frames (mxFrame)."""
    checksum: WalChecksum
    """The checksum of the last committed frame."""
    database_pages: int
    page_bytes: int
    backfilled: int
    """The number of frames that checkpoints have copied to the database file."""

    @property
    def is_used_up(self) -> bool:
        """Whether the whole WAL is in the database file, so that the next writer may restart it."""
        return self.backfilled >= self.frames


class UnsteadyIndexError(Exception):
    """No consistent header could be read: a writer died while writing it. The next process that opens the database
    repairs it."""


class WalIndex:
    """A read-only view of the wal-index."""

    def __init__(self, database: Path) -> None:
        self._file = os.open(f"{database}-shm", os.O_RDONLY | os.O_CLOEXEC)
        self._memory = mmap.mmap(self._file, LOOK_BYTES, prot=mmap.PROT_READ)
        self._seen = b""
        self._state: WalState | None = None

    @property
    def descriptor(self) -> int:
        """The descriptor of the -shm file, open until `close`."""
        return self._file

    def look(self) -> WalState:
        """Returns the state. As in SQLite, both copies of the header must be equal and their checksum valid."""
        for attempt in range(_TRIES):
            content = self._memory[:LOOK_BYTES]
            if content == self._seen and self._state is not None:
                return self._state
            header = content[:_HEADER_BYTES]
            if header == content[_HEADER_BYTES : 2 * _HEADER_BYTES] and _is_whole(header):
                self._seen, self._state = content, _parse(content)
                return self._state
            if attempt > 10:
                time.sleep(0.001)
        raise UnsteadyIndexError

    def close(self) -> None:
        """Unmaps the memory and closes the file. Close SQLite's own connections first."""
        self._memory.close()
        os.close(self._file)


def _is_whole(header: bytes) -> bool:
    checked = header[:_CHECKED_BYTES]
    return wal_checksum_in_python(checked, _IS_BIG_ENDIAN_MACHINE, 0, 0) == _CHECKSUM.unpack_from(
        header, _CHECKED_BYTES
    )


def _parse(content: bytes) -> WalState:
    _, _, _, _, _, size, frames, pages, first, second = _NATIVE.unpack_from(content)
    page_bytes = (size & 0xFE00) + ((size & 1) << 16)
    salts = _SALTS.unpack_from(content, _SALTS_AT)
    (backfilled,) = _U32.unpack_from(content, _BACKFILLED_AT)
    return WalState((salts[0], salts[1]), frames, (first, second), pages, page_bytes, backfilled)
