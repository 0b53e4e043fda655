"""`ottla connect postgres-wal`: a synchronous standby that stores WAL in a log instead of applying it.

A session finds the end of the log, acquires the slot, starts streaming from that position, becomes the log's single
writer, and checks that the log still ends there. The slot keeps a second connector away from the server; the log's
epoch keeps it away from the log. After any failure, the next session starts with the end of the log again: the log
alone determines where to resume.

Commits wait for this connector, so it does not give up. It retries every failure with bounded backoff, because time or
an operator may fix it: a server in recovery, a missing role, unreachable brokers. Two things end it: options that can
never work, and another connector that has taken over the log (the two would otherwise fence each other in turn).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from ottla.connect.log_ports import WritableLog
from ottla.connect.postgres_wal import wal_keep_size as kept_wal
from ottla.connect.postgres_wal.entries import Entry, Kind
from ottla.connect.postgres_wal.failures import (
    InvalidSettingsError,
    LogChangedError,
    PostgresError,
    RefusedError,
    TakenOverError,
    WalGoneError,
)
from ottla.connect.postgres_wal.log_search import last_entry
from ottla.connect.postgres_wal.log_writer import LogWriter
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, lsn_text
from ottla.connect.postgres_wal.receiver_plan import LogEnd, StreamStart, first_step, next_step
from ottla.connect.postgres_wal.server import APPLICATION_NAME, Identity, Server, Slot, StreamEnd
from ottla.connect.postgres_wal.slot_bound import SlotWatch, check_bound, parse_size
from ottla.connect.postgres_wal.stream_pump import Pump
from ottla.connect.postgres_wal.timelines import parse_history

BACKOFF_S = (0.1, 5.0)
STABLE_AFTER_S = 10.0
LOOK_EVERY_S = 0.2
REMIND_S = 600.0
"""A failure that persists is logged again after this time."""
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")

OpenLog = Callable[[bool], AbstractAsyncContextManager[WritableLog]]


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """The settings of a receiver."""

    dsn: str
    slot: str = "ottla"
    application_name: str = APPLICATION_NAME
    unbounded_slot: bool = False
    accept_gap: bool = False


class Receiver:
    """Streams WAL to the log until it is cancelled.

    Raises InvalidSettingsError or TakenOverError, and retries any other PostgresError. `open_log(fence)` opens the log,
    as its single writer if `fence` is true. `news` receives messages for the operator. `state` is starting, running,
    waiting (`last_failure` says for what), stopped or failed.
    """

    def __init__(self, settings: ReceiverSettings, open_log: OpenLog, news: Callable[[str], None]) -> None:
        self._settings = settings
        self._open_log = open_log
        self._news = news
        self._said_s: dict[str, float] = {}
        self._accept_gap = settings.accept_gap
        self._now: Pump | None = None
        self.state = "starting"
        self.reconnects = 0
        self.last_failure: str | None = None

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            await self._run()
        except asyncio.CancelledError:
            self.state = "stopped"
            raise
        except Exception as failure:
            self.state, self.last_failure = "failed", str(failure)
            raise

    async def _run(self) -> None:
        if _SLOT_NAME.fullmatch(self._settings.slot) is None:
            raise InvalidSettingsError(
                f"{self._settings.slot!r} is not a valid slot name; use up to 63 lower-case letters, digits "
                "and underscores (--slot)"
            )
        delay_s = BACKOFF_S[0]
        while True:
            began_s = time.monotonic()
            try:
                await self._session()
                self._wait_for("the server ended the stream; waiting for it")
            except (InvalidSettingsError, TakenOverError):
                raise
            except PostgresError as failure:
                self._wait_for(str(failure))
            if time.monotonic() - began_s > STABLE_AFTER_S:
                delay_s = BACKOFF_S[0]
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, BACKOFF_S[1])

    def _wait_for(self, reason: str) -> None:
        """Reports the reason once, and again only if it persists for `REMIND_S`."""
        self.state, self.last_failure = "waiting", reason
        self.reconnects += 1
        now_s = time.monotonic()
        if now_s - self._said_s.get(reason, -REMIND_S) >= REMIND_S:
            self._said_s[reason] = now_s
            self._news(f"{reason}; retrying")

    def facts(self) -> dict[str, str | int]:
        """Returns what `ottla connect status` shows."""
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
                    "the log is empty but was not always: its records were trimmed, or all its replicas were "
                    "lost at once. To start again, stop this connector, run the same command with "
                    "--accept-gap, then take a base backup: ottla backup postgres"
                )
            end = None if last is None else LogEnd.of(last.entry)
            step = await self._plan(server, identity, end)
            try:
                await self._stream(server, identity, end, step)
            except WalGoneError as gone:
                if not self._accept_gap:
                    raise RefusedError(_gap_sentence(step, gone)) from None
                await self._write_gap(server, identity, end, gone)
                self._accept_gap = False  # the operator accepted one gap, not future ones
                raise LogChangedError("marked the gap") from None

    async def _look_at_settings(self, server: Server) -> None:
        if await server.setting("in_hot_standby") == "on":
            raise RefusedError("this server is a standby; connect to its primary")
        bound = parse_size(await server.setting("max_slot_wal_keep_size"))
        check_bound(bound, unbounded=self._settings.unbounded_slot)
        self._watch = SlotWatch(bound)
        self._segment_bytes = parse_size(await server.setting("wal_segment_size")) or 0
        self._kept_before = await self._look_at_kept_wal(server)
        if await server.setting("synchronous_commit") == "remote_apply":
            self._news(
                "WARNING: synchronous_commit is remote_apply, but a log does not apply WAL, so commits wait "
                "forever. Set it to 'on'"
            )

    async def _look_at_kept_wal(self, server: Server) -> str | None:
        """Returns the value of wal_keep_size before `ottla restore postgres` raised it; None if it is not raised
        now."""
        if await server.setting(kept_wal.SETTING) != kept_wal.KEPT:
            return None
        try:
            return await server.setting(kept_wal.BEFORE) or None
        except RefusedError:  # the server does not have the setting
            return None

    async def _plan(self, server: Server, identity: Identity, end: LogEnd | None) -> StreamStart:
        """Decides where to resume.

        A server whose WAL does not belong in this log gets no slot, because nothing would ever advance it.
        """
        if end is None:
            slot = await self._slot(server)
            return first_step(identity, None if slot is None else slot.restart_lsn, self._segment_bytes)
        history = None
        if identity.timeline > end.timeline:
            history = parse_history(identity.timeline, await server.history(identity.timeline))
        step = next_step(end, identity, history)
        await self._slot(server)
        if step.left_out:
            self._news(
                f"the server left timeline {end.timeline} {step.left_out:,} bytes before the log's end. An "
                "incomplete record at the end is harmless; anything more may contain transactions that only "
                f"the log has. To see them: ottla restore postgres --timeline {end.timeline}"
            )
        return step

    async def _slot(self, server: Server) -> Slot | None:
        """Returns the slot, and creates it if it does not exist."""
        name = self._settings.slot
        slot = await server.slot(name)
        if slot is None:
            await server.create_slot(name)
            self._news(f"created the replication slot {name!r}")
            slot = await server.slot(name)
        return slot

    async def _stream(self, server: Server, identity: Identity, end: LogEnd | None, step: StreamStart) -> None:
        """Streams until the server ends the stream. When a timeline ends, continues with the next one."""
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
                    step = StreamStart(ended.next_timeline, ended.next_start, is_new=True)
                    history = await self._start(server, step)
            finally:
                writer.close()

    async def _start(self, server: Server, step: StreamStart) -> bytes | None:
        """Starts the stream. Fetches the history first, because a streaming connection accepts no other command."""
        history = await server.history(step.timeline) if step.is_new else None
        await server.start(self._settings.slot, step.start, step.timeline)
        return history

    async def _pump(self, server: Server, writer: LogWriter, identity: Identity, step: StreamStart) -> StreamEnd:
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
        self._said_s.clear()
        setting_back = asyncio.create_task(self._set_back_kept_wal(pump, identity))
        try:
            return await pump.run()
        finally:
            setting_back.cancel()
            await asyncio.wait([setting_back])

    async def _set_back_kept_wal(self, pump: Pump, identity: Identity) -> None:
        """Resets wal_keep_size once the log has all WAL that the server had at the start of the session.

        The slot advances only with the log, so it holds all later WAL.
        """
        if self._kept_before is None:
            return
        while pump.flushed < identity.flushed:  # noqa: ASYNC110 - the pump has no event for it, and this runs once
            await asyncio.sleep(LOOK_EVERY_S)
        try:
            await kept_wal.set_back(self._settings.dsn, self._kept_before)
        except PostgresError as failure:
            self._news(f"WARNING: {failure}")
            return
        self._news(f"the log has caught up with the restored server: {kept_wal.command_of(self._kept_before)}")

    async def _write_gap(self, server: Server, identity: Identity, end: LogEnd | None, gone: WalGoneError) -> None:
        """Replaces the slot, which is no longer usable, and writes a gap marker to the log."""
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
            f"WARNING: the log has a gap before {lsn_text(start)}. Nothing after it can be restored without a "
            "new base backup: ottla backup postgres"
        )


def _entry(kind: Kind, identity: Identity, timeline: TimelineId, start: Lsn, data: bytes) -> Entry:
    return Entry(kind, identity.system_id, timeline, start, time.time_ns() // 1000, data)


def _gap_sentence(step: StreamStart, gone: WalGoneError) -> str:
    return (
        f"the server has removed WAL that the log does not have ({gone}): the log ends at "
        f"{lsn_text(step.start)}. Everything up to there can be restored. To continue after the gap, stop this "
        "connector, run the same command with --accept-gap, and then take a new base backup: ottla backup "
        "postgres"
    )
