"""Creates, opens and removes the files of the ring. Every function here is blocking.

A file gets its name `journal-NNNN` only after it was written completely, synced and closed. A file with such a name can
therefore be written in place without allocating anything. A number is not reused while the broker runs, so a file that
failed is never written again.
"""

from __future__ import annotations

import contextlib
import posixpath
import re

from ottla.broker.storage.journal.format import ALIGNMENT_MIN
from ottla.broker.storage.journal.group import JournaledLog
from ottla.ports import DataFile, FileSystem

_NAME = re.compile(r"journal-(\d{4,9})")
_UNFINISHED = ".new"
_ZEROS_BYTES = 1 << 20


class RingFile:
    """An open file of the ring, and the contents of the current pass over it."""

    __slots__ = ("ends", "file", "lap", "last_sequence", "number", "position", "size_bytes")

    def __init__(self, number: int, file: DataFile, size_bytes: int) -> None:
        self.number = number
        self.file = file
        self.size_bytes = size_bytes
        self.rewind()

    def rewind(self) -> None:
        """Starts the next pass: nothing in the file is needed any more."""
        self.position = 0
        self.lap = 0
        self.last_sequence = 0
        self.ends: dict[JournaledLog, int] = {}
        """Each log with an entry here, and its end after its last entry; -1 if none of its entries had an end."""

    @property
    def left_bytes(self) -> int:
        """The space left in the current pass."""
        return self.size_bytes - self.position


def file_name(number: int) -> str:
    """Returns the name of the journal file with this number."""
    return f"journal-{number:04d}"


def file_number(name: str) -> int | None:
    """Returns the number of a complete ring file; None for any other name."""
    found = _NAME.fullmatch(name)
    return int(found.group(1)) if found else None


def create_file(files: FileSystem, directory: str, number: int, size_bytes: int) -> RingFile:
    """Creates a ring file filled with zeros."""
    path = posixpath.join(directory, file_name(number))
    unfinished = path + _UNFINISHED
    try:
        _write_zeros(files, unfinished, size_bytes)
        files.rename(unfinished, path)
        files.sync_dir(directory)
        return _open_file(files, directory, number)
    except BaseException:
        for name in (unfinished, path):
            with contextlib.suppress(OSError):
                files.remove(name)
        raise


def open_files(files: FileSystem, directory: str, bytes_max: int) -> list[RingFile]:
    """Opens the files of an earlier run. Removes incomplete files, and files over the limit.

    The caller has a durable checkpoint that covers every block in these files. The directory is synced again, because
    an earlier run may have ended between a rename and its sync.
    """
    files.make_dirs(directory)
    files.sync_dir(posixpath.dirname(directory))
    opened: list[RingFile] = []
    total_bytes = 0
    for name in files.list_dir(directory):
        number = file_number(name)
        if number is None:
            if name.endswith(_UNFINISHED):
                files.remove(posixpath.join(directory, name))
            continue
        file = _open_file(files, directory, number)
        total_bytes += file.size_bytes
        if total_bytes > bytes_max and (opened or file.size_bytes > bytes_max):
            total_bytes -= file.size_bytes
            remove_file(files, file)
            continue
        opened.append(file)
    files.sync_dir(directory)
    return opened


def remove_file(files: FileSystem, file: RingFile) -> None:
    """Closes a file and removes it. The removal is durable after a sync of the directory."""
    file.file.close()
    files.remove(file.file.path)


def alignment_of(file: RingFile) -> int:
    """Returns the alignment of blocks in this file: that of direct writes, and never less than the minimum."""
    return max(ALIGNMENT_MIN, file.file.alignment)


def _open_file(files: FileSystem, directory: str, number: int) -> RingFile:
    file = files.open_durable(posixpath.join(directory, file_name(number)))
    size_bytes = file.size()
    return RingFile(number, file, size_bytes - size_bytes % max(ALIGNMENT_MIN, file.alignment))


def _write_zeros(files: FileSystem, path: str, size_bytes: int) -> None:
    """Writes the zeros instead of only allocating: the first write to an allocated extent converts it, which costs a
    sync."""
    file = files.open(path, create=True)
    try:
        zeros = memoryview(bytes(min(size_bytes, _ZEROS_BYTES)))
        for at in range(0, size_bytes, _ZEROS_BYTES):
            file.write_at(at, [zeros[: size_bytes - at]])
        file.sync()
    finally:
        file.close()
