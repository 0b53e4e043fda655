"""However a stream is split, the assembler finds the same frames; garbage is rejected, never an exception."""

from __future__ import annotations

import random
import struct

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.server.frames import (
    FRAME_BYTES_MIN,
    FrameAssembler,
    PlainFrameAssembler,
    PlainReceiveMemory,
    ReceiveMemory,
)

LIMIT = 300_000
SIZES = st.one_of(
    st.integers(FRAME_BYTES_MIN, 200),
    st.integers(15_000, 40_000),
    st.sampled_from([32_767, 32_768, 65_533, 131_067, 131_068, 131_069, LIMIT]),
)
PIECES = st.sampled_from([0, 1, 3, 4, 5, 1448, 4096, 20_000, 65_536, 1 << 20])


def feed(assembler: FrameAssembler, data: memoryview, piece_bytes: list[int]) -> list[memoryview]:
    """Reads of the given sizes, repeated; a buffer may take less, and some reads return nothing."""
    frames: list[memoryview] = []
    turn = 0
    while data:
        wanted = piece_bytes[turn % len(piece_bytes)]
        turn += 1
        buffer = assembler.buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(data), wanted)
        if not count:
            continue
        buffer[:count] = data[:count]
        data = data[count:]
        frames += assembler.received(count)
    return frames


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=8),
    pieces=st.lists(PIECES, min_size=1, max_size=6).filter(lambda pieces: sum(pieces) >= 1000),
    seed=st.integers(0, 1 << 32),
)
def test_any_chunking_gives_the_same_frames(sizes: list[int], pieces: list[int], seed: int) -> None:
    bodies = [random.Random(seed + index).randbytes(size) for index, size in enumerate(sizes)]
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    assembler = FrameAssembler(ReceiveMemory(), LIMIT)
    frames = feed(assembler, memoryview(stream), pieces)
    # All are compared at the end, so that a frame whose memory was reused shows here.
    assert [bytes(frame) for frame in frames] == bodies
    assert assembler.refusal is None
    assert assembler.held_bytes == 0


@given(sizes=st.lists(st.integers(FRAME_BYTES_MIN, 60), min_size=1, max_size=5))
def test_one_byte_at_a_time(sizes: list[int]) -> None:
    bodies = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    assembler = FrameAssembler(ReceiveMemory(), LIMIT)
    assert [bytes(frame) for frame in feed(assembler, memoryview(stream), [1])] == bodies


@given(
    streams=st.lists(st.lists(SIZES, min_size=1, max_size=4), min_size=2, max_size=4),
    seed=st.integers(0, 1 << 32),
)
def test_connections_that_share_memory_do_not_mix(streams: list[list[int]], seed: int) -> None:
    rng = random.Random(seed)
    memory = ReceiveMemory()
    bodies = [[rng.randbytes(size) for size in sizes] for sizes in streams]
    rests = [memoryview(b"".join(struct.pack(">i", len(b)) + b for b in each)) for each in bodies]
    assemblers = [FrameAssembler(memory, LIMIT) for _ in streams]
    frames: list[list[memoryview]] = [[] for _ in streams]
    while any(rests):
        index = rng.choice([index for index, rest in enumerate(rests) if rest])
        buffer = assemblers[index].buffer()
        assemblers[rng.randrange(len(streams))].buffer()  # an empty read in between
        buffer = assemblers[index].buffer()
        count = min(len(buffer), len(rests[index]), rng.choice([1, 100, 5000, 70_000, 1 << 20]))
        buffer[:count] = rests[index][:count]
        rests[index] = rests[index][count:]
        frames[index] += assemblers[index].received(count)
    assert [[bytes(frame) for frame in each] for each in frames] == bodies


@given(garbage=st.binary(min_size=1, max_size=2000), pieces=st.lists(st.integers(1, 500), min_size=1, max_size=5))
def test_garbage_is_refused_or_waits_for_more(garbage: bytes, pieces: list[int]) -> None:
    assembler = FrameAssembler(ReceiveMemory(), 1000)
    frames = feed(assembler, memoryview(garbage), pieces)
    at = 0
    for frame in frames:
        assert struct.unpack_from(">i", garbage, at)[0] == len(frame)
        assert bytes(frame) == garbage[at + 4 : at + 4 + len(frame)]
        at += 4 + len(frame)
    if assembler.refusal is None:
        assert assembler.held_bytes == len(garbage) - at
    else:
        assert not FRAME_BYTES_MIN <= struct.unpack_from(">i", garbage, at)[0] <= 1000


class Allocations:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size: int) -> bytearray:
        self.sizes.append(size)
        return bytearray(size)


@given(
    sizes=st.lists(st.one_of(SIZES, st.integers(-5, LIMIT + 5)), min_size=1, max_size=8),
    pieces=st.lists(PIECES, min_size=1, max_size=6).filter(lambda pieces: sum(pieces) >= 1000),
)
def test_compiled_and_plain_assemblers_agree(sizes: list[int], pieces: list[int]) -> None:
    """At each step they offer, find, hold, reject and allocate the same."""
    stream = b"".join(struct.pack(">i", size) + random.Random(size).randbytes(max(size, 0)) for size in sizes)
    seen: list[list[object]] = []
    for memory_type, assembler_type in ((ReceiveMemory, FrameAssembler), (PlainReceiveMemory, PlainFrameAssembler)):
        allocations = Allocations()
        assembler = assembler_type(memory_type(allocations), LIMIT)
        steps: list[object] = []
        rest, turn = memoryview(stream), 0
        while rest:
            buffer = assembler.buffer()
            count = min(len(buffer), len(rest), pieces[turn % len(pieces)])
            turn += 1
            if count:
                buffer[:count] = rest[:count]
                rest = rest[count:]
                found = [bytes(frame) for frame in assembler.received(count)]
                steps.append((len(buffer), found, assembler.held_bytes, assembler.refusal, len(allocations.sizes)))
        seen.append([*steps, *allocations.sizes])
    assert seen[0] == seen[1]
