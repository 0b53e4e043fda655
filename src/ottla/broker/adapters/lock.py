"""Locks a data directory for one broker. The kernel drops the lock when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os

LOCK_FILE = ".lock"


class DirectoryInUseError(Exception):
    """Another process uses this directory. The message addresses the person who started the second one."""


class DirectoryLock:
    """An exclusive lock, taken on construction and held until `release` or the end of the process."""

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        self._path = os.path.join(directory, LOCK_FILE)
        self._fd: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            self._close()
            by_whom = f"the process {holder}" if holder.isdigit() else "another process"
            raise DirectoryInUseError(
                f"The data directory {directory} is in use by {by_whom}. Stop that broker first, or give this one "
                "another directory with --data."
            ) from None
        except OSError:
            self._close()
            raise
        self._name_holder(f"{os.getpid()}\n".encode())

    def _name_holder(self, name: bytes) -> None:
        """Writes the process id into the file, for the message to a second broker. A full disk must not stop the start,
        so failures are ignored."""
        assert self._fd is not None
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, os.pwrite(self._fd, name, 0))

    def release(self) -> None:
        """Releases the lock. The file stays, because removing it could let two processes lock two files of the same
        name."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
