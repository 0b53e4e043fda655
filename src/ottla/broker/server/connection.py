"""One client connection: reads frames and sends replies in the order of the requests.

The handler answers a frame in one of five ways: at once (buffers), later (a future: the connection continues with its
next frame), later with the next frame waiting (a coroutine), not at all (None), or "not now" (the broker's backlog: the
frame is submitted again when the backlog has drained). The first stage of a handler runs before the next frame is
looked at, without an await in between (safety: produce-order).

Back-pressure stops single connections, never all of them: a connection waits for its own replies, for a slow reader,
for the backlog if it produces, or for memory if it begins a large request.

Replies that are ready are sent with one transport call per iteration of the event loop. Writes to a client that is gone
never raise in the code that completes a future: inside a follower's acknowledgement that would end the replication.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from struct import Struct
from typing import Any, cast

from ottla.broker.partition.backlog import Backlog
from ottla.broker.server.frames import CARRY_BYTES_MAX, LARGE_FRAME_BYTES, FrameAssembler
from ottla.broker.server.limits import WRITE_HIGH_WATER_BYTES
from ottla.broker.server.plain_sockets import plain_descriptor_of
from ottla.broker.server.server_context import Buffers, Later, Outcome, ServerContext
from ottla.protocol.wire.primitives import MalformedRequest

log = logging.getLogger("ottla.server")

JOINED_BYTES_MAX = 8 * 1024
"""Replies up to this total size are joined, because one buffer is cheaper to send than many. Larger ones never are."""
READ_BYTES_WHEN_FULL = 4 * 1024
"""Bytes that a connection reads at once while the request memory is full: enough to see what is coming."""
READ_ON_BYTES_WHEN_FULL = 60 * 1024
"""The same for a connection that is in the middle of a large frame, which it may read to its end."""
SMALL_FRAME_BYTES_MAX = CARRY_BYTES_MAX
"""Frames up to this size are read even while the request memory is full: heartbeats, fetches, metadata."""
CONTROL_FRAME_BYTES_MAX = 1024 * 1024
"""The same for frames without records, such as a fetch that names thousands of partitions."""
RESERVED_BYTES_MAX = 1024 * 1024
"""Memory reserved at most for a large frame that may be read on: a size field alone never counts for more."""
PRODUCE_KEY = 0

_SIZE = Struct(">i")
RUN_LENGTH_MAX = 32
"""Maximum number of frames handled as one run; more would only keep the disk waiting for the first."""
_COROUTINE, _INFLIGHT, _WRITING, _BACKLOG = 1, 2, 4, 8
"""Reasons why no further frame is handled now."""
GATHERED_BYTES_MAX = 1024 * 1024
"""Large frames that have already arrived are read up to this size and handled together: each read of 128 KB, and each
iteration of the event loop in between, evicts the interpreter from the processor's cache."""


