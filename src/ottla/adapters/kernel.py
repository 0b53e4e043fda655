"""The few questions to the kernel that Python's `os` has no call for. Where it cannot answer, the safe guess."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

DIRECT_ALIGNMENT_MIN = 4096
"""A drive may take 512 bytes and still rewrite 4096 of them: below this, a power cut could tear a neighbour."""

_AT_FDCWD = -100
_STATX_DIOALIGN = 0x2000
_STATX_MASK_AT = 0
_STATX_DIRECT_ALIGNMENTS_AT = 152
_FALLOC_FL_KEEP_SIZE = 0x01
_MEMORY_FILE_SYSTEMS = frozenset({0x01021994, 0x858458F6})  # tmpfs, ramfs

_libc = ctypes.CDLL(None, use_errno=True)


def direct_alignment(path: str) -> int | None:
    """What offsets, lengths and addresses of direct writes to this file must be multiples of; None if it takes none."""
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
    """Reserves blocks without changing the size. Where the file system cannot, does nothing."""
    fallocate = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
    if fallocate is None or length <= 0:
        return
    while True:
        mode = ctypes.c_int(_FALLOC_FL_KEEP_SIZE)
        if fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0:
            return
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def is_memory_file_system(path: str) -> bool:
    """True for tmpfs and ramfs: nothing there survives a reboot, so it is no `disk`. The path need not exist yet."""
    if sys.platform != "linux":
        return False
    while not os.path.exists(path):
        path = os.path.dirname(os.path.abspath(path))
    answer = ctypes.create_string_buffer(256)
    if _libc.statfs(os.fsencode(path), answer) != 0:
        return False
    (kind,) = struct.unpack_from("l", answer)
    return (kind & 0xFFFFFFFF) in _MEMORY_FILE_SYSTEMS
