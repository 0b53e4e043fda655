"""A PostgreSQL server, a log, and a receiver between them in a thread, for the tests of this folder."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from ottla.connect.log_ports import ReadableLog
from ottla.connect.postgres_wal.backup import take_backup
from ottla.connect.postgres_wal.backup_check import check_backups
from ottla.connect.postgres_wal.backup_store import Backup, BackupStore
from ottla.connect.postgres_wal.log_location import LogLocation, settings_of_new_log
from ottla.connect.postgres_wal.receiver import Receiver, ReceiverSettings
from ottla.connect.postgres_wal.restore import RestoredCluster, RestoreRequest, restore
from ottla.testing import Cluster
from ottla.testing.postgres import USER
from ottla.wal import Log
from tests.support.postgres_server import PostgresServer

T = TypeVar("T")

SETTINGS = {"max_slot_wal_keep_size": "1GB", "shared_buffers": "16MB", "wal_sender_timeout": "20s"}
TIMEOUT_S = 60.0


class Keeper:
    """Ships `server`'s WAL to a log of `cluster`. `keeping` runs a receiver; `backup` and `restored` do what the
    commands do."""

    def __init__(self, cluster: Cluster, server: PostgresServer, directory: Path, name: str = "pg") -> None:
        self.cluster = cluster
        self.server = server
        self.place = LogLocation(cluster.wal_servers, name)
        self.store = BackupStore(os.fspath(directory / f"{name}-backups"))
        self.news: list[str] = []
        self.archive: str | None = None
        """The archive with records that the log no longer has."""
        self.without_log = False
        self.restore_options: list[str] = []
        """More options of the restore server."""

    def receiver(self, *, accept_gap: bool = False, user: str = USER) -> Receiver:
        new = settings_of_new_log(None, None)
        settings = ReceiverSettings(self.server.url_of("postgres", user=user), accept_gap=accept_gap)
        return Receiver(settings, lambda fence: self.place.open(fence=fence, create=new), self.news.append)

    @contextmanager
    def keeping(self, *, accept_gap: bool = False) -> Iterator[None]:
        """Commits wait for the log inside the context, and not outside."""
        running = Running(self.receiver(accept_gap=accept_gap).run())
        try:
            self._wait_until_streaming(running)
            self._standby_names("ottla")
            yield
        finally:
            self._standby_names("")
            running.stop()
        running.check()

    def waits_for(self, reason: str) -> None:
        """Runs a receiver until it reports that it waits for a reason that matches the regular expression `reason`."""
        receiver = self.receiver()
        running, deadline = Running(receiver.run()), time.monotonic() + TIMEOUT_S
        try:
            while re.search(reason, receiver.last_failure or "") is None:
                running.check()
                assert time.monotonic() < deadline, f"it does not wait for {reason!r}: {self.news}"
                time.sleep(0.02)
            assert receiver.state == "waiting"
        finally:
            running.stop()

    def _wait_until_streaming(self, running: Running) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            while not connection.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'").fetchall():
                running.check()
                assert time.monotonic() < deadline, f"no receiver came: {self.news}"
                time.sleep(0.02)

    def _standby_names(self, names: str) -> None:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            connection.execute("SELECT pg_reload_conf()")

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        return ask(self.server, *statements)

    def backup(self, into: BackupStore | None = None) -> Backup:
        store = into or self.store
        return self.with_log(lambda log: take_backup(self.server.url, log, store, self.news.append))

    def with_log(self, work: Callable[[Log], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with self.place.open() as log:
                return await work(log)

        return asyncio.run(run())

    def reading(self, work: Callable[[ReadableLog], Coroutine[Any, Any, T]]) -> T:
        """Reads with the archive, if there is one."""

        async def run() -> T:
            async with self.place.open_to_read(self.archive, self.news.append, without_log=self.without_log) as log:
                return await work(log)

        return asyncio.run(run())

    def check(self) -> list[str]:
        return self.reading(lambda log: check_backups(log, self.store, self.news.append))

    def lay_down(self, target: PostgresServer, wanted: RestoreRequest | None = None) -> RestoredCluster:
        command = [sys.executable, "-m", "ottla.connect.postgres_wal.restore_server"]
        command += ["--wal", self.place.servers, "--log", self.place.name]
        command += [] if self.archive is None else ["--archive", self.archive]
        command += ["--without-log"] if self.without_log else []
        command += self.restore_options
        directory = Path(target.data_dir)
        return self.reading(lambda log: restore(log, self.store, directory, wanted or RestoreRequest(), command))

    @contextmanager
    def restored(self, wanted: RestoreRequest | None = None) -> Iterator[PostgresServer]:
        """Returns a server recovered to the requested point."""
        target = PostgresServer(settings={**SETTINGS, "hot_standby": "off"})
        try:
            self.lay_down(target, wanted)
            target.spawn()
            target.wait_until_recovered()
            yield target
        finally:
            target.close()


class Running:
    """Runs a coroutine on a separate loop: commits of the test's thread wait for it."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_until_complete(asyncio.wait({self._task}))

    def check(self) -> None:
        """Raises its exception."""
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(TIMEOUT_S)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def wait(self) -> None:
        """Waits until it fails, and raises that exception."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "it goes on"
        self._loop.close()
        self.check()


def ask(server: PostgresServer, *statements: str) -> list[tuple[Any, ...]]:
    """Runs each statement in its own transaction; returns the rows of the last one."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []
