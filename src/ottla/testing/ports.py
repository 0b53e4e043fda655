"""Ports for servers that tests and benchmarks stop and restart.

A port chosen by the operating system comes from the ephemeral range, so any client on the machine may take it while its
server is down. The ports here are below that range, and each is reserved with a lock until the process that chose it
ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 12_000, 32_000
"""Above the ports of well-known services and below Linux's default ephemeral range."""

_chance = random.SystemRandom()
_locks: list[int] = []


def reserve_ports(count: int, *, in_a_row: bool = False) -> list[int]:
    """Returns unused ports, reserved for this process. With `in_a_row`, they are consecutive."""
    ports: list[int] = []
    while len(ports) < count:
        port = ports[-1] + 1 if ports and in_a_row else _chance.randrange(FIRST, LAST)
        if _reserve(port):
            ports.append(port)
        elif in_a_row:
            ports.clear()
    return ports


def reserve_port() -> int:
    """Returns one unused port, reserved for this process."""
    return reserve_ports(1)[0]


def _reserve(port: int) -> bool:
    directory = Path(tempfile.gettempdir(), f"ottla-ports-{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(directory / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.create_server(("127.0.0.1", port)):
            pass
    except OSError:
        os.close(lock)
        return False
    _locks.append(lock)
    return True
