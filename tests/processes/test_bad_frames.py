"""Oversized, truncated and garbage frames get an error or a disconnection; other clients are unaffected."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import psutil
import pytest

from ottla.broker.api.registry import HANDLERS
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.produce import encode_produce_request
from ottla.testing.broker_process import BrokerProcess
from tests.processes.conftest import StartBroker
from tests.processes.neighbour import Neighbour
from tests.processes.stranger import API_VERSIONS, METADATA, Stranger, framed, request

STALL_MS = 500
FRAME_BYTES_MAX = 5_000_000
GARBAGE_FRAMES = 400


@pytest.fixture
def broker(start_broker: StartBroker) -> Iterator[BrokerProcess]:
    """Another client writes and reads during the test; at the end the broker still serves new clients."""
    broker = start_broker(
        config={"ottla.frame.stall.ms": str(STALL_MS), "socket.request.max.bytes": str(FRAME_BYTES_MAX)}
    )
    with Neighbour(broker.bootstrap) as neighbour:
        yield broker
        neighbour.lives_on()
    with Stranger(broker) as stranger:
        assert stranger.is_served()
    assert broker.stop() == 0


@pytest.mark.parametrize("first", [FRAME_BYTES_MAX + 1, -1])
def test_a_size_that_no_request_has(broker: BrokerProcess, first: int) -> None:
    """The first is logged; the unit tests check the others, since the log suppresses repetitions."""
    for size in (first, 2**31 - 1, -(2**31), 0, 7):
        with Stranger(broker) as stranger:
            stranger.send(struct.pack(">i", size))
            assert stranger.is_turned_away(), f"a size of {size}"
    assert f" {first} " in broker.log()


@pytest.mark.parametrize(
    ("greeting", "protocol"),
    [(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"), (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS")],
)
def test_another_protocol(broker: BrokerProcess, greeting: bytes, protocol: str) -> None:
    with Stranger(broker) as stranger:
        stranger.send(greeting)
        assert stranger.is_turned_away()
    assert f"is it speaking {protocol}?" in broker.log()


def test_a_request_that_is_cut_off(broker: BrokerProcess) -> None:
    whole = framed(bytes(2_000_000))
    for byte_count in (1, 3, 4, 11, 40_000, 1_000_000):
        with Stranger(broker) as ended, Stranger(broker) as stalled:
            ended.send(whole[:byte_count])
            ended.half_close()
            assert ended.is_turned_away(), f"after {byte_count} bytes"
            stalled.send(whole[:byte_count])
            assert stalled.is_turned_away(), f"after {byte_count} bytes"
    assert f"sent a part of a request and then nothing for {STALL_MS} ms" in broker.log()


def test_requests_before_a_bad_one_are_answered(broker: BrokerProcess) -> None:
    with Stranger(broker) as stranger:
        stranger.send(request(METADATA, 1, struct.pack(">i", 0)) + struct.pack(">i", -5))
        assert stranger.reply() is not None
        assert stranger.is_turned_away()


def test_an_array_that_claims_more_than_there_is(broker: BrokerProcess) -> None:
    process = psutil.Process(broker.pid)
    before = process.memory_info().rss
    for length in (2**31 - 1, 1000, -2):
        with Stranger(broker) as stranger:
            stranger.send(request(METADATA, 1, struct.pack(">i", length)))
            assert stranger.is_turned_away(), f"an array of {length}"
    assert "sent a malformed request" in broker.log()
    assert process.memory_info().rss - before < 100_000_000


def test_produce_requests_that_are_cut_inside(broker: BrokerProcess) -> None:
    version = 9
    parts = encode_produce_request(version, None, 1, 1000, [("some-topic", [(0, bytes(61))])])
    body = b"".join(bytes(part) for part in parts)
    for length in range(0, len(body), 3):
        with Stranger(broker) as stranger:
            stranger.send(request(0, version, body[:length]))
            assert stranger.is_turned_away(), f"a body cut to {length} of {len(body)} bytes was answered"


def test_garbage_of_a_possible_size(broker: BrokerProcess, seed: int) -> None:
    """The reply is arbitrary, but the broker must reply or close soon."""
    rng = random.Random(seed)
    for _ in range(GARBAGE_FRAMES):
        with Stranger(broker) as stranger:
            stranger.send(framed(rng.randbytes(rng.choice([8, 20, 100, 5000]))))
            stranger.half_close()
            while stranger.reply() is not None:
                pass


def test_garbage_behind_a_proper_header(broker: BrokerProcess, seed: int) -> None:
    """Each API of the broker in each of its versions. Zeroes are the more dangerous garbage: they parse."""
    rng = random.Random(seed)
    for handler in HANDLERS.values():
        first, last = handler.api.versions
        for version in range(first, last + 1):
            for body in (b"", rng.randbytes(30), bytes(200), b"\xff" * 50):
                with Stranger(broker) as stranger:
                    stranger.send(framed(request_header(handler.api.key, version, 1, None) + body))
                    stranger.half_close()
                    while stranger.reply() is not None:
                        pass


def test_a_large_request_of_garbage(broker: BrokerProcess) -> None:
    for _ in range(5):
        with Stranger(broker) as stranger:
            stranger.send(framed(b"\xff" * FRAME_BYTES_MAX))
            assert stranger.is_turned_away()


def test_an_api_or_version_that_is_unknown(broker: BrokerProcess) -> None:
    for api_key, version in ((9999, 0), (-1, 3), (METADATA, 999), (0, 0), (API_VERSIONS, 200)):
        with Stranger(broker) as stranger:
            stranger.send(framed(struct.pack(">hhih", api_key, version, 5, -1) + bytes(50)))
            reply = stranger.reply()
        assert reply is None or reply[:4] == struct.pack(">i", 5)
        if api_key == API_VERSIONS:
            assert reply is not None
            assert struct.unpack_from(">h", reply, 4)[0] == ErrorCode.unsupported_version
