"""Lease files. The owner locks its file, and the kernel releases the lock when the process ends, however it ends.

The deadline is written into the file, so that a renewal needs neither a transaction nor a sync, and works while another
process holds the store. The deadline need not survive a power failure: the boot id ends the lease in that case.

Owner and observers agree without a lock, because a stopped process could hold one. An observer that finds the deadline
passed marks the file, permanently, and then reads the deadline again. The owner writes the new deadline and then checks
for the mark. If the owner sees no mark, every observer sees the new deadline. If it sees one, it knows that it has lost
the lease, at the latest when that deadline passes.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from uuid import uuid4

from ottla.coordination.sqlite.store import LeaseRow

DIRECTORY = "leases"
LEFT_AFTER_S = 3600
_DEADLINE = struct.Struct("<dd")
"""The deadline is stored twice: a reader that races with the writer sees two different numbers."""
_MARK = b"ended"


class LeaseFile:
    """The owner's lease file, locked from its creation until its removal or the end of the process."""

    def __init__(self, directory: str, deadline_ms: float) -> None:
        self.name = uuid4().hex
        self._path = os.path.join(directory, DIRECTORY, self.name)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._lock = threading.Lock()
        """Keeps the file open while a deadline is written: after a close, the descriptor's number could refer to
        another file."""
        self.renew(deadline_ms)
        _held.add(self)

    def renew(self, deadline_ms: float) -> bool:
        """Writes a new deadline. Returns False if the lease has ended, or will end without another renewal."""
        with self._lock:
            if self._fd < 0 or _is_marked(self._fd):
                return False
            os.pwrite(self._fd, _DEADLINE.pack(deadline_ms, deadline_ms), 0)
            return not _is_marked(self._fd)

    def release(self) -> None:
        """Closes the file and so releases its lock: the lease then looks expired to others."""
        with self._lock:
            self.release_in_child()

    def release_in_child(self) -> None:
        """Closes the file. Takes no mutex: a forked child has no other threads, and nobody would release it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Releases the lock and deletes the file. A failed deletion is ignored."""
        self.release()
        with suppress(OSError):
            os.unlink(self._path)


_held: weakref.WeakSet[LeaseFile] = weakref.WeakSet()


def _release_in_child() -> None:
    """Closes lease files in a forked child, which shares the lock and would keep it when its parent is killed."""
    for file in list(_held):
        file.release_in_child()


os.register_at_fork(after_in_child=_release_in_child)


class LeaseObserver:
    """Reports leases that appear to have expired. Runs on the event loop: it keeps the files open, so that a check is
    two system calls and never waits."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        os.makedirs(os.path.join(directory, DIRECTORY), exist_ok=True)
        self._boot_id = boot_id()
        self._fds: dict[LeaseRow, int] = {}

    def observe(self, rows: Iterable[LeaseRow]) -> None:
        """Opens the files of new leases and closes those of old ones."""
        wanted = set(rows)
        for row in self._fds.keys() - wanted:
            fd = self._fds.pop(row)
            if fd >= 0:
                os.close(fd)
        for row in wanted - self._fds.keys():
            self._fds[row] = _open(self._directory, row)

    def over(self, now_ms: float) -> list[LeaseRow]:
        """Returns the leases that appear to have expired."""
        return [row for row, fd in self._fds.items() if _is_over(row, fd, self._boot_id, now_ms)]

    def close(self) -> None:
        """Closes the files of all observed leases."""
        self.observe(())


def is_over(directory: str, row: LeaseRow, now_ms: float) -> bool:
    """Checks one lease again, from any thread."""
    fd = _open(directory, row)
    try:
        return _is_over(row, fd, boot_id(), now_ms)
    finally:
        if fd >= 0:
            os.close(fd)


def remove_file(directory: str, row: LeaseRow) -> None:
    """Removes the file of a lease; does nothing if it is gone."""
    with suppress(OSError):
        os.unlink(os.path.join(directory, DIRECTORY, row.file))


def remove_left_files(directory: str, rows: Iterable[LeaseRow]) -> None:
    """Removes files of owners that were killed before their lease was stored or after it ended."""
    known = {row.file for row in rows}
    for name in os.listdir(os.path.join(directory, DIRECTORY)):
        path = os.path.join(directory, DIRECTORY, name)
        with suppress(OSError):
            if name not in known and time.time() - os.stat(path).st_mtime > LEFT_AFTER_S:
                os.unlink(path)


def _open(directory: str, row: LeaseRow) -> int:
    """Opens a lease file; returns -1 if there is none."""
    try:
        return os.open(os.path.join(directory, DIRECTORY, row.file), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def _is_over(row: LeaseRow, fd: int, current_boot_id: str, now_ms: float) -> bool:
    if row.boot_id != current_boot_id or fd < 0:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _has_passed(fd, now_ms)
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def _has_passed(fd: int, now_ms: float) -> bool:
    if now_ms < _read_deadline(fd):
        return False
    os.pwrite(fd, _MARK, _DEADLINE.size)
    return now_ms >= _read_deadline(fd)


def _is_marked(fd: int) -> bool:
    return os.pread(fd, len(_MARK), _DEADLINE.size) == _MARK


def _read_deadline(fd: int) -> float:
    while True:
        first, second = _DEADLINE.unpack(os.pread(fd, _DEADLINE.size, 0))
        if first == second:
            return float(first)


@cache
def boot_id() -> str:
    """Returns an id that changes with each boot of the machine."""
    if sys.platform == "darwin":
        answer = ctypes.create_string_buffer(64)
        size = ctypes.c_size_t(len(answer))
        failed = ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", answer, ctypes.byref(size), None, 0)
        if failed:
            raise OSError("could not read the boot id of this system (kern.bootsessionuuid)")
        return answer.value.decode()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
