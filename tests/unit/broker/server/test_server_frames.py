"""The frame assembler: what it allocates, keeps and rejects. tests/fuzz shows that it finds the frames."""

from __future__ import annotations

import struct

import pytest

from ottla.broker.server.frames import CARRY_BYTES_MAX, LARGE_FRAME_BYTES, OWN_BYTES_MIN, FrameAssembler, ReceiveMemory

LIMIT = 100 * 1024 * 1024


class Allocations:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size: int) -> bytearray:
        self.sizes.append(size)
        return bytearray(size)


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def feed(assembler: FrameAssembler, data: bytes) -> list[memoryview]:
    """Feeds data as a socket would: as much as the offered buffer takes at a time."""
    frames: list[memoryview] = []
    rest = memoryview(data)
    while rest:
        buffer = assembler.buffer()
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        rest = rest[count:]
        frames += assembler.received(count)
    return frames


def memory_bytes(frame: memoryview) -> int:
    """The size of the memory that the frame keeps alive."""
    assert isinstance(frame.obj, bytearray)
    return len(frame.obj)


def test_many_small_frames_of_one_read_are_exact_copies() -> None:
    assembler = FrameAssembler(ReceiveMemory(), LIMIT)
    bodies = [bytes([number]) * (8 + number) for number in range(100)]
    frames = feed(assembler, framed(*bodies))
    assert [bytes(frame) for frame in frames] == bodies
    assert all(memory_bytes(frame) == len(frame) and not frame.readonly for frame in frames)
    assert assembler.held_bytes == 0


def test_a_size_field_alone_allocates_nothing() -> None:
    allocations = Allocations()
    assembler = FrameAssembler(ReceiveMemory(allocations), LIMIT)
    feed(assembler, struct.pack(">i", LIMIT) + bytes(CARRY_BYTES_MAX // 2))
    assert allocations.sizes == []
    assert assembler.held_bytes <= CARRY_BYTES_MAX


def test_a_buffer_grows_with_what_has_arrived() -> None:
    allocations = Allocations()
    assembler = FrameAssembler(ReceiveMemory(allocations), LIMIT)
    arrived = 0
    claimed = 50 * 1024 * 1024
    for piece in framed(bytes(claimed))[: 4 << 20], b"":
        for start in range(0, len(piece), 10_000):
            feed(assembler, piece[start : start + 10_000])
            arrived += len(piece[start : start + 10_000])
            assert assembler.held_bytes <= max(OWN_BYTES_MIN, 4 * arrived)
    assert len(allocations.sizes) <= 5
    assert allocations.sizes == sorted(allocations.sizes)


def test_the_next_large_frame_is_read_into_its_own_buffer_without_growing() -> None:
    allocations = Allocations()
    memory = ReceiveMemory(allocations)
    assembler = FrameAssembler(memory, LIMIT)
    body = bytes(range(256)) * 4096
    feed(assembler, framed(body))
    allocations.sizes.clear()
    (frame,) = feed(assembler, framed(body))
    assert bytes(frame) == body
    assert len(allocations.sizes) == 1
    assert memory_bytes(frame) < len(body) * 1.1


def test_idle_connections_share_one_spare_buffer() -> None:
    allocations = Allocations()
    memory = ReceiveMemory(allocations)
    assemblers = [FrameAssembler(memory, LIMIT) for _ in range(10)]
    for assembler in assemblers:
        feed(assembler, framed(bytes(200_000)))
    allocations.sizes.clear()
    for assembler in assemblers:
        assembler.buffer()
    assert len(allocations.sizes) <= 1


def test_a_frame_much_smaller_than_its_buffer_does_not_keep_it() -> None:
    assembler = FrameAssembler(ReceiveMemory(), LIMIT)
    feed(assembler, framed(bytes(1_000_000)))
    (frame,) = feed(assembler, framed(bytes(LARGE_FRAME_BYTES)))
    assert memory_bytes(frame) == LARGE_FRAME_BYTES


@pytest.mark.parametrize("size", [0, 7, -1, -(2**31), LIMIT + 1, 2**31 - 1])
def test_an_impossible_size_is_refused_before_anything_is_allocated(size: int) -> None:
    allocations = Allocations()
    assembler = FrameAssembler(ReceiveMemory(allocations), LIMIT)
    assert feed(assembler, struct.pack(">i", size) + bytes(100)) == []
    assert assembler.refusal is not None
    assert str(size) in assembler.refusal
    assert allocations.sizes == []
    assert feed(assembler, framed(bytes(8))) == []


def test_frames_before_a_bad_one_are_given_out() -> None:
    assembler = FrameAssembler(ReceiveMemory(), LIMIT)
    frames = feed(assembler, framed(b"12345678", b"abcdefgh") + struct.pack(">i", -1))
    assert [bytes(frame) for frame in frames] == [b"12345678", b"abcdefgh"]
    assert assembler.refusal is not None


@pytest.mark.parametrize(
    ("greeting", "protocol"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST /topics HTTP/1.1\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
    ],
)
def test_a_stranger_is_recognised(greeting: bytes, protocol: str) -> None:
    assembler = FrameAssembler(ReceiveMemory(), LIMIT)
    feed(assembler, greeting)
    assert f"is it speaking {protocol}?" in (assembler.refusal or "")
