"""An in-memory key-value store whose only durability is an Ottla log.

    async with KvStore("127.0.0.1:9192", "kv") as store:
        await store.lead()                          # replays the log and fences all other writers
        await store.put(b"k", b"v")                 # returns when the log has acknowledged it
        store.get(b"k")
        await store.at(Point(time_ms=...))          # a copy as of that time
        await store.snapshot()                      # the next start replays only later records

    await other.follow()                            # elsewhere: stays up to date; `lead` makes it the writer

The rest is in `ottla.recovery`; this file is all the code that a durable state needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from ottla.recovery import (
    Follower,
    Kind,
    Leader,
    NotLeadingError,
    Point,
    Position,
    RowTables,
    Snapshot,
    SnapshotStore,
    delete,
    lead,
    put,
    recover,
)
from ottla.wal import Log, LogSettings

HEARTBEAT_S = 0.25


class KvStore:
    def __init__(
        self,
        servers: str,
        name: str,
        snapshots: SnapshotStore | None = None,
        *,
        create: LogSettings | None = None,
        workers: int = 1,
    ) -> None:
        """`workers` is the number of processes that replay a long log."""
        self._servers, self._name, self._create = servers, name, create
        self._snapshots, self._workers = snapshots, workers
        self._logs: list[Log] = []
        self._rows = RowTables()
        self._follower: Follower | None = None
        self._leader: Leader | None = None
        self._heart: asyncio.Task[None] | None = None

    async def _open(self, *, fence: bool) -> Log:
        log = await Log.open(self._servers, self._name, create=self._create, fence=fence)
        self._logs.append(log)
        return log

    async def follow(self) -> None:
        """Starts again with an empty state and follows."""
        await self._end()
        self._rows = RowTables()
        self._follower = Follower(await self._open(fence=False), self._rows, self._snapshots)
        await self._follower.start(workers=self._workers)

    async def lead(self) -> None:
        """Fences every other writer of this log. A follower reads only the records that it does not have yet."""
        writer = await self._open(fence=True)
        if self._follower is not None:
            self._leader = await self._follower.take_over(writer)
            self._follower = None
        else:
            self._leader = await lead(writer, self._rows, self._snapshots, workers=self._workers)
        self._heart = asyncio.create_task(self._beat(self._leader))

    async def _beat(self, leader: Leader) -> None:
        with contextlib.suppress(NotLeadingError):
            while True:
                await leader.write_heartbeat()
                await asyncio.sleep(HEARTBEAT_S)

    # -- the store ----------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """Returns the local value. A leader that was replaced may not know it yet, and may return an old value."""
        return self._rows.rows.get(key)

    async def put(self, key: bytes, value: bytes) -> int:
        return await self._leading().write(put(key, value))

    async def delete(self, key: bytes) -> int:
        return await self._leading().write(delete(key))

    async def update(self, values: Mapping[bytes, bytes | None]) -> int:
        """Applies all changes or none; None deletes. Returns the transaction's id."""
        return await self._leading().write_transaction(
            (Kind.DELETE, "", key, b"") if value is None else (Kind.PUT, "", key, value)
            for key, value in values.items()
        )

    async def at(self, point: Point) -> dict[bytes, bytes]:
        rows = RowTables()
        await recover(self._logs[-1], rows, snapshots=self._snapshots, until=point, workers=self._workers)
        return rows.rows

    async def snapshot(self, *, trim: bool = False) -> Snapshot:
        """Takes a snapshot. With `trim`, the log deletes records that the kept snapshots do not need."""
        snapshot = await self._leading().snapshot()
        if trim:
            await self._leading().trim()
        return snapshot

    # -- position -----------------------------------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        return self._leader is not None and self._leader.failure is None

    @property
    def is_following(self) -> bool:
        return self._follower is not None and self._follower.failure is None

    @property
    def position(self) -> Position:
        stands = self._leader or self._follower
        return Position() if stands is None else stands.position

    @property
    def silent_s(self) -> float:
        """How long a follower has heard nothing from a leader."""
        return 0.0 if self._follower is None else time.monotonic() - self._follower.heard_s

    def _leading(self) -> Leader:
        if self._leader is None:
            raise NotLeadingError("this store follows: write to the one that leads, or call lead() first")
        return self._leader

    async def _end(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
        if self._follower is not None:
            await self._follower.stop()
        self._heart = self._follower = self._leader = None
        while self._logs:
            await self._logs.pop().close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()
