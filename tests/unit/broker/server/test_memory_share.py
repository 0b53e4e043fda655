"""One connection's share of the request memory: what it takes, and when it reads although the memory is full."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from ottla.broker.server.frames import FrameAssembler, ReceiveMemory
from ottla.broker.server.limits import Limits, RequestMemory
from ottla.broker.server.memory_share import (
    CONTROL_FRAME_BYTES_MAX,
    PRODUCE_KEY,
    READ_BYTES_WHEN_FULL,
    RESERVED_BYTES_MAX,
    SMALL_FRAME_BYTES_MAX,
    MemoryShare,
)
from tests.support.server_client import Stub, StubConnection, config_of

LIMIT_BYTES = 1_000_000
FETCH_KEY = 1


class Bench:
    def __init__(self) -> None:
        limits = Limits.of(config_of(queued_max_request_bytes=LIMIT_BYTES))
        self.memory = RequestMemory(limits, self._call_soon)
        self.assembler = FrameAssembler(ReceiveMemory(), limits.frame_bytes_max)
        self.handler = StubConnection(Stub())
        self.share = MemoryShare(self.memory, self.assembler, self.handler)

    def _call_soon(self, call: Callable[[], None]) -> None:
        call()

    def begin(self, size: int, api_key: int) -> None:
        """A frame of which only the beginning has arrived."""
        beginning = struct.pack(">ih", size, api_key)
        self.assembler.buffer()[: len(beginning)] = beginning
        assert self.assembler.received(len(beginning)) == []


def test_what_is_taken_is_given_back() -> None:
    bench = Bench()
    bench.share.count(500)
    assert bench.share.hold(300)
    assert bench.memory.used_bytes == 800
    bench.share.count(-200)
    assert bench.share.hold(100)
    assert bench.memory.used_bytes == 400
    bench.share.release()
    assert (bench.memory.used_bytes, bench.share.held_bytes) == (0, 0)
    bench.share.release()
    assert bench.memory.used_bytes == 0


def test_only_a_large_frame_that_grows_is_refused() -> None:
    bench = Bench()
    assert bench.share.hold(SMALL_FRAME_BYTES_MAX + 2)
    bench.memory.take(1 << 40)
    assert bench.memory.is_exhausted
    assert bench.share.hold(SMALL_FRAME_BYTES_MAX + 1)
    assert not bench.share.hold(SMALL_FRAME_BYTES_MAX + 2)
    assert bench.share.hold(0)
    assert bench.share.hold(SMALL_FRAME_BYTES_MAX)


@pytest.mark.parametrize(
    ("size", "api_key", "may_read"),
    [
        (SMALL_FRAME_BYTES_MAX, PRODUCE_KEY, True),
        (SMALL_FRAME_BYTES_MAX + 1, PRODUCE_KEY, False),
        (CONTROL_FRAME_BYTES_MAX, FETCH_KEY, True),
        (CONTROL_FRAME_BYTES_MAX + 1, FETCH_KEY, False),
    ],
)
def test_the_next_frame_decides_whether_it_is_read(size: int, api_key: int, may_read: bool) -> None:
    bench = Bench()
    bench.begin(size, api_key)
    assert bench.share.may_read_on() is may_read
    bench.handler.is_of_broker = True
    assert bench.share.may_read_on()


def test_a_connection_that_holds_much_is_not_read() -> None:
    bench = Bench()
    assert bench.share.may_read_on()
    bench.share.count(SMALL_FRAME_BYTES_MAX + 1)
    assert not bench.share.may_read_on()
    assert bench.share.hold(SMALL_FRAME_BYTES_MAX + 1)
    assert bench.share.may_read_on(), "a large frame that has begun is read to its end"


def test_a_size_alone_reserves_little() -> None:
    bench = Bench()
    assert bench.share.wanted_bytes == READ_BYTES_WHEN_FULL
    bench.begin(50_000, PRODUCE_KEY)
    assert bench.share.wanted_bytes == 50_000
    other = Bench()
    other.begin(RESERVED_BYTES_MAX * 10, PRODUCE_KEY)
    assert other.share.wanted_bytes == RESERVED_BYTES_MAX
