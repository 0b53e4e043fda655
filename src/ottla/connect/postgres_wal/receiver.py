"""`ottla connect postgres-wal`: a synchronous standby that stores the WAL in a log instead of applying it.

A session: look where the log ends, take the slot, stream from there, become the log's only writer, make sure that it
still ends there. The slot keeps a second connector from the server; the log's epoch keeps one from the log. After
whatever goes wrong in between, the next session looks again: the log alone says where to go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from ottla.connect.postgres_wal.entries import Entry, Kind
from ottla.connect.postgres_wal.failures import (
    LogChangedError,
    RefusedError,
    SlotInUseError,
    UnreachableError,
    WalGoneError,
)
from ottla.connect.postgres_wal.log_port import WritableLog
from ottla.connect.postgres_wal.log_search import last_entry
from ottla.connect.postgres_wal.log_writer import LogWriter
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, lsn_text
from ottla.connect.postgres_wal.receiver_plan import LogEnd, Step, first_step, next_step
from ottla.connect.postgres_wal.server import APPLICATION_NAME, Identity, Server, StreamEnd
from ottla.connect.postgres_wal.slot_bound import SlotWatch, check_bound, parse_size
from ottla.connect.postgres_wal.stream_pump import Pump
from ottla.connect.postgres_wal.timelines import parse_history

BACKOFF_S = (0.1, 5.0)
STABLE_AFTER_S = 10.0
SLOT_PATIENCE_S = 10.0

OpenLog = Callable[[bool], AbstractAsyncContextManager[WritableLog]]


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    dsn: str
    slot: str = "ottla"
    application_name: str = APPLICATION_NAME
    unbounded_slot: bool = False
    accept_gap: bool = False


class Receiver:
    """Runs until it is cancelled, or until something that only a person can change: RefusedError.

    `open_log(fence)` opens the log, as its only writer if `fence`. `news` gets sentences for a person.
    """

    def __init__(self, settings: ReceiverSettings, open_log: OpenLog, news: Callable[[str], None]) -> None:
        self._settings = settings
        self._open_log = open_log
        self._news = news
        self._was_connected = False
        self._accept_gap = settings.accept_gap
        self._now: Pump | None = None
        self.state = "starting"
        self.reconnects = 0
        self.last_failure: str | None = None

    async def run(self) -> None:
        try:
            await self._run()
        except asyncio.CancelledError:
            self.state = "stopped"
            raise
        except Exception as failure:
            self.state, self.last_failure = "failed", str(failure)
            raise

    async def _run(self) -> None:
        delay_s, patient_until_s = BACKOFF_S[0], time.monotonic() + SLOT_PATIENCE_S
        while True:
            began_s = time.monotonic()
            try:
                await self._session()
                self._news("the server ended the stream; waiting for it")
            except LogChangedError as failure:
                self._again(failure)
            except SlotInUseError as failure:
                # The server takes a while to notice that a connector before us was killed.
                if not self._was_connected and began_s > patient_until_s:
                    raise
                self._again(failure)
            except UnreachableError as failure:
                if not self._was_connected:
                    raise
                self._again(failure)
            if time.monotonic() - began_s > STABLE_AFTER_S:
                delay_s = BACKOFF_S[0]
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, BACKOFF_S[1])

    def _again(self, failure: Exception) -> None:
        self._news(f"{failure}; trying again")
        self.last_failure = str(failure)
        self.reconnects += 1

    def facts(self) -> dict[str, str | int]:
        """Where it is, for a person who asks."""
        return {} if self._now is None else self._now.facts()

    async def _session(self) -> None:
        settings = self._settings
        async with await Server.connect(
            settings.dsn, application_name=settings.application_name, slot=settings.slot
        ) as server:
            await self._look_at_settings(server)
            identity = await server.identify()
            async with self._open_log(False) as log:
                last = await last_entry(log)
                tail = await log.tail()
            if last is None and tail.start_offset > 0 and not self._accept_gap:
                raise RefusedError(
                    "the log is empty, and was not always: what it held has been trimmed, or all its replicas were "
                    "lost at once. To begin anew, type the same command with --accept-gap, and then take a base "
                    "backup: ottla backup postgres"
                )
            end = None if last is None else LogEnd.of(last.entry)
            step = await self._plan(server, identity, end)
            try:
                await self._stream(server, identity, end, step)
            except WalGoneError as gone:
                if not self._accept_gap:
                    raise RefusedError(_gap_sentence(step, gone)) from None
                await self._write_gap(server, identity, end, gone)
                self._accept_gap = False  # one gap was accepted, not every one to come
                raise LogChangedError("marked the gap") from None

    async def _look_at_settings(self, server: Server) -> None:
        if await server.setting("in_hot_standby") == "on":
            raise RefusedError("this server is a standby itself: connect to its primary")
        bound = parse_size(await server.setting("max_slot_wal_keep_size"))
        check_bound(bound, unbounded=self._settings.unbounded_slot)
        self._watch = SlotWatch(bound)
        self._segment_bytes = parse_size(await server.setting("wal_segment_size")) or 0
        if await server.setting("synchronous_commit") == "remote_apply":
            self._news(
                "WARNING: synchronous_commit is remote_apply, and a log applies nothing: commits that wait for it "
                "never return. Set it to 'on'"
            )

    async def _plan(self, server: Server, identity: Identity, end: LogEnd | None) -> Step:
        slot = await server.slot(self._settings.slot)
        if slot is None:
            await server.create_slot(self._settings.slot)
            self._news(f"created the replication slot {self._settings.slot!r}")
            slot = await server.slot(self._settings.slot)
        if end is None:
            return first_step(identity, None if slot is None else slot.restart_lsn, self._segment_bytes)
        history = None
        if identity.timeline > end.timeline:
            history = parse_history(identity.timeline, await server.history(identity.timeline))
        step = next_step(end, identity, history)
        if step.left_out:
            self._news(
                f"the server left timeline {end.timeline} {step.left_out:,} bytes before the log's end. The "
                "beginning of a record that was never completed is nothing to worry about; more than that can hold "
                f"transactions which only the log has: ottla restore postgres --timeline {end.timeline} shows them"
            )
        return step

    async def _stream(self, server: Server, identity: Identity, end: LogEnd | None, step: Step) -> None:
        """Until the server ends it. A timeline that ends is followed by the next one."""
        history = await self._start(server, step)
        async with self._open_log(True) as log:
            writer = await LogWriter.begin(log, end)
            try:
                while True:
                    if history is not None:
                        writer.put(_entry(Kind.HISTORY, identity, step.timeline, step.start, history))
                    ended = await self._pump(server, writer, identity, step)
                    if ended.next_timeline is None:
                        return
                    step = Step(ended.next_timeline, ended.next_start, is_new=True)
                    history = await self._start(server, step)
            finally:
                writer.close()

    async def _start(self, server: Server, step: Step) -> bytes | None:
        """The history comes first: a connection that streams answers nothing else."""
        history = await server.history(step.timeline) if step.is_new else None
        await server.start(self._settings.slot, step.start, step.timeline)
        return history

    async def _pump(self, server: Server, writer: LogWriter, identity: Identity, step: Step) -> StreamEnd:
        self._was_connected = True
        self._news(f"streaming from {lsn_text(step.start)} on timeline {step.timeline}")
        pump = Pump(
            server,
            writer,
            system_id=identity.system_id,
            timeline=step.timeline,
            start=step.start,
            watch=self._watch,
            news=self._news,
        )
        self._now, self.state, self.last_failure = pump, "running", None
        try:
            return await pump.run()
        finally:
            self.state = "restarting"

    async def _write_gap(self, server: Server, identity: Identity, end: LogEnd | None, gone: WalGoneError) -> None:
        """The slot is of no use any more; a new one keeps what comes from now on."""
        slot = self._settings.slot
        await server.drop_slot(slot)
        await server.create_slot(slot)
        reserved = await server.slot(slot)
        step = first_step(identity, None if reserved is None else reserved.restart_lsn, self._segment_bytes)
        is_new = step.is_new and (end is None or end.timeline < step.timeline)
        history = await server.history(step.timeline) if is_new else None
        start = step.start if end is None or end.timeline < step.timeline else max(step.start, end.end)
        async with self._open_log(True) as log:
            writer = await LogWriter.begin(log, end)
            if history is not None:
                begin = parse_history(step.timeline, history).begin
                writer.put(_entry(Kind.HISTORY, identity, step.timeline, min(begin, start), history))
            writer.put(_entry(Kind.GAP, identity, step.timeline, start, str(gone).encode()))
            await writer.drain()
            writer.close()
        self._news(
            f"WARNING: the log has a gap before {lsn_text(start)}. Nothing after it can be restored until there is a "
            "new base backup: ottla backup postgres"
        )


def _entry(kind: Kind, identity: Identity, timeline: TimelineId, start: Lsn, data: bytes) -> Entry:
    return Entry(kind, identity.system_id, timeline, start, time.time_ns() // 1000, data)


def _gap_sentence(step: Step, gone: WalGoneError) -> str:
    return (
        f"the server has removed WAL that the log does not have ({gone}): the log ends at {lsn_text(step.start)}. "
        "Everything up to there can be restored. To go on after the gap, type the same command with --accept-gap, "
        "and then take a new base backup: ottla backup postgres"
    )
