"""One client connection: reads frames and sends replies in the order of the requests.

The handler answers a frame in one of five ways: at once (buffers), later (a future: the connection continues with its
next frame), later with the next frame waiting (a coroutine), not at all (None), or "not now" (the broker's backlog: the
frame is submitted again when the backlog has drained). The first stage of a handler runs before the next frame is
looked at, without an await in between (safety: produce-order).

Back-pressure stops single connections, never all of them: a connection waits for its own replies, for a slow reader,
for the backlog if it produces, or for memory if it begins a large request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import cast

from ottla.broker.endpoints import ClientAddress
from ottla.broker.partition.backlog import Backlog
from ottla.broker.partition.pending_reply import PendingReply
from ottla.broker.server.frames import FRAME_BYTES_MIN, LARGE_FRAME_BYTES, FrameAssembler
from ottla.broker.server.memory_share import PRODUCE_KEY, MemoryShare
from ottla.broker.server.plain_sockets import plain_descriptor_of
from ottla.broker.server.port import AsyncReply, Buffers, Later, RunReplies
from ottla.broker.server.reply_writer import ReplyWriter
from ottla.broker.server.server_context import ServerContext
from ottla.broker.server.timeout_wheel import QuietTime
from ottla.protocol.wire.primitives import MalformedRequest

log = logging.getLogger("ottla.server")

RUN_LENGTH_MAX = 32
"""Maximum number of frames handled as one run; more would only keep the disk waiting for the first."""
_COROUTINE, _INFLIGHT, _WRITING, _BACKLOG = 1, 2, 4, 8
"""Reasons why no further frame is handled now."""
GATHERED_BYTES_MAX = 1024 * 1024
"""Large frames that have already arrived are read up to this size and handled together: each read of 128 KB, and each
iteration of the event loop in between, evicts the interpreter from the processor's cache."""
MEMORY_USED_UP = "closed: request memory exhausted (queued.max.request.bytes)"

Slot = Buffers | RunReplies | Later | asyncio.Task[Buffers | None]
"""A reply or the replies to a run, available now or later."""


