"""Coordination through one SQLite file, for brokers that run as processes on one machine.

There are three threads. The event loop checks leases, which takes a few system calls. One thread works on the file. A
second one writes deadlines, so that a renewal does not wait behind a slow commit.

A lease has expired when its owner's process ended (immediately: its file is no longer locked), when the machine was
rebooted (the boot id differs), or when its deadline passed. Any client that notices one of these ends the lease in a
transaction.

SQLite's locks are released when a process dies, but not while it is stopped: a process stopped inside a transaction
prevents all others from changing anything until it continues or is killed. Therefore nothing takes a lock here unless
it changes something: renewals and lease checks use files of their own, and the check for changes compares the time of
the last write.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Self, TypeVar

from ottla.coordination.held_lease import HeldLease
from ottla.coordination.port import (
    OPERATIONS_MAX,
    Condition,
    Entry,
    Lease,
    LeaseId,
    Operation,
    Outcome,
    OutcomeUnknownError,
    Resync,
    Revision,
    Snapshot,
    UnavailableError,
    Watch,
    check_commit,
)
from ottla.coordination.sqlite.database import Database
from ottla.coordination.sqlite.history import History
from ottla.coordination.sqlite.lease_files import (
    LeaseFile,
    LeaseObserver,
    boot_id,
    is_over,
    remove_file,
    remove_left_files,
)
from ottla.coordination.sqlite.nudges import Nudges
from ottla.coordination.sqlite.store import LeaseRow, Store
from ottla.coordination.sqlite.worker import Worker
from ottla.ports import Clock, Timer

T = TypeVar("T")
log = logging.getLogger("ottla.coordination")

FILE = "coordination.db"
LOOK_MS = 50.0
"""Interval between two checks of other owners' leases; bounds the time until a killed broker is noticed."""
POLL_MS = 500.0
"""Interval between two checks for changes without a nudge. Without nudges, changes are checked as often as leases."""
WRITE_TIME_SLACK_NS = 100_000_000
"""File systems record write times in steps of up to 10 ms: a second write soon after may show the same time."""


