"""Shared code of the examples in this folder: three brokers, a PostgreSQL server, and `ottla` commands."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from ottla.testing.cluster_processes import ClusterProcesses
from ottla.testing.postgres import NoPostgresError, PostgresServer

PATIENCE_S = 120.0
BROKERS = {"ottla.wal.port": "0", "broker.session.timeout.ms": "3000"}


def step(sentence: str) -> None:
    print(f"\n# {sentence}", flush=True)


def result(sentence: str) -> None:
    print(f"=> {sentence}", flush=True)


class Scene:
    """A context manager that stops all processes and removes all files at the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-example-")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def brokers(self) -> ClusterProcesses:
        """Starts brokers as `ottla up --wal-port 9192` does, on free ports."""
        step("three brokers, each a process")
        cluster = ClusterProcesses(self.directory / "brokers", 3, config=BROKERS, ready_timeout_s=240)
        self._stack.enter_context(cluster)
        result(f"bootstrap={cluster.bootstrap}")
        return cluster

    def server(self, **settings: str) -> PostgresServer:
        """Starts a new PostgreSQL server with these settings."""
        step("a PostgreSQL")
        server = self.empty_server(**settings)
        server.initialize()
        server.start()
        result(server.url)
        return server

    def empty_server(self, **settings: str) -> PostgresServer:
        """A server without a data directory."""
        try:
            server = PostgresServer(settings={"fsync": "on", **settings}, initdb=["--data-checksums"])
        except NoPostgresError as reason:
            sys.exit(str(reason))
        self._stack.callback(server.close)
        return server

    def ottla(self, *words: str) -> str:
        """Runs one command and returns its output."""
        print(f"$ ottla {shlex.join(words)}", flush=True)
        done = subprocess.run([sys.executable, "-m", "ottla", *words], capture_output=True, text=True, check=False)
        print(done.stderr + done.stdout, end="", flush=True)
        if done.returncode:
            sys.exit(f"it ended with code {done.returncode}")
        return done.stdout

    @contextmanager
    def running(self, *words: str, until: Callable[[], bool]) -> Iterator[None]:
        """Runs a command until the context ends; enters the context once the command is ready."""
        print(f"$ ottla {shlex.join(words)} &", flush=True)
        log = self.directory / f"{words[1]}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "ottla", *words], stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        try:
            wait_until(until, lambda: log.read_text() if process.poll() is None else sys.exit(log.read_text()))
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def wait_until(holds: Callable[[], bool], said: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        text = said()
        if time.monotonic() > deadline:
            sys.exit(f"it takes too long\n{text}")
        time.sleep(0.05)


def sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Runs each statement in its own transaction; returns the rows of the last one."""
    rows: list[tuple[Any, ...]] = []
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
    return rows


def is_streaming(url: str, name: str) -> Callable[[], bool]:
    asked = f"SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND application_name = '{name}'"
    return lambda: bool(sql(url, asked))


def drop_slot(url: str, name: str) -> None:
    """Drops a slot; the server notices only after a moment that it is no longer in use."""
    slots = f"FROM pg_replication_slots WHERE slot_name = '{name}'"
    wait_until(lambda: not sql(url, f"SELECT 1 {slots} AND active"))
    sql(url, f"SELECT pg_drop_replication_slot(slot_name) {slots}")


def commits_wait(url: str, *, on: bool) -> None:
    """Sets whether a commit returns only when the log has it. The change itself does not wait."""
    names = "ottla" if on else ""
    setting = f"ALTER SYSTEM SET synchronous_standby_names = '{names}'"
    print(f"$ psql -c \"{setting}\" -c 'SELECT pg_reload_conf()'", flush=True)
    sql(url, "SET synchronous_commit = local", setting, "SELECT pg_reload_conf()")
    wait_until(lambda: sql(url, "SHOW synchronous_standby_names") == [(names,)])
