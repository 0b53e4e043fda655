"""Tells systemd how a service is doing: the protocol of sd_notify, a datagram to a socket that it names."""

from __future__ import annotations

import os
import socket

VARIABLE = "NOTIFY_SOCKET"


def notify_service(*assignments: str) -> bool:
    """`READY=1`, `STOPPING=1`, `STATUS=...`. False without anybody who listens, which is no failure."""
    address = os.environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return False
    # A name that begins with `@` is in the abstract name space: there it begins with a zero.
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(assignments).encode(), target)
    except OSError:
        return False
    return True