class Connection(asyncio.BufferedProtocol):
    """The protocol of one client connection.

    It is large because it is one state machine: the callbacks of the transport, of the broker's replies, of the memory
    and of the backlog all stop and continue the same queue of requests.
    """

    __slots__ = (
        "_assembler",
        "_backlog",
        "_begin_read",
        "_descriptor",
        "_end_read",
        "_handle_request",
        "_handle_run",
        "_handler",
        "_inflight",
        "_is_plain",
        "_is_stopping",
        "_memory",
        "_offered_bytes",
        "_pending",
        "_quiet",
        "_serving",
        "_share",
        "_slots",
        "_stops",
        "_transport",
        "_writer",
        "peer",
    )

    _transport: asyncio.Transport
    _writer: ReplyWriter

    def __init__(self, serving: ServerContext, client: ClientAddress, *, is_plain: bool = True) -> None:
        self.peer = str(client)
        self._serving = serving
        self._is_plain = is_plain
        self._handler = handler = serving.handler.connect(client)
        self._begin_read, self._end_read = handler.begin_read, handler.end_read
        self._handle_request = handler.handle
        self._handle_run = handler.handle_run
        self._assembler = FrameAssembler(serving.receive_memory, serving.limits.frame_bytes_max)
        self._memory = serving.request_memory
        self._share = MemoryShare(serving.request_memory, self._assembler, handler)
        self._slots: deque[tuple[Slot, int, int]] = deque()
        """One slot for each reply, or for the replies to a run, that was not sent yet, in request order: with the size
        of its frames and their number."""
        self._inflight = 0
        """Number of requests that the slots stand for."""
        self._pending: deque[memoryview] = deque()
        """Complete frames that wait until `_stops` is clear."""
        self._stops = 0
        self._backlog: Backlog | None = None
        """The backlog that a produce request waits for."""
        self._descriptor = -1
        self._offered_bytes = 0
        self._is_stopping = False
        self._quiet = QuietTime()

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not subclass asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        self._writer = ReplyWriter(self._transport, self._serving.loop, self.peer)
        self._descriptor = plain_descriptor_of(transport)
        self._serving.wheel.add(self)
        if not self._is_plain:
            self._serving.unauthenticated.replace_end(self, partial(self._refuse, "authentication"))
            self._on_authentication(self._handler.begin(transport, self._on_authentication))

    def _on_authentication(self, is_authenticated: bool) -> None:
        """Accepts requests of any kind and size from an authenticated client, else only small ones."""
        serving, limits = self._serving, self._serving.limits
        self._handle_request, self._handle_run = self._handler.handle, self._handler.handle_run
        if is_authenticated:
            self._assembler.set_limits(FRAME_BYTES_MIN, limits.frame_bytes_max)
            serving.unauthenticated.discard(self)
        else:
            # Before SaslHandshake v1, tokens are frames without a header, so they may be shorter than any request.
            self._assembler.set_limits(0, limits.unauthenticated_frame_bytes_max)

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._assembler.buffer()
        if self._memory.is_full:
            buffer = buffer[: self._share.read_bytes_when_full]
        self._offered_bytes = len(buffer)
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._quiet.heard = True
        writer = self._writer
        if writer.is_closed or self._is_stopping:
            return
        assembler, share = self._assembler, self._share
        frames = assembler.received(nbytes)
        may_have_more = nbytes == self._offered_bytes
        if frames:
            if share.held_bytes:
                share.hold(0)
            if self._stops or self._pending:
                self._put_aside(frames)
            else:
                if may_have_more and self._descriptor >= 0 and len(frames[-1]) >= LARGE_FRAME_BYTES:
                    # These are not counted yet, and the last read may add one more of that size and its successor.
                    uncounted = sum(map(len, frames)) + 2 * len(frames[-1])
                    bytes_max = min(GATHERED_BYTES_MAX, self._memory.spare_bytes - uncounted)
                    frames += assembler.read_on(self._descriptor, bytes_max)
                    may_have_more = False
                self._begin_read()
                try:
                    self._handle_all(frames)
                finally:
                    self._end_read()
        if assembler.refusal is not None:
            self._refuse("frame", assembler.refusal)
            return
        if writer.unsent:
            # Replies to requests that arrive in the same iteration of the event loop are sent together with these.
            if may_have_more:
                writer.flush_soon()
            else:
                writer.flush()
        if self._memory.is_full and not share.may_read_on():
            self._wait_for_memory()
        elif assembler.held_bytes != share.held_bytes and not share.hold(assembler.held_bytes):
            self._refuse("memory", MEMORY_USED_UP)
        if self._pending:
            # Only now: a connection notices a client that leaves only while it reads.
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._writer.flush()

    def pause_writing(self) -> None:
        self._stops |= _WRITING

    def resume_writing(self) -> None:
        self._stops &= ~_WRITING
        self._drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer.on_lost()
        for outcome, _, _ in self._slots:
            if isinstance(outcome, PendingReply | asyncio.Future) and outcome not in self._serving.coroutines:
                outcome.cancel()
        self._slots.clear()
        self._inflight = 0
        self._pending.clear()
        if self._backlog is not None:
            self._backlog.forget(self)
        self._memory.forget(self)
        self._share.release()
        self._serving.wheel.remove(self)
        self._serving.connections.pop(self, None)
        if not self._is_plain:
            self._serving.unauthenticated.discard(self)
            self._handler.end()

    # Requests

    def _handle_all(self, frames: list[memoryview]) -> None:
        """Handles frames in order, as many together as possible. Frames that have to wait are put aside."""
        inflight_max = self._serving.limits.inflight_max
        writer = self._writer
        at, count = 0, len(frames)
        while at < count and not writer.is_closed:
            if self._stops:
                self._put_aside(frames[at:])
                return
            try:
                run, taken = self._handle_run(frames, at, min(RUN_LENGTH_MAX, inflight_max - self._inflight))
            except Exception as error:
                self._fail(error)
                return
            if not taken:
                if not self._handle(frames[at]):
                    self._put_aside(frames[at:])
                    return
                taken = 1
            elif run is not None:
                if isinstance(run, PendingReply):
                    self._add_pending(run, 0, taken)
                elif self._slots:
                    self._add_slot(run, 0, taken)
                elif isinstance(run, bytes):
                    writer.put_replies(run)
                else:
                    writer.put_reply(run)
            at += taken

    def _handle(self, frame: memoryview) -> bool:
        """Handles one frame. Returns False if it has to wait, with nothing done."""
        try:
            outcome = self._handle_request(frame)
        except Exception as error:
            self._fail(error)
            return True
        if isinstance(outcome, list):
            if self._slots:
                self._add_slot(outcome, 0, 1)
            else:
                self._writer.put_reply(outcome)
        elif isinstance(outcome, Backlog):
            self._stops |= _BACKLOG
            self._backlog = outcome
            outcome.wait(self)
            return False
        elif outcome is not None:
            self._wait_for(outcome, frame)
        return True

    def _wait_for(self, outcome: Later | AsyncReply, frame: memoryview) -> None:
        frame_bytes = len(frame)
        if isinstance(outcome, PendingReply):
            self._share.count(frame_bytes)
            self._add_pending(outcome, frame_bytes, 1)
            return
        reply: Slot
        if not isinstance(outcome, asyncio.Future):
            self._stops |= _COROUTINE
            reply = task = self._serving.loop.create_task(outcome)
            self._serving.coroutines.add(task)
            task.add_done_callback(self._on_coroutine_done)
        else:
            reply = outcome
            outcome.add_done_callback(self._on_reply_ready)
            if frame[1] == PRODUCE_KEY == frame[0]:
                frame_bytes = 0  # its records are in the log, and count in the backlog
        self._share.count(frame_bytes)
        self._add_slot(reply, frame_bytes, 1)

    def _add_pending(self, pending: PendingReply[Buffers] | PendingReply[bytes], frame_bytes: int, count: int) -> None:
        self._add_slot(pending, frame_bytes, count)
        if not pending.done():
            pending.when_ready(self._on_pending_ready)
        elif self._slots[0][0] is pending:
            self._send_ready()

    def _add_slot(self, outcome: Slot, frame_bytes: int, count: int) -> None:
        self._slots.append((outcome, frame_bytes, count))
        self._inflight += count
        if self._inflight >= self._serving.limits.inflight_max:
            self._stops |= _INFLIGHT

    def _put_aside(self, frames: list[memoryview]) -> None:
        self._share.count(sum(map(len, frames)))
        self._pending += frames

    def _go_on(self) -> None:
        """Handles the frames that waited and resumes reading, unless something still stops it."""
        writer, share = self._writer, self._share
        if self._pending and not self._stops:
            frames = list(self._pending)
            self._pending.clear()
            share.count(-sum(map(len, frames)))
            self._handle_all(frames)
        writer.flush()
        if self._stops or writer.is_closed:
            return
        if self._is_stopping:
            if not self._slots:
                self._finish()
        elif self._memory.is_full and not share.may_read_on():
            self._wait_for_memory()
        else:
            if not share.hold(max(self._assembler.held_bytes, share.held_bytes)):
                self._refuse("memory", MEMORY_USED_UP)
            self._transport.resume_reading()

    def _wait_for_memory(self) -> None:
        """Pauses reading until there is memory. The partial frame is not counted, so that everything that is counted
        goes away by itself: requests are handled, and earlier partial frames are completed or closed as stalled."""
        self._transport.pause_reading()
        self._share.hold(0)
        self._memory.wait(self)

    @property
    def wanted_bytes(self) -> int:
        return self._share.wanted_bytes

    def on_memory_freed(self) -> None:
        if not self._writer.is_closed:
            if not self._share.hold(self._share.wanted_bytes):
                self._refuse("memory", MEMORY_USED_UP)
            self._go_on()

    def on_backlog_drained(self) -> None:
        """Handles the requests that waited for the backlog and resumes reading."""
        self._stops &= ~_BACKLOG
        if not self._writer.is_closed:
            self._go_on()

    # Replies

    def _on_reply_ready(self, reply: Later | asyncio.Future[bytes]) -> None:
        """Sends ready replies if this is the first in the queue: of many that complete together, one does the work."""
        if self._slots and self._slots[0][0] is reply:
            self._drain()

    def _on_pending_ready(self, reply: object) -> None:
        """Sends ready replies if this is the first in the queue. Its caller is in the middle of something: requests
        that waited for these replies are handled, and reading is resumed, in the next iteration of the event loop."""
        if self._slots and self._slots[0][0] is reply:
            self._send_ready()
            self._writer.flush()
            # Not only if requests wait: the last ones that waited may have stopped the connection again.
            if self._pending or not self._transport.is_reading() or (self._is_stopping and not self._slots):
                self._serving.loop.call_soon(self._go_on)

    def _on_coroutine_done(self, task: asyncio.Task[Buffers | None]) -> None:
        self._serving.coroutines.discard(task)
        if self._writer.is_closed:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("peer %s: a request failed after its client had left", self.peer, exc_info=error)
            return
        self._stops &= ~_COROUTINE
        self._drain()

    def _drain(self) -> None:
        """Sends the replies that are ready and continues with the requests that waited for them."""
        self._send_ready()
        self._go_on()

    def _send_ready(self) -> None:
        """Queues the replies at the head of the queue, as far as they are ready and the client accepts them."""
        slots, writer = self._slots, self._writer
        while slots and not self._stops & _WRITING and not writer.is_closed:
            outcome, frame_bytes, count = slots[0]
            if isinstance(outcome, PendingReply | asyncio.Future):
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
                self._share.count(-frame_bytes)
            if isinstance(reply, bytes):
                writer.put_replies(reply)
            elif reply is not None:
                writer.put_reply(reply)
        if self._stops & _INFLIGHT and self._inflight <= self._serving.limits.inflight_max * 3 // 4:
            self._stops &= ~_INFLIGHT

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
        self._writer.close()

    def _refuse(self, kind: str, sentence: str) -> None:
        self._serving.quiet_log.warning(kind, f"peer {self.peer} {sentence}")
        self._writer.close()

    def abort(self) -> None:
        self._writer.abort()

    def begin_stop(self) -> None:
        """Accepts no more requests and answers the pending ones, then half-closes the connection."""
        self._is_stopping = True
        if self._writer.is_closed:
            return
        self._transport.pause_reading()
        if not self._slots and not self._pending:
            self._finish()

    def _finish(self) -> None:
        """Half-closes the connection. Further data from the client is read and dropped: closing a socket with unread
        data would reset the connection, and lose replies in flight."""
        self._writer.flush()
        if self._writer.is_closed:
            return
        if not self._transport.can_write_eof():  # TLS: closing says goodbye too, after everything is sent
            self._writer.close()
            return
        self._transport.write_eof()
        self._transport.resume_reading()

    @property
    def inflight_count(self) -> int:
        return self._inflight + len(self._pending)

    @property
    def is_answered(self) -> bool:
        if self._writer.is_closed:
            return True
        return not self._slots and not self._pending and not self._transport.get_write_buffer_size()

    def check_timeouts(self, now_s: float) -> None:
        """Closes the connection if the peer was quiet for too long: idle, in the middle of a request, or after the
        close. Time during which the peer waits for this broker does not count."""
        is_closed, unwritten_bytes = self._writer.is_closed, self._transport.get_write_buffer_size()
        waits_for_us = not unwritten_bytes and (self._slots or self._pending or not self._transport.is_reading())
        quiet_ms = self._quiet.measure(now_s, unwritten_bytes, is_excused=bool(waits_for_us) and not is_closed)
        if quiet_ms is None:
            return
        limits = self._serving.limits
        if is_closed:
            if quiet_ms >= limits.stall_ms:
                self.abort()
        elif self._share.held_bytes and not unwritten_bytes:
            if quiet_ms >= limits.stall_ms:
                self._refuse("stalled", f"sent a part of a request and then nothing for {limits.stall_ms} ms")
        elif 0 <= limits.idle_ms <= quiet_ms:
            log.debug("peer %s was idle for %d ms and is closed", self.peer, quiet_ms)
            self.abort()
