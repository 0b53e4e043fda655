"""Notifies systemd of the state of a service with the sd_notify protocol: a datagram to the socket it names."""

from __future__ import annotations

import os
import socket

VARIABLE = "NOTIFY_SOCKET"


def notify_service(*assignments: str) -> bool:
    """Sends assignments such as `READY=1`, `STOPPING=1` or `STATUS=...`.

    Returns False if nobody listens, which is not a failure.
    """
    address = os.environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return False
    # A name that begins with `@` is in the abstract namespace, where the first byte is zero.
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(assignments).encode(), target)
    except OSError:
        return False
    return True
