"""Network addresses as people type them: `host:port`, `[::1]:9092`. Pure."""

from __future__ import annotations

import ipaddress
import re

PORT_MAX = 65535
_HOST = re.compile(r"[A-Za-z0-9_.-]+")


def split_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Splits `host:port`. Without a default the port is mandatory. The message of the ValueError says what is wrong."""
    host, port = _host_and_port(text)
    if not is_host(host):
        raise ValueError(f'"{text}" is not host:port, for example 127.0.0.1:9092 or [::1]:9092')
    if port is None:
        if default_port is None:
            raise ValueError(f'"{text}" has no port; write host:port')
        return host, default_port
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise ValueError(f'"{text}" is not host:port; a port is a number from 1 to {PORT_MAX}')
    return host, int(port)


def is_host(text: str) -> bool:
    """Reports whether the text is a host name, an IPv4 address, or an IPv6 address without brackets."""
    return _is_ipv6(text) if ":" in text else _HOST.fullmatch(text) is not None


def _host_and_port(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host or rest[:1] not in ("", ":"):
            return "", None
        return host, rest[1:] if rest else None
    if _is_ipv6(text):
        return text, None
    host, separator, port = text.rpartition(":")
    return (host, port) if separator else (text, None)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
