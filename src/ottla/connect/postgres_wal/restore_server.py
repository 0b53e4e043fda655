"""The restore server: serves WAL files to a recovering PostgreSQL server, and reads ahead in the log.

    python -m ottla.connect.postgres_wal.restore_server --wal ... --log ... --system-id ... --segment-bytes ...

`restore_client` starts it for the first file, in the data directory and as PostgreSQL's user, and requests each file
over a Unix socket. If no prepared file satisfies a request, the server reads the log again, as if nothing had been
prepared. So the reply "not in log" always describes the log at that time, and a broker that does not respond is a
failure. The restore server exits when the recovery or the PostgreSQL server ends, or after a long time without
requests. A later request starts another one.

Complete segments wait in a directory named after the machine's boot id, from which restore_command takes them itself.
The spool is emptied when the process starts. So files from before a crash, which may not have been fully written to
disk, are never used.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any

from ottla.connect.log_ports import ReadableLog
from ottla.connect.postgres_wal.failures import PostgresError, RefusedError
from ottla.connect.postgres_wal.fetch import add_log_options, check_database, fetch_file, open_log
from ottla.connect.postgres_wal.positions import segment_of_name
from ottla.connect.postgres_wal.prefetch import SPOOL_BYTES, Prefetch, move
from ottla.connect.postgres_wal.restore_client import BOOT_ID, READY, SERVER_LOG, SOCKET, SPOOL

LOCK = os.path.join(SPOOL, "lock")
LOOK_EVERY_S = 0.5
GRACE_S = 2.0
"""How long the server stays at least after its start and after each request."""
IDLE_S = 600.0
LOCK_PATIENCE_S = 5.0
LOCK_POLL_S = 0.05
REQUEST_BYTES_MAX = 1 << 20
SIGNALS = ("recovery.signal", "standby.signal")


class RestoreServer:
    """Serves requests one at a time. `options` are the parsed arguments, and `command` is its full command line."""

    def __init__(self, options: argparse.Namespace, command: list[str]) -> None:
        self._options = options
        self._command = command
        self._spool = Path(SPOOL)
        self._prefetch = Prefetch(
            self._open_checked,
            self._spool,
            ready_directory(),
            segment_bytes=options.segment_bytes,
            up_to_gap=options.up_to_gap,
            spool_bytes=options.spool_mb << 20,
        )
        self._one_at_a_time = asyncio.Lock()
        self._asked_s = time.monotonic()
        self.over = asyncio.Event()

    def _open(self) -> contextlib.AbstractAsyncContextManager[ReadableLog]:
        return open_log(self._options)

    @contextlib.asynccontextmanager
    async def _open_checked(self) -> AsyncGenerator[ReadableLog, None]:
        async with self._open() as log:
            await check_database(log, self._options.system_id)
            yield log

    async def serve(self) -> None:
        """Serves until `over` is set, the recovery ends, or no request arrives for a long time."""
        server = await asyncio.start_unix_server(self._on_connection, SOCKET, limit=REQUEST_BYTES_MAX)
        async with server:
            print("ready", flush=True)
            while not self.over.is_set() and self._is_wanted():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self.over.wait()
        async with self._one_at_a_time:
            await self._prefetch.stop()

    def _is_wanted(self) -> bool:
        idle_s = 0.0 if self._one_at_a_time.locked() else time.monotonic() - self._asked_s
        return idle_s < GRACE_S or (idle_s < IDLE_S and is_recovering(Path()))

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # the client was killed
            if line := await reader.readline():
                async with self._one_at_a_time:
                    answer = await self._answer(json.loads(line))
                    self._asked_s = time.monotonic()
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, str]:
        if request["command"] != self._command:
            self.over.set()
            return {"result": "other options"}
        try:
            found = await self._fetch(request["name"], Path(request["path"]))
        except (PostgresError, OSError) as failure:
            return {"result": "failed", "reason": str(failure)}
        except Exception as fault:
            return {"result": "failed", "reason": f"internal error, please report it: {type(fault).__name__}: {fault}"}
        return {"result": "found" if found else "not in log"}

    async def _fetch(self, name: str, path: Path) -> bool:
        options = self._options
        segment = segment_of_name(name, options.segment_bytes)
        if segment is not None and await self._prefetch.take(segment, path):
            return True
        part = self._spool / f"{name}.asked"
        async with self._open() as log:
            found = await fetch_file(
                log, name, part, options.system_id, options.segment_bytes, up_to_gap=options.up_to_gap
            )
        if found:
            move(part, path)
            if segment is not None:
                await self._prefetch.go_on_after(segment)
        return found


def ready_directory() -> Path:
    """Returns the directory of complete segments, and creates it if it is missing.

    On a machine without a boot id, it has a name that no restore_command looks for.
    """
    try:
        boot = Path(BOOT_ID).read_text().strip()
    except OSError:
        boot = "unknown"
    directory = Path(READY + boot)
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def is_recovering(directory: Path) -> bool:
    """Returns whether a PostgreSQL server runs in the directory and is still recovering."""
    if not any((directory / name).exists() for name in SIGNALS):
        return False
    try:
        os.kill(int((directory / "postmaster.pid").read_text().split(maxsplit=1)[0]), 0)
    except PermissionError:
        return True
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return False
    return True


def take_spool() -> int | None:
    """Locks and empties the spool. Returns the lock's descriptor, or None if another restore server holds the lock."""
    deadline_s = time.monotonic() + LOCK_PATIENCE_S
    while (lock := _try_lock()) is None:
        if time.monotonic() > deadline_s:
            return None
        time.sleep(LOCK_POLL_S)
    _empty_spool()
    return lock


