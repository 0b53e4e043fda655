"""Kernel queries for which Python's `os` has no call. If the kernel cannot answer, the functions return a safe
value."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import sys

DIRECT_ALIGNMENT_MIN = 4096
"""A drive may accept writes of 512 bytes and still rewrite 4096: with less, a power cut could tear neighbouring
data."""

_AT_FDCWD = -100
_STATX_DIOALIGN = 0x2000
_STATX_MASK_AT = 0
_STATX_DIRECT_ALIGNMENTS_AT = 152
_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_ZERO_RANGE = 0x10
_MEMORY_FILE_SYSTEMS = frozenset({0x01021994, 0x858458F6})  # tmpfs, ramfs
_SYNCED_AS_A_WHOLE = frozenset({0xEF53, 0x58465342, 0x9123683E, *_MEMORY_FILE_SYSTEMS})  # ext2 to ext4, XFS, Btrfs
_SYNCFS_TELLS_OF_FAILURES = (5, 8)

_libc = ctypes.CDLL(None, use_errno=True)


def direct_alignment(path: str) -> int | None:
    """Returns the alignment that offsets, lengths and addresses of direct writes to this file need; None if it supports
    none."""
    answer = ctypes.create_string_buffer(256)
    statx = getattr(_libc, "statx", None)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_DIOALIGN, answer) != 0:
        return DIRECT_ALIGNMENT_MIN
    (mask,) = struct.unpack_from("I", answer, _STATX_MASK_AT)
    if not mask & _STATX_DIOALIGN:
        return DIRECT_ALIGNMENT_MIN
    alignments: tuple[int, int] = struct.unpack_from("II", answer, _STATX_DIRECT_ALIGNMENTS_AT)
    return max(*alignments, DIRECT_ALIGNMENT_MIN) if all(alignments) else None


def allocate_keeping_size(fd: int, offset: int, length: int) -> None:
    """Reserves blocks without changing the file size. Does nothing if the file system does not support it."""
    if length > 0:
        _fallocate(fd, _FALLOC_FL_KEEP_SIZE, offset, length)


def zero_range(fd: int, offset: int, length: int) -> bool:
    """Zeroes a range in its existing blocks without writing. False if the file system does not support it."""
    return length <= 0 or _fallocate(fd, _FALLOC_FL_ZERO_RANGE | _FALLOC_FL_KEEP_SIZE, offset, length)


def _fallocate(fd: int, mode: int, offset: int, length: int) -> bool:
    fallocate = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
    if fallocate is None:
        return False
    while fallocate(fd, ctypes.c_int(mode), ctypes.c_int64(offset), ctypes.c_int64(length)) != 0:
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


def is_memory_file_system(path: str) -> bool:
    """Reports whether a path is on tmpfs or ramfs. Nothing there survives a reboot, so it is no `disk`. The path need
    not exist yet."""
    while not os.path.exists(path):
        path = os.path.dirname(os.path.abspath(path))
    return _file_system_kind(path) in _MEMORY_FILE_SYSTEMS


def can_sync_as_a_whole(path: str) -> bool:
    """Reports whether `syncfs` puts everything on stable storage here and reports failures. It does not before Linux
    5.8, nor on file systems known to leave that to each file, such as FUSE."""
    if getattr(_libc, "syncfs", None) is None or kernel_version() < _SYNCFS_TELLS_OF_FAILURES:
        return False
    return _file_system_kind(path) in _SYNCED_AS_A_WHOLE


def sync_as_a_whole(fd: int) -> None:
    """Syncs the file system of an open file or directory. Reports every failure since it was opened."""
    if _libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def kernel_version() -> tuple[int, int]:
    """Returns the kernel's (major, minor) version; (0, 0) if this is not Linux."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release) if sys.platform == "linux" else None
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _file_system_kind(path: str) -> int:
    """Returns Linux's magic number of the file system; 0 if it is unknown."""
    answer = ctypes.create_string_buffer(256)
    if sys.platform != "linux" or _libc.statfs(os.fsencode(path), answer) != 0:
        return 0
    kind: int = struct.unpack_from("l", answer)[0]
    return kind & 0xFFFFFFFF
