"""Detects sockets that may be read directly, bypassing their transport."""

from __future__ import annotations

import asyncio

REAL_SOCKETS = ("asyncio.trsock", "uvloop.loop")


def plain_descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Returns the descriptor of a real, unencrypted socket, or -1."""
    found = transport.get_extra_info("socket")
    is_plain = transport.get_extra_info("sslcontext") is None
    return int(found.fileno()) if is_plain and type(found).__module__ in REAL_SOCKETS else -1
