"""The compiled and the plain version of a follower's fast path accept the same frames, however damaged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.broker.api.api import ConnectionState
from ottla.broker.api.replica_fetch_fast_path import FETCH_KEY, PlainReplicaLink, ReplicaLink
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.replica_fetch import REQUEST_BYTES, VERSION, pack_request

TOPIC = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
SESSION_ID, EPOCH = 7, 3
PREFIX = request_header(FETCH_KEY, VERSION, 0, "ottla-replica-2")
BODY = pack_request((500, 1, 1 << 20, 0, SESSION_ID, EPOCH), TOPIC, (4, 1, 100, 1, 0, 1 << 20, 90, 95), (2, 11))
FRAME = request_header(FETCH_KEY, VERSION, 42, "ottla-replica-2") + BODY

CONNECTION = ConnectionState("test")
ReplicaLinkType = type[PlainReplicaLink]


def never_called(*_: object) -> Any:
    raise AssertionError("nothing was parked")


class KnownPartitions:
    """Records which partition a link looks up. It has none, so the link stops before it has any effect."""

    def __init__(self) -> None:
        self.looked_up: list[tuple[UUID, int]] = []

    def get(self, key: tuple[UUID, int]) -> None:
        self.looked_up.append(key)


def looked_up(link_type: ReplicaLinkType, frame: bytes) -> list[tuple[UUID, int]]:
    """Returns the partition that a link would serve for this frame."""
    known = KnownPartitions()
    clock = SimpleNamespace(monotonic_ms=lambda: 0.0, seconds=lambda: 0.0)
    broker: Any = SimpleNamespace(clock=clock, metadata=None, throttles=None)
    session: Any = SimpleNamespace(session_id=SESSION_ID, next_epoch=EPOCH, followed=known, turn=None)
    watching: Any = SimpleNamespace(watched=lambda _: None)
    link = session.turn = link_type(broker, CONNECTION, PREFIX, session, watching, never_called)
    assert link.take(memoryview(bytearray(frame))) is None
    return known.looked_up


@pytest.mark.parametrize("link_type", [ReplicaLink, PlainReplicaLink])
def test_a_plain_request_is_accepted(link_type: ReplicaLinkType) -> None:
    assert len(BODY) == REQUEST_BYTES
    assert looked_up(link_type, FRAME) == [(TOPIC, 4)]


@st.composite
def damaged_frames(draw: st.DrawFn) -> bytes:
    frame = bytearray(FRAME)
    for _ in range(draw(st.integers(0, 3))):
        frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    end = draw(st.sampled_from([len(frame)] * 4 + [0, 3, 8, 11, len(frame) - 1]))
    return bytes(frame[:end]) + draw(st.sampled_from([b""] * 6 + [b"\0", bytes(112)]))


@given(damaged_frames())
@example(b"")
@example(FRAME[:4])
@example(FRAME + FRAME)
def test_both_accept_the_same_frames(frame: bytes) -> None:
    assert looked_up(ReplicaLink, frame) == looked_up(PlainReplicaLink, frame)


@given(st.binary(max_size=300))
def test_random_bytes_are_for_the_general_path(frame: bytes) -> None:
    assert looked_up(ReplicaLink, frame) == looked_up(PlainReplicaLink, frame) == []


def test_the_session_of_another_link_is_left_alone() -> None:
    for link_type in (ReplicaLink, PlainReplicaLink):
        known = KnownPartitions()
        clock = SimpleNamespace(monotonic_ms=lambda: 0.0, seconds=lambda: 0.0)
        broker: Any = SimpleNamespace(clock=clock, metadata=None, throttles=None)
        session: Any = SimpleNamespace(session_id=SESSION_ID, next_epoch=EPOCH, followed=known, turn=None)
        watching: Any = SimpleNamespace()
        link = link_type(broker, CONNECTION, PREFIX, session, watching, never_called)
        assert link.take(memoryview(bytearray(FRAME))) is None
        assert known.looked_up == []
