"""Reads and changes the interrupt coalescing of network cards, which has no file in /sys but an ioctl (ethtool's)."""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct

SCHEME = "ethtool:"
_PATH = re.compile(r"ethtool:([^/]{1,15})/adaptive-rx")
_SIOCETHTOOL = 0x8946
_GET, _SET = 0x0E, 0x0F
_WORDS = 23
_RX_USECS, _ADAPTIVE_RX = 1, 10


def adaptive_path(interface: str) -> str:
    """Returns the name of the setting in plans and records."""
    return f"{SCHEME}{interface}/adaptive-rx"


def rx_delay_us(interface: str) -> int | None:
    """Returns how long the card collects packets before it interrupts, or None if the driver does not tell."""
    words = _get(interface)
    return None if words is None else words[_RX_USECS]


def read_adaptive(path: str) -> str | None:
    """Returns "1" if the card collects packets only under load, or None if the driver does not tell."""
    words = _get(_interface_of(path))
    return None if words is None else str(int(words[_ADAPTIVE_RX] != 0))


def write_adaptive(path: str, value: str) -> None:
    """Changes whether the card adapts to the load. Raises OSError if the driver refuses."""
    interface = _interface_of(path)
    words = _call(interface, array.array("I", [_GET, *[0] * (_WORDS - 1)]))
    words[0], words[_ADAPTIVE_RX] = _SET, int(value)
    _call(interface, words)


def _interface_of(path: str) -> str:
    found = _PATH.fullmatch(path)
    if found is None:
        raise OSError(f"unknown setting {path}")
    return found.group(1)


def _get(interface: str) -> array.array[int] | None:
    try:
        return _call(interface, array.array("I", [_GET, *[0] * (_WORDS - 1)]))
    except OSError:
        return None


def _call(interface: str, words: array.array[int]) -> array.array[int]:
    """Passes a `struct ethtool_coalesce` to the kernel, which fills it in."""
    request = struct.pack("16sP16x", interface.encode(), words.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control.fileno(), _SIOCETHTOOL, request)
    return words
