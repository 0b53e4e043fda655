"""Finds out which process holds a file, for the error message to the process that waits for it."""

from __future__ import annotations

import os
import re

_LOCK = re.compile(r"POSIX\s+ADVISORY\s+(?:READ|WRITE)\s+(\d+)\s+\w+:\w+:(\d+)\s")


def holders_of(path: str) -> str:
    """Lists the processes that have a lock on the file, according to the kernel; empty if the kernel does not tell."""
    try:
        inode = os.stat(path).st_ino
        with open("/proc/locks", encoding="ascii") as file:
            found = {int(pid) for pid, its_inode in _LOCK.findall(file.read()) if int(its_inode) == inode}
    except OSError:
        return ""
    return ", ".join(f"process {pid}{_state_of(pid)}" for pid in sorted(found - {os.getpid()}))


def _state_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return " (stopped)" if state in "Tt" else ""