class SqliteCoordination:
    """Implements `port.Coordination`. Create it with `open`."""

    operations_max = OPERATIONS_MAX

    def __init__(self, directory: str, clock: Clock, history: History, timeout_s: float) -> None:
        self._directory = directory
        self._clock = clock
        self._database = Database(os.path.join(directory, FILE))
        self._store = Store(self._database, history)
        self._worker = Worker("coordination", timeout_s, self._database.wait_until)
        self._deadline_writer = Worker("coordination-deadlines", timeout_s)
        self._observer = LeaseObserver(directory)
        self._owned: dict[LeaseId, SqliteLease] = {}
        self._revision = Revision(0)
        self._watches: set[asyncio.Event] = set()
        self._called = asyncio.Event()
        self._nudges = Nudges(directory, asyncio.get_running_loop(), self._on_nudge)
        self._closed = False
        self._poll_at_ms = 0.0
        self._written_ns = 0
        self._timer: Timer | None = None
        self._attendant: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, directory: str, clock: Clock, *, request_timeout_ms: int = 5000, history: History | None = None
    ) -> Self:
        """Opens the store, creating it if needed. Raises UnavailableError."""
        directory = os.path.abspath(directory)
        os.makedirs(directory, exist_ok=True)
        client = cls(directory, clock, history or History(), request_timeout_ms / 1000)
        try:
            await client._refresh()
            await client._read(lambda: remove_left_files(directory, client._store.state().leases))
        except BaseException:
            await client.close()
            raise
        client._attendant = asyncio.create_task(client._attend(), name="coordination")
        client._look()
        return client

    # -- entries ---------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Entry | None:
        return await self._read(partial(self._store.get, key))

    async def snapshot(self, prefix: str = "") -> Snapshot:
        return await self._read(partial(self._store.snapshot, prefix))

    async def commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        check_commit(conditions, operations)
        return await self._change(partial(self._store.commit, tuple(conditions), tuple(operations)))

    async def watch(self, prefix: str, after: Revision) -> Watch:
        changed = asyncio.Event()
        self._watches.add(changed)
        try:
            while not self._closed:
                changed.clear()  # before reading: any later commit sets it again
                try:
                    found = await self._read(partial(self._store.changes, prefix, after))
                except UnavailableError:
                    await asyncio.sleep(LOOK_MS / 1000)
                    continue
                if isinstance(found, Resync):
                    yield found
                    return
                for batch in found.batches:
                    yield batch
                if found.complete_to == after:
                    await changed.wait()
                after = found.complete_to
        finally:
            self._watches.discard(changed)

    async def close(self) -> None:
        self._closed = True
        self._wake_watches()
        if self._timer is not None:
            self._timer.cancel()
        if self._attendant is not None:
            self._attendant.cancel()
            with suppress(asyncio.CancelledError):
                await self._attendant
        self._nudges.close()
        self._observer.close()
        with suppress(UnavailableError, OutcomeUnknownError):
            await self._worker.call(self._database.close)
        await self._worker.close()
        await self._deadline_writer.close()
        for lease in self._owned.values():
            lease.release()

    # -- leases ----------------------------------------------------------------------------------------------

    async def open_lease(self, ttl_ms: int) -> Lease:
        sent_ms = self._clock.monotonic_ms()

        def add() -> SqliteLease:
            file = LeaseFile(self._directory, sent_ms + ttl_ms)
            try:
                lease_id = self._store.add_lease(boot_id(), file.name)
            except BaseException:
                file.remove()
                raise
            return SqliteLease(self, LeaseRow(lease_id, boot_id(), file.name), file, ttl_ms, sent_ms, self._clock)

        try:
            lease = await self._change(add)
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error
        self._owned[lease.id] = lease
        self._called.set()  # to observe it from here on
        return lease

    async def renew(self, lease: SqliteLease, deadline_ms: float) -> bool:
        """Writes the lease's new deadline. Returns False if it has ended or is about to."""
        try:
            return await self._deadline_writer.call(partial(lease.file.renew, deadline_ms))
        except (OSError, OutcomeUnknownError) as error:
            raise UnavailableError(f"could not write the deadline of the lease: {error}") from error

    async def revoke(self, lease: SqliteLease) -> None:
        """Ends the lease, deletes its entries and removes its file. Raises UnavailableError if that is uncertain."""

        def end() -> None:
            self._store.end_lease(lease.id, lambda: True)
            lease.file.remove()

        try:
            await self._change(end)
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error
        self._owned.pop(lease.id, None)

    def _look(self) -> None:
        """Checks leases and changes, cheaply and often. Wakes the background task if there is something to do."""
        self._timer = self._clock.call_later(LOOK_MS, self._look)
        now_ms = self._clock.monotonic_ms()
        if self._observer.over(now_ms):
            self._called.set()
        elif now_ms >= self._poll_at_ms:
            self._poll_at_ms = now_ms + (POLL_MS if self._nudges.works else LOOK_MS)
            written_ns = self._database.written_ns()
            if written_ns != self._written_ns or time.time_ns() - written_ns < WRITE_TIME_SLACK_NS:
                self._called.set()
                self._wake_watches()

    async def _attend(self) -> None:
        """Ends expired leases and learns of new ones, until the client is closed."""
        while True:
            await self._called.wait()
            self._called.clear()
            try:
                await self._refresh()
                for row in self._observer.over(self._clock.monotonic_ms()):
                    await self._end(row)
            except (UnavailableError, OutcomeUnknownError) as error:
                log.warning("could not end expired leases, will retry: %s", error)
            except Exception:
                log.exception("the check for expired leases failed")

    async def _end(self, row: LeaseRow) -> None:
        def end() -> None:
            now_ms = self._clock.monotonic_ms()
            if self._store.end_lease(row.id, lambda: is_over(self._directory, row, now_ms)):
                remove_file(self._directory, row)

        await self._change(end)
        await self._refresh()

    async def _refresh(self) -> None:
        """Reads the current revision and leases of the store."""
        self._written_ns = self._database.written_ns()
        state = await self._read(self._store.state)
        self._observer.observe(state.leases)
        alive = {row.id for row in state.leases}
        for lease_id in [one for one in self._owned if one <= state.last_lease and one not in alive]:
            self._owned.pop(lease_id).end()
        if state.revision != self._revision:
            self._revision = state.revision
            self._wake_watches()

    # -- the worker ------------------------------------------------------------------------------------------

    async def _read(self, job: Callable[[], T]) -> T:
        try:
            return await self._worker.call(job)
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error

    async def _change(self, job: Callable[[], T]) -> T:
        """Runs a change. Watchers are notified even if the caller gave up."""

        def change() -> T:
            result = job()
            self._nudges.send()
            return result

        try:
            return await self._worker.call(change)
        finally:
            self._wake_watches()

    def _on_nudge(self) -> None:
        self._called.set()
        self._wake_watches()

    def _wake_watches(self) -> None:
        for changed in self._watches:
            changed.set()


class SqliteLease(HeldLease):
    """A lease whose deadline is in a locked file."""

    def __init__(
        self, client: SqliteCoordination, row: LeaseRow, file: LeaseFile, ttl_ms: int, sent_ms: float, clock: Clock
    ) -> None:
        super().__init__(row.id, ttl_ms, sent_ms, clock, ttl_ms)
        self.file = file
        self._client = client

    def end(self) -> None:
        """Marks the lease as lost, because another client ended it."""
        self.lost = True
        self.file.remove()

    def release(self) -> None:
        """Gives up the lease when its client is closed: the next client that checks ends it."""
        self.lost = True
        self.file.release()

    async def _renew(self, sent_ms: float) -> bool:
        return await self._client.renew(self, sent_ms + self.ttl_ms)

    async def _revoke(self) -> None:
        await self._client.revoke(self)
