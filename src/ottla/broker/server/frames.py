"""Assembles frames from reads: a request is a four-byte size followed by that many bytes.

Small frames are read into one buffer that all connections share, many with one read, and each is copied out: a log may
keep a frame for long and must not keep its neighbours in memory with it. Large frames are read into a buffer of their
own. That buffer grows as data actually arrives, so the size field of an untrusted peer allocates nothing. A connection
that has just sent a large frame reads the next one without a copy, into a spare buffer of the expected size.

The compiled version (`_frames.pyx`) is used where it is built. The plain Python version here is the fallback, and the
oracle for tests of the compiled one.

Call `buffer`, read into it, then call `received` with the number of bytes read.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import TYPE_CHECKING

from ottla.ports import Allocate

SIZE_BYTES = 4
FRAME_BYTES_MIN = 8
"""API key, API version and correlation id: no request is shorter."""
SHARED_BYTES = 128 * 1024
"""Measured with 64 frames of 10 KB in flight, in CPU seconds per GB: 0.50 with 64 KiB, 0.42 with 128, 0.41 with 256."""
OWN_BYTES_MIN = 64 * 1024
"""The first buffer of an incomplete large frame."""
LARGE_FRAME_BYTES = 32 * 1024
"""Size from which a frame gets a buffer of its own. Below, copying is cheaper than another read."""
CARRY_BYTES_MAX = 16 * 1024
"""A partial frame up to this size is kept as plain bytes and put in front of the next read."""
GROWTH = 4
SIZE_SLACK = 16
"""The buffer for the next large frame is one sixteenth larger than the last frame: sizes vary, and a read that does not
fill its buffer needs no second read to find that nothing is left."""

_SIZE = Struct(">i")
_BEGINNING = Struct(">ih")
_HTTP_STARTS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"HTTP", b"PRI ")


class PlainReceiveMemory:
    """The buffers that the connections of one server read into, one after another: a read never outlives its iteration
    of the event loop."""

    __slots__ = ("_allocate", "shared", "spare")

    def __init__(self, allocate: Allocate = bytearray, shared_bytes: int = SHARED_BYTES) -> None:
        self._allocate = allocate
        self.shared = memoryview(bytearray(shared_bytes))
        self.spare = memoryview(b"")
        """A buffer for the next large frame. It stays here until a frame takes it, so a read that finds nothing leaks
        nothing."""

    def new(self, size: int) -> memoryview:
        """Allocates a buffer."""
        return memoryview(self._allocate(size))[:size]

    def offer_spare(self, size: int) -> memoryview:
        """Returns the spare buffer, replacing it if its size does not fit."""
        if not size <= len(self.spare) <= size + size // SIZE_SLACK:
            self.spare = self.new(size)
        return self.spare

    def take_spare(self) -> memoryview:
        """Takes the spare buffer for a frame."""
        spare = self.spare
        self.spare = memoryview(b"")
        return spare


class PlainFrameAssembler:
    """Assembles the frames of one connection."""

    __slots__ = (
        "_carry",
        "_expected_bytes",
        "_filled",
        "_frame_bytes_max",
        "_frame_bytes_min",
        "_in_spare",
        "_memory",
        "_own",
        "refusal",
    )

    def __init__(self, memory: PlainReceiveMemory, frame_bytes_max: int) -> None:
        self._memory = memory
        self._frame_bytes_min = FRAME_BYTES_MIN
        self._frame_bytes_max = frame_bytes_max
        self._carry = b""
        """The beginning of a frame, while it is short."""
        self._own: memoryview | None = None
        """The buffer of an incomplete large frame, including its size field."""
        self._in_spare = False
        """If there is no own buffer, whether the read went to the spare one instead of the shared one."""
        self._filled = 0
        """Bytes in the buffer before the read."""
        self._expected_bytes = 0
        """The buffer size that the next frame will need, if the last one was large; else 0."""
        self.refusal: str | None = None
        """Why the stream cannot continue: a sentence about what the peer sent."""

    def set_limits(self, frame_bytes_min: int, frame_bytes_max: int) -> None:
        """Changes the sizes that frames may have from the next read on."""
        self._frame_bytes_min = frame_bytes_min
        self._frame_bytes_max = frame_bytes_max

    @property
    def held_bytes(self) -> int:
        """Memory that an incomplete frame occupies now."""
        return len(self._carry) if self._own is None else len(self._own)

    @property
    def begun(self) -> tuple[int, int] | None:
        """Size and API key of the incomplete frame; None if there is none, or too little of it to tell."""
        start = self._carry if self._own is None else self._own[: self._filled]
        return _BEGINNING.unpack_from(start) if len(start) >= _BEGINNING.size else None

    def buffer(self) -> memoryview:
        """Returns the target of the next read; never empty."""
        if self._own is not None:
            return self._own[self._filled :]
        if self._expected_bytes:
            self._in_spare = True
            target = self._memory.offer_spare(self._expected_bytes)
        else:
            self._in_spare = False
            target = self._memory.shared
        carry = self._carry
        if not carry:
            self._filled = 0
            return target
        self._filled = at = len(carry)
        target[:at] = carry
        return target[at:]

    def received(self, byte_count: int) -> list[memoryview]:
        """Returns the frames that are complete now, without their sizes. Nothing else writes to their memory."""
        frames: list[memoryview] = []
        if self.refusal is not None:
            return frames
        target = self._own
        if target is None:
            target = self._memory.spare if self._in_spare else self._memory.shared
        end = self._filled + byte_count
        at = size = 0
        unpack = _SIZE.unpack_from
        frame_bytes_min, frame_bytes_max = self._frame_bytes_min, self._frame_bytes_max
        while end - at >= SIZE_BYTES:
            (size,) = unpack(target, at)
            if not frame_bytes_min <= size <= frame_bytes_max:
                self._refuse(size, bytes(target[at : at + SIZE_BYTES]))
                return frames
            start = at + SIZE_BYTES
            if start + size > end:
                break
            if size < LARGE_FRAME_BYTES:
                frames.append(memoryview(bytearray(target[start : start + size])))
            else:
                frames.append(self._large_frame(target, start, size))
            at = start + size
        if frames:
            self._expect(len(frames[-1]))
        if at == end:
            self._own = None
            self._carry = b""
        else:
            self._keep_partial(target, at, end, size)
        return frames

    def read_on(self, descriptor: int, bytes_max: int) -> list[memoryview]:
        """Returns the frames of further reads, directly from a non-blocking socket, until it is empty or `bytes_max`
        bytes were read. The next reader finds an end or an error of the socket."""
        frames: list[memoryview] = []
        while bytes_max > 0 and self.refusal is None:
            buffer = self.buffer()
            try:
                byte_count = os.readv(descriptor, [buffer])
            except OSError:
                break
            bytes_max -= byte_count
            frames += self.received(byte_count)
            if byte_count < len(buffer):
                break
        return frames

    def _large_frame(self, target: memoryview, start: int, size: int) -> memoryview:
        """Returns a large frame. If it fills its buffer it keeps it; if it would waste more than a quarter, it is
        copied."""
        mine = self._own is not None or self._in_spare
        if not mine or start != SIZE_BYTES or size < len(target) - len(target) // 4:
            frame = self._memory.new(size)
            frame[:] = target[start : start + size]
            return frame
        self._give_away()
        return target[start : start + size]

    def _give_away(self) -> None:
        """Hands the buffer that was read into over to a frame."""
        if self._own is None:
            self._memory.take_spare()

    def _expect(self, last_frame_bytes: int) -> None:
        if last_frame_bytes < LARGE_FRAME_BYTES:
            self._expected_bytes = 0
        else:
            self._expected_bytes = SIZE_BYTES + last_frame_bytes + last_frame_bytes // SIZE_SLACK

    def _keep_partial(self, target: memoryview, at: int, end: int, size: int) -> None:
        """Keeps the bytes from `at` to `end`, the beginning of a frame of `size` (unknown if they are fewer than
        four)."""
        arrived = end - at
        if arrived < CARRY_BYTES_MAX:
            self._carry = bytes(target[at:end])
            self._own = None
            return
        self._carry = b""
        needed = SIZE_BYTES + size
        mine = self._own is not None or self._in_spare
        if at == 0 and mine and (needed <= len(target) or arrived < len(target)):
            self._give_away()
            self._own = target
        else:
            self._own = self._memory.new(self._next_size(arrived, needed))
            self._own[:arrived] = target[at:end]
        self._filled = arrived

    def _next_size(self, arrived: int, needed: int) -> int:
        """Returns at most four times what has arrived, or what the connection's last frame needed: never what the size
        field claims."""
        return min(needed, max(OWN_BYTES_MIN, GROWTH * arrived, self._expected_bytes))

    def _refuse(self, size: int, head: bytes) -> None:
        self.refusal = describe_refusal(size, head, self._frame_bytes_max)
        self._own = None
        self._carry = b""
        self._expected_bytes = 0


def describe_refusal(size: int, head: bytes, frame_bytes_max: int) -> str:
    """Returns a sentence for the log about an invalid request size."""
    if head in _HTTP_STARTS:
        return f"sent {head!r}; is it speaking HTTP? This port speaks the Kafka protocol"
    if head[:2] == b"\x16\x03":
        return "sent a TLS handshake; is it speaking TLS? This port speaks the Kafka protocol in plain text"
    if head == b"SSH-":
        return "sent an SSH greeting; is it speaking SSH? This port speaks the Kafka protocol"
    if size > frame_bytes_max:
        return (
            f"sent a request of {size} bytes ({head!r}), more than socket.request.max.bytes ({frame_bytes_max}); "
            "is it speaking another protocol, or is the limit too low?"
        )
    return f"sent a request size of {size} ({head!r}), which no request has; is it speaking another protocol?"


if TYPE_CHECKING:
    FrameAssembler = PlainFrameAssembler
    ReceiveMemory = PlainReceiveMemory
else:
    try:
        from ottla.broker.server._frames import FrameAssembler, ReceiveMemory
    except ImportError:
        FrameAssembler, ReceiveMemory = PlainFrameAssembler, PlainReceiveMemory
