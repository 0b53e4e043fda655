"""Runs one broker in this process until a signal arrives. Shared by `ottla up --brokers 1` and `ottla broker`.

This module imports nothing that a broker does not need, so that an idle broker stays small and starts fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import typer

from ottla.cli.failures import CommandError
from ottla.cli.up.service_notice import notify_service

if TYPE_CHECKING:
    from ottla.broker.app import BrokerSettings, RunningBroker

READY = "ottla ready bootstrap="
ALL_ADDRESSES = ("0.0.0.0", "::", "")
ADVERTISES_LOOPBACK = (
    "this broker listens on every address (%s) but advertises %s, so clients on other machines cannot connect "
    "to it; set an address that they can reach with --advertise HOST, or with advertised.listeners in the "
    "configuration file"
)
STDIN_CLOSED = "the end of its parent"

log = logging.getLogger("ottla.up")


def log_to_stderr(level: str) -> None:
    """Sends log messages to stderr."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise typer.BadParameter(f"--log-level must be debug, info, warning or error, not {level}")
    logging.basicConfig(level=number, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def warn_of_missing_extensions() -> None:
    """Warns about missing extensions. Only the process that a user starts calls it, so `ottla up` warns once."""
    from ottla.extensions import missing_sentence

    sentence = missing_sentence()
    if sentence is not None:
        log.warning(sentence)


def run_broker(settings: BrokerSettings, *, ends_with_stdin: bool = False) -> None:
    """Serves until SIGINT or SIGTERM or, for a child of `ottla up`, until its parent ends."""
    _raise_open_files_limit()
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(settings, ends_with_stdin))
    else:
        uvloop.run(_serve(settings, ends_with_stdin))


def _raise_open_files_limit() -> None:
    """Raises the soft limit to the hard limit, because each connection and each open segment takes a descriptor."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS rejects some limits; then the old one stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(settings: BrokerSettings, ends_with_stdin: bool) -> None:
    stopped = stop_on_signals()
    if ends_with_stdin:
        await _stop_at_end_of_stdin(stopped)
    running = await _started(settings, stopped)
    if running is None:
        log.info("stopped on %s before serving", stopped.result())
        return
    _calm_collector()
    for warning in running.warnings:
        log.warning(warning)
    if settings.advertised_host is None and settings.host in ALL_ADDRESSES:
        log.warning(ADVERTISES_LOOPBACK, settings.host, running.bootstrap)
    log.info("data in %s, process %d", os.path.abspath(settings.data_dir), os.getpid())
    if running.metrics is not None:
        log.info("metrics at %s", running.metrics.url)
    if running.wal_server is not None:
        log.info("append stream at %s", running.wal_server)
    say_ready(running.bootstrap)
    notify_service("READY=1", f"STATUS=serving at {running.bootstrap}")
    reason = await stopped
    log.info("stopping on %s", reason)
    notify_service("STOPPING=1", "STATUS=handing over and syncing all data")
    await running.stop()
    log.info("stopped")


async def _started(settings: BrokerSettings, stopped: asyncio.Future[str]) -> RunningBroker | None:
    """Starts the broker. Returns None if a stop was requested first.

    A broker may wait for its coordination store forever.
    """
    starting = asyncio.ensure_future(_start(settings))
    either: list[asyncio.Future[Any]] = [starting, stopped]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        return starting.result()
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await starting
    return None


def _calm_collector() -> None:
    """Makes the garbage collector run rarely.

    Objects alive now stay alive, and reference counts free what a broker allocates, so the collector finds little. A
    full collection over a large cache is a pause that every client notices.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


async def _start(settings: BrokerSettings) -> RunningBroker:
    """Starts the broker and turns the expected failures into error messages."""
    from ottla.broker.adapters.data_dir import UnusableDirectoryError
    from ottla.broker.adapters.lock import DirectoryInUseError
    from ottla.broker.app import start_broker
    from ottla.broker.app_listeners import BadSettingsError

    try:
        return await start_broker(settings)
    except (BadSettingsError, DirectoryInUseError, UnusableDirectoryError) as failure:
        raise CommandError(str(failure)) from failure
    except socket.gaierror as failure:
        raise CommandError(f"the address {settings.host} is unknown: {failure.strerror}") from failure
    except OSError as failure:
        raise CommandError(_os_sentence(settings, failure)) from failure


def _os_sentence(settings: BrokerSettings, failure: OSError) -> str:
    where = f"{settings.host}:{settings.port}"
    if failure.errno == errno.EADDRINUSE:
        return f"{where} is already in use, perhaps by another broker; stop that broker, or choose another --port"
    if failure.errno == errno.EADDRNOTAVAIL:
        return f"this machine does not have the address {settings.host}; choose another --host"
    if failure.errno == errno.EACCES and failure.filename is None and settings.port < 1024:
        return f"port {settings.port} is reserved for the administrator; choose one above 1023 with --port"
    reason = (failure.strerror or str(failure)).lower()
    path = failure.filename or settings.data_dir
    return f"the data directory {settings.data_dir} cannot be used: {path}: {reason}; choose another one with --data"


def stop_on_signals() -> asyncio.Future[str]:
    """Returns a future that the first signal completes. A second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()

    def on_signal(number: signal.Signals) -> None:
        if stopped.done():
            os._exit(128 + number)
        stopped.set_result(number.name)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return stopped


async def _stop_at_end_of_stdin(stopped: asyncio.Future[str]) -> None:
    """Requests a stop when stdin closes. A killed parent cannot stop its brokers, but its end of the pipe closes."""

    class Parent(asyncio.Protocol):
        def connection_lost(self, error: Exception | None) -> None:
            if not stopped.done():
                stopped.set_result(STDIN_CLOSED)

    await asyncio.get_running_loop().connect_read_pipe(Parent, sys.stdin)


def say_ready(bootstrap: str) -> None:
    """Prints the line that announces the addresses."""
    try:
        print(f"{READY}{bootstrap}", flush=True)
    except BrokenPipeError:
        log.warning("could not write the ready line to stdout; serving at %s", bootstrap)