class Connection(asyncio.BufferedProtocol):
    """The protocol of one client connection."""

    __slots__ = (
        "_assembler",
        "_backlog",
        "_broker",
        "_counted_bytes",
        "_descriptor",
        "_dispatch_request",
        "_dispatch_run",
        "_flush_is_due",
        "_heard",
        "_held_bytes",
        "_inflight",
        "_is_closed",
        "_is_stopping",
        "_memory",
        "_offered_bytes",
        "_out",
        "_out_bytes",
        "_pending",
        "_quiet_since_s",
        "_serving",
        "_slots",
        "_state",
        "_stops",
        "_transport",
        "_unwritten_bytes",
        "peer",
    )

    _transport: asyncio.Transport

    def __init__(self, serving: ServerContext, peer: str) -> None:
        self.peer = peer
        self._serving = serving
        self._broker = serving.broker
        self._dispatch_request = serving.dispatch
        self._dispatch_run = serving.dispatch_run
        self._memory = serving.request_memory
        self._state = serving.new_state(peer)
        self._assembler = FrameAssembler(serving.receive_memory, serving.limits.frame_bytes_max)
        self._slots: deque[tuple[Buffers | Later | bytes | asyncio.Future[bytes], int, int]] = deque()
        """One slot for each reply, or for the replies to a run, that was not sent yet, in request order: with the size
        of its frames and their number. Bytes are the replies of a run, including their sizes."""
        self._inflight = 0
        """Number of requests that the slots stand for."""
        self._pending: deque[memoryview] = deque()
        """Complete frames that wait until `_stops` is clear."""
        self._out: Buffers = []
        self._out_bytes = 0
        self._flush_is_due = False
        self._stops = 0
        self._backlog: Backlog | None = None
        """The backlog that a produce request waits for."""
        self._descriptor = -1
        self._offered_bytes = 0
        self._held_bytes = 0
        """Request memory of the assembler's incomplete frame."""
        self._counted_bytes = 0
        """Request memory of this connection's complete frames."""
        self._is_closed = False
        self._is_stopping = False
        self._heard = True
        self._quiet_since_s = 0.0
        self._unwritten_bytes = 0

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._descriptor = plain_descriptor_of(transport)
        self._serving.wheel.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._assembler.buffer()
        if self._memory.is_full:
            has_begun = self._held_bytes > SMALL_FRAME_BYTES_MAX
            buffer = buffer[: READ_ON_BYTES_WHEN_FULL if has_begun else READ_BYTES_WHEN_FULL]
        self._offered_bytes = len(buffer)
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        if self._is_closed or self._is_stopping:
            return
        assembler = self._assembler
        frames = assembler.received(nbytes)
        may_have_more = nbytes == self._offered_bytes
        if frames:
            if self._held_bytes:
                self._account_for_beginning(0)
            if self._stops or self._pending:
                self._put_aside(frames)
            else:
                if may_have_more and self._descriptor >= 0 and len(frames[-1]) >= LARGE_FRAME_BYTES:
                    # These are not counted yet, and the last read may add one more of that size and its successor.
                    uncounted = sum(map(len, frames)) + 2 * len(frames[-1])
                    bytes_max = min(GATHERED_BYTES_MAX, self._memory.spare_bytes - uncounted)
                    frames += assembler.read_on(self._descriptor, bytes_max)
                    may_have_more = False
                self._handle_all(frames)
        if assembler.refusal is not None:
            self._refuse("frame", assembler.refusal)
            return
        if self._out:
            # Replies to requests that arrive in the same iteration of the event loop are sent together with these.
            if not may_have_more:
                self._flush()
            elif not self._flush_is_due:
                self._flush_is_due = True
                self._serving.loop.call_soon(self._flush)
        if self._memory.is_full and not self._may_read_on():
            self._wait_for_memory()
        elif assembler.held_bytes != self._held_bytes:
            self._account_for_beginning(assembler.held_bytes)
        if self._pending:
            # Only now: a connection notices a client that leaves only while it reads.
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._flush()

    def pause_writing(self) -> None:
        self._stops |= _WRITING

    def resume_writing(self) -> None:
        self._stops &= ~_WRITING
        self._drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        for outcome, _, _ in self._slots:
            if isinstance(outcome, asyncio.Future) and outcome not in self._serving.coroutines:
                outcome.cancel()
        self._slots.clear()
        self._inflight = 0
        self._pending.clear()
        self._out.clear()
        if self._backlog is not None:
            self._backlog.forget(self)
        self._memory.forget(self)
        self._memory.take(-self._held_bytes - self._counted_bytes)
        self._held_bytes = self._counted_bytes = 0
        self._serving.wheel.remove(self)
        self._serving.connections.pop(self, None)

    # Requests

    def _handle_all(self, frames: list[memoryview]) -> None:
        """Handles frames in order, as many together as possible. Frames that have to wait are put aside."""
        inflight_max = self._serving.limits.inflight_max
        at, count = 0, len(frames)
        while at < count and not self._is_closed:
            if self._stops:
                self._put_aside(frames[at:])
                return
            try:
                count_max = min(RUN_LENGTH_MAX, inflight_max - self._inflight)
                run, taken = self._dispatch_run(self._broker, self._state, frames, at, count_max)
            except Exception as error:
                self._fail(error)
                return
            if not taken:
                if not self._handle(frames[at]):
                    self._put_aside(frames[at:])
                    return
                taken = 1
            elif run is not None:
                self._note_run(run, taken)
            at += taken

    def _handle(self, frame: memoryview) -> bool:
        """Handles one frame. Returns False if it has to wait, with nothing done."""
        try:
            outcome: Outcome = self._dispatch_request(self._broker, self._state, frame)
        except Exception as error:
            self._fail(error)
            return True
        if outcome.__class__ is list:
            if self._slots:
                self._add_slot(outcome, 0, 1)
            else:
                self._put_reply(outcome)
        elif isinstance(outcome, Backlog):
            self._stops |= _BACKLOG
            self._backlog = outcome
            outcome.wait(self)
            return False
        elif outcome is not None:
            self._wait_for(outcome, frame)  # type: ignore[arg-type] # a list was handled above
        return True

    def _note_run(self, run: bytes | asyncio.Future[bytes], count: int) -> None:
        if not isinstance(run, bytes):
            run.add_done_callback(self._on_reply_ready)
            self._add_slot(run, 0, count)
        elif self._slots:
            self._add_slot(run, 0, count)
        else:
            self._put_replies(run)

    def _wait_for(self, outcome: Later | Coroutine[Any, Any, Buffers | None], frame: memoryview) -> None:
        frame_bytes = len(frame)
        if not isinstance(outcome, asyncio.Future):
            self._stops |= _COROUTINE
            task = self._serving.loop.create_task(outcome)
            self._serving.coroutines.add(task)
            task.add_done_callback(self._on_coroutine_done)
            outcome = task
        else:
            outcome.add_done_callback(self._on_reply_ready)
            if frame[1] == PRODUCE_KEY == frame[0]:
                frame_bytes = 0  # its records are in the log, and count in the backlog
        self._count(frame_bytes)
        self._add_slot(outcome, frame_bytes, 1)

    def _add_slot(self, outcome: Buffers | Later | bytes | asyncio.Future[bytes], frame_bytes: int, count: int) -> None:
        self._slots.append((outcome, frame_bytes, count))
        self._inflight += count
        if self._inflight >= self._serving.limits.inflight_max:
            self._stops |= _INFLIGHT

    def _put_aside(self, frames: list[memoryview]) -> None:
        self._count(sum(map(len, frames)))
        self._pending += frames

    def _count(self, byte_count: int) -> None:
        """Takes request memory, or gives it back if the number is negative."""
        self._counted_bytes += byte_count
        self._memory.take(byte_count)

    def _go_on(self) -> None:
        """Handles the frames that waited and resumes reading, unless something still stops it."""
        if self._pending and not self._stops:
            frames = list(self._pending)
            self._pending.clear()
            self._count(-sum(map(len, frames)))
            self._handle_all(frames)
        self._flush()
        if self._stops or self._is_closed:
            return
        if self._is_stopping:
            if not self._slots:
                self._finish()
        elif self._memory.is_full and not self._may_read_on():
            self._wait_for_memory()
        else:
            self._account_for_beginning(max(self._assembler.held_bytes, self._held_bytes))
            self._transport.resume_reading()

    def _may_read_on(self) -> bool:
        """Whether this connection is read while the request memory is full: if it has begun a large frame, if it
        carries replication, or if it holds little and the next frame is small or carries no records."""
        if self._held_bytes > SMALL_FRAME_BYTES_MAX or self._state.is_of_broker:
            return True
        if self._counted_bytes > SMALL_FRAME_BYTES_MAX:
            return False
        begun = self._assembler.begun
        if begun is None:
            return True
        size, api_key = begun
        return size <= (SMALL_FRAME_BYTES_MAX if api_key == PRODUCE_KEY else CONTROL_FRAME_BYTES_MAX)

    def _wait_for_memory(self) -> None:
        """Pauses reading until there is memory. The partial frame is not counted, so that everything that is counted
        goes away by itself: requests are handled, and earlier partial frames are completed or closed as stalled."""
        self._transport.pause_reading()
        self._account_for_beginning(0)
        self._memory.wait(self)

    @property
    def wanted_bytes(self) -> int:
        begun = self._assembler.begun
        return min(begun[0], RESERVED_BYTES_MAX) if begun is not None else READ_BYTES_WHEN_FULL

    def on_memory_freed(self) -> None:
        if not self._is_closed:
            self._account_for_beginning(self.wanted_bytes)
            self._go_on()

    def on_backlog_drained(self) -> None:
        self._stops &= ~_BACKLOG
        if not self._is_closed:
            self._go_on()

    def _account_for_beginning(self, held_bytes: int) -> None:
        grown_bytes = held_bytes - self._held_bytes
        self._held_bytes = held_bytes
        self._memory.take(grown_bytes)
        if grown_bytes > 0 and held_bytes > SMALL_FRAME_BYTES_MAX and self._memory.is_exhausted:
            self._refuse("memory", "was closed: the memory for requests is used up (queued.max.request.bytes)")

    # Replies

    def _on_reply_ready(self, reply: Later | asyncio.Future[bytes]) -> None:
        """Sends ready replies if this is the first in the queue: of many that complete together, one does the work."""
        if self._slots and self._slots[0][0] is reply:
            self._drain()

    def _on_coroutine_done(self, task: asyncio.Task[Buffers | None]) -> None:
        self._serving.coroutines.discard(task)
        if self._is_closed:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("peer %s: a request failed after its client had left", self.peer, exc_info=error)
            return
        self._stops &= ~_COROUTINE
        self._drain()

    def _drain(self) -> None:
        """Sends the replies at the head of the queue, as far as they are ready and the client accepts them."""
        slots = self._slots
        while slots and not self._stops & _WRITING and not self._is_closed:
            outcome, frame_bytes, count = slots[0]
            if isinstance(outcome, asyncio.Future):
                if not outcome.done():
                    break
                try:
                    reply: Buffers | bytes | None = outcome.result()
                except (Exception, asyncio.CancelledError) as error:
                    self._fail(error)
                    return
            else:
                reply = outcome
            slots.popleft()
            self._inflight -= count
            if frame_bytes:
                self._count(-frame_bytes)
            if isinstance(reply, bytes):
                self._put_replies(reply)
            elif reply is not None:
                self._put_reply(reply)
        if self._stops & _INFLIGHT and self._inflight <= self._serving.limits.inflight_max * 3 // 4:
            self._stops &= ~_INFLIGHT
        self._go_on()

    def _put_reply(self, reply: Buffers) -> None:
        size = sum(map(len, reply))
        self._out.append(_SIZE.pack(size))
        self._out += reply
        self._out_bytes += size
        if self._out_bytes > WRITE_HIGH_WATER_BYTES:
            self._flush()

    def _put_replies(self, replies: bytes) -> None:
        """Queues the replies of a run; each has its size in front."""
        self._out.append(replies)
        self._out_bytes += len(replies)
        if self._out_bytes > WRITE_HIGH_WATER_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._flush_is_due = False
        out = self._out
        if not out or self._is_closed:
            return
        out_bytes = self._out_bytes
        self._out = []
        self._out_bytes = 0
        try:
            if out_bytes <= JOINED_BYTES_MAX:
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)
        except Exception as error:
            log.debug("peer %s went away while a reply was written: %s", self.peer, error)
            self.abort()

    # Shutdown

    def _fail(self, error: BaseException) -> None:
        """Closes this connection, and no other, after a request failed through its sender's fault or a bug."""
        if isinstance(error, MalformedRequest):
            self._refuse("malformed", f"sent a malformed request: {error}")
            return
        if isinstance(error, asyncio.CancelledError):
            log.debug("peer %s: its request was cancelled", self.peer)
        else:
            log.error("peer %s: a request failed; its connection is closed", self.peer, exc_info=error)
        self._close()

    def _refuse(self, kind: str, sentence: str) -> None:
        self._serving.quiet_log.warning(kind, f"peer {self.peer} {sentence}")
        self._close()

    def _close(self) -> None:
        """Sends what was written and closes. The rest is dropped when the transport reports the end."""
        self._flush()
        self._is_closed = True
        self._transport.close()

    def abort(self) -> None:
        self._is_closed = True
        self._transport.abort()

    def begin_stop(self) -> None:
        """Accepts no more requests and answers the pending ones, then half-closes the connection."""
        self._is_stopping = True
        if self._is_closed:
            return
        self._transport.pause_reading()
        if not self._slots and not self._pending:
            self._finish()

    def _finish(self) -> None:
        """Half-closes the connection. Further data from the client is read and dropped: closing a socket with unread
        data would reset the connection, and lose replies in flight."""
        self._flush()
        if not self._is_closed:
            self._transport.write_eof()
            self._transport.resume_reading()

    @property
    def inflight_count(self) -> int:
        return self._inflight + len(self._pending)

    @property
    def is_answered(self) -> bool:
        if self._is_closed:
            return True
        return not self._slots and not self._pending and not self._transport.get_write_buffer_size()

    def check_timeouts(self, now_s: float) -> None:
        unwritten_bytes = self._transport.get_write_buffer_size()
        waits_for_us = not unwritten_bytes and (self._slots or self._pending or not self._transport.is_reading())
        if self._heard or unwritten_bytes != self._unwritten_bytes or (waits_for_us and not self._is_closed):
            self._heard = False
            self._unwritten_bytes = unwritten_bytes
            self._quiet_since_s = now_s
            return
        quiet_ms = (now_s - self._quiet_since_s) * 1000
        limits = self._serving.limits
        if self._is_closed:
            if quiet_ms >= limits.stall_ms:
                self.abort()
        elif self._held_bytes and not unwritten_bytes:
            if quiet_ms >= limits.stall_ms:
                self._refuse("stalled", f"sent a part of a request and then nothing for {limits.stall_ms} ms")
        elif 0 <= limits.idle_ms <= quiet_ms:
            log.debug("peer %s was idle for %d ms and is closed", self.peer, quiet_ms)
            self.abort()