def _try_lock() -> int | None:
    Path(SPOOL).mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # the previous server is removing its spool
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(LOCK)):
                return lock
        os.close(lock)
    return None


def _empty_spool() -> None:
    for each in Path(SPOOL).iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        elif each.name not in (os.path.basename(LOCK), os.path.basename(SERVER_LOG)):
            each.unlink(missing_ok=True)


def give_up_spool(lock: int) -> None:
    """Removes the spool and releases the lock. The lock file goes last: once it is gone, another server may start."""
    with contextlib.suppress(OSError):
        _empty_spool()
        os.unlink(SERVER_LOG)
        os.unlink(LOCK)
        os.rmdir(SPOOL)
    os.close(lock)


async def check(options: argparse.Namespace) -> None:
    """Raises PostgresError if this user cannot read the log or cannot reach the data directory to be created."""
    for parent in Path(options.check).parents:
        if parent.exists() and not os.access(parent, os.X_OK):
            raise RefusedError(
                f"this user has no access to the directory {parent}: chmod o+x {shlex.quote(str(parent))}"
            )
    async with open_log(options) as log:
        await check_database(log, options.system_id)


async def serve(options: argparse.Namespace, command: list[str]) -> None:
    """Runs a server until it is no longer needed or receives SIGTERM."""
    server = RestoreServer(options, command)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.over.set)
    await server.serve()


def _run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
        return
    uvloop.run(work)


def main() -> int:
    """Runs the server unless another one runs. Returns the exit code; with `--check`, 1 if it could not work."""
    parser = argparse.ArgumentParser(prog="python -m ottla.connect.postgres_wal.restore_server")
    add_log_options(parser)
    parser.add_argument("--spool-mb", type=int, default=SPOOL_BYTES >> 20)
    parser.add_argument("--check", metavar="DIRECTORY", help="only check whether it would work for this data directory")
    options = parser.parse_args()
    if options.check is not None:
        try:
            asyncio.run(check(options))
        except PostgresError as failure:
            print(failure, file=sys.stderr)
            return 1
        return 0
    lock = take_spool()
    if lock is None:
        print("another runs", flush=True)
        return 0
    try:
        _run_on_loop(serve(options, [*sys.orig_argv]))
    finally:
        give_up_spool(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
