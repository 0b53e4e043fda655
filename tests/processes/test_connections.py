"""Many connections, and bad ones: the broker bounds their cost and serves its other clients."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from ottla.testing.broker_process import BrokerProcess
from tests.processes.conftest import StartBroker
from tests.processes.neighbour import Neighbour
from tests.processes.stranger import Stranger, framed

HALF_OPEN = 3000
TIMEOUT_S = 60.0


@contextlib.contextmanager
def half_open(broker: BrokerProcess, count: int) -> Iterator[list[socket.socket]]:
    """Opens connections: a third sends nothing, a third part of a size, a third part of a request."""
    beginnings = (b"", b"\0\0\0", framed(bytes(5000))[:2000])
    strangers: list[socket.socket] = []
    try:
        for number in range(count):
            stranger = socket.create_connection((broker.host, broker.port), TIMEOUT_S)
            strangers.append(stranger)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(beginnings[number % 3])
        yield strangers
    finally:
        for stranger in strangers:
            stranger.close()


def wait_for_closing(strangers: list[socket.socket]) -> None:
    """Waits until the broker has closed all of them."""
    deadline = time.monotonic() + TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        for stranger in strangers:
            selector.register(stranger, selectors.EVENT_READ)
        while selector.get_map():
            assert time.monotonic() < deadline, f"{len(selector.get_map())} connections are still open"
            for key, _ in selector.select(1.0):
                with contextlib.suppress(ConnectionError):
                    assert key.fileobj.recv(1) == b""  # type: ignore[union-attr] # only sockets are registered
                selector.unregister(key.fileobj)


def open_connections(broker: BrokerProcess) -> int:
    return len(psutil.Process(broker.pid).net_connections("tcp"))


def wait_until_connections(broker: BrokerProcess, at_most: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while open_connections(broker) > at_most:
        assert time.monotonic() < deadline, f"{open_connections(broker)} connections are open, {at_most} were due"
        time.sleep(0.05)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raises the limit of open files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < HALF_OPEN + 500:
        if hard != resource.RLIM_INFINITY and hard < HALF_OPEN + 500:
            pytest.skip(f"this user may open {hard} files only (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (HALF_OPEN + 500, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_thousands_of_half_open_connections(start_broker: StartBroker) -> None:
    broker = start_broker(config={"ottla.frame.stall.ms": "3000", "connections.max.idle.ms": "6000"})
    with Neighbour(broker.bootstrap) as neighbour:
        process = psutil.Process(broker.pid)
        connections, memory = open_connections(broker), process.memory_info().rss
        with half_open(broker, HALF_OPEN) as strangers:
            neighbour.lives_on()
            with Stranger(broker) as stranger:
                assert stranger.is_served()
            grown = process.memory_info().rss - memory
            assert grown < HALF_OPEN * 50_000, f"{grown / HALF_OPEN:.0f} bytes a connection"
            wait_for_closing(strangers)
            neighbour.lives_on()
        wait_until_connections(broker, connections)
    assert "sent a part of a request and then nothing for 3000 ms" in broker.log()


def test_more_connections_than_allowed(start_broker: StartBroker) -> None:
    broker = start_broker(config={"max.connections": "50"})
    with Neighbour(broker.bootstrap) as neighbour:
        with half_open(broker, 40) as strangers:
            turned_away = 0
            for _ in range(100):
                with Stranger(broker) as stranger:
                    turned_away += not stranger.is_served()
                    if turned_away:
                        assert stranger.is_turned_away()
                        break
                    strangers.append(socket.create_connection((broker.host, broker.port), TIMEOUT_S))
            assert turned_away
            neighbour.lives_on()
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            with Stranger(broker) as stranger:
                if stranger.is_served():
                    break
            assert time.monotonic() < deadline, "no room was made for new connections"
            time.sleep(0.02)
    assert "50 connections are open (max.connections)" in broker.log()


def test_connections_that_come_and_go(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Neighbour(broker.bootstrap) as neighbour:
        connections = open_connections(broker)
        for number in range(1500):
            stranger = Stranger(broker)
            if number % 3 == 0:
                stranger.send(framed(bytes(5000))[: number % 4000])
            elif number % 50 == 0:
                assert stranger.is_served()
            (stranger.reset if number % 2 else stranger.close)()
        neighbour.lives_on()
        wait_until_connections(broker, connections)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of another process can be set on Linux only")
def test_connections_leave_descriptors_to_the_log(start_broker: StartBroker) -> None:
    """The well-behaved client's segments are short, so its log opens new files all the time."""
    broker = start_broker()
    with Neighbour(broker.bootstrap, segment_bytes="20000", retention_bytes="60000") as neighbour:
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (160, hard))
        with half_open(broker, 200):
            with Stranger(broker) as stranger:
                assert stranger.is_turned_away()
            neighbour.lives_on(turns=50)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
        with Stranger(broker) as stranger:
            assert stranger.is_served()
    assert "file descriptors, the last 20 are not for connections" in broker.log()


def test_a_stop_among_half_open_connections(start_broker: StartBroker) -> None:
    broker = start_broker()
    with half_open(broker, 300) as strangers:
        assert broker.stop() == 0
        wait_for_closing(strangers)
