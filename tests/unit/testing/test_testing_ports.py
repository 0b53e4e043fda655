"""Ports stay free for the process that reserved them."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from ottla.testing import ports
from ottla.testing.ports import reserve_ports


def test_nobody_else_gets_a_reserved_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that can choose between two ports gets the other one."""
    (first,) = reserve_ports(1)
    monkeypatch.setattr(ports, "FIRST", first)
    monkeypatch.setattr(ports, "LAST", first + 50)
    assert first not in reserve_ports(10)
    program = f"""
from ottla.testing import ports
ports.FIRST, ports.LAST = {first}, {first + 50}
print(*ports.reserve_ports(10))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert len(found) == 10
    assert str(first) not in found


def test_ports_in_a_row_can_all_be_bound() -> None:
    first, *others = reserve_ports(4, in_a_row=True)
    assert others == [first + 1, first + 2, first + 3]
    servers = [socket.create_server(("127.0.0.1", port)) for port in (first, *others)]
    for server in servers:
        server.close()


def test_a_port_in_use_is_not_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = reserve_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not ports._reserve(port)
    assert first != port
