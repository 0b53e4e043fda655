"""Wakes the watches of other processes after a commit: one named pipe for each client, one byte for each nudge.

A nudge can be lost with its sender, so watches also poll occasionally.
"""

from __future__ import annotations

import errno
import os
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

DIRECTORY = "watchers"
_UNFINISHED = "."


class Nudges:
    """Sends and receives nudges. `works` is false on a file system without named pipes."""

    def __init__(self, directory: str, loop: AbstractEventLoop, nudged: Callable[[], None]) -> None:
        self._directory = os.path.join(directory, DIRECTORY)
        self._name = uuid4().hex
        self._loop = loop
        self._nudged = nudged
        self._fd = -1
        os.makedirs(self._directory, exist_ok=True)
        try:
            self._fd = self._open()
        except OSError:
            return
        loop.add_reader(self._fd, self._read)

    @property
    def works(self) -> bool:
        """True while this process has a named pipe on which it can be nudged."""
        return self._fd >= 0

    def _open(self) -> int:
        """Creates the pipe and renames it once it has a reader: a pipe without a reader is taken for that of a dead
        process."""
        unfinished = os.path.join(self._directory, _UNFINISHED + self._name)
        os.mkfifo(unfinished, 0o660)
        fd = os.open(unfinished, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.rename(unfinished, os.path.join(self._directory, self._name))
        return fd

    def send(self) -> None:
        """Nudges all other clients. May be called from any thread; never waits and never fails, because the commit has
        happened."""
        with suppress(OSError):
            for name in os.listdir(self._directory):
                if name != self._name and not name.startswith(_UNFINISHED):
                    _write(os.path.join(self._directory, name))

    def close(self) -> None:
        """Removes this process's pipe; others then stop nudging it."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            with suppress(OSError):
                os.unlink(os.path.join(self._directory, self._name))
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        try:
            os.read(self._fd, 65536)
        except BlockingIOError:
            return
        self._nudged()


def _write(path: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # no reader: its process was killed
            os.unlink(path)
        return
    try:
        os.write(fd, b".")
    except OSError:
        return  # full, so that reader will wake anyway; or it is just closing
    finally:
        os.close(fd)
