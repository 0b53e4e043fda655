"""`ottla up`: runs one broker in the foreground.

Nothing is imported here that the broker does not need: an idle broker stays small and starts fast.
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
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import FailedError

if TYPE_CHECKING:
    from ottla.app import BrokerSettings, RunningBroker

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092

log = logging.getLogger("ottla.up")


class Storage(StrEnum):
    disk = "disk"
    cache = "cache"
    memory = "memory"


class DiskKind(StrEnum):
    real = "real"
    volatile = "volatile"


def up(
    host: Annotated[str | None, typer.Option(help=f"The address to listen on.  [default: {DEFAULT_HOST}]")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help=f"The port; 0 takes a free one.  [default: {DEFAULT_PORT}]"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The data directory.  [default: ottla in the user's state directory]")
    ] = None,
    storage: Annotated[
        Storage | None, typer.Option(help="The durability of topics that do not name one.  [default: disk]")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A configuration file: .properties, or .toml.")] = None,
    brokers: Annotated[
        int, typer.Option(min=1, max=100, help="How many brokers, on ports that follow one another.")
    ] = 1,
    disk: Annotated[DiskKind, typer.Option(hidden=True)] = DiskKind.real,
    fault_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Runs a broker, or a cluster of several on this machine, until SIGINT or SIGTERM.

    Prints `ottla ready bootstrap=HOST:PORT[,...]` on stdout when it serves; everything else goes to stderr.
    """
    _log_to_stderr(log_level)
    settings = _settings(host, port, data, storage, config)
    settings.disk = "volatile" if disk is DiskKind.volatile else "real"
    settings.fault_file = None if fault_file is None else str(fault_file)
    _raise_open_files_limit()
    if brokers > 1:
        _run_many(settings, brokers, log_level)
    else:
        _run(settings)


def _raise_open_files_limit() -> None:
    """Each connection and each open segment takes a descriptor: as many as this user may have."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS refuses some limits: the old one stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def default_data_dir() -> Path:
    """Where programs keep state that outlives them: XDG's choice."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "ottla"


def _settings(
    host: str | None, port: int | None, data: Path | None, storage: Storage | None, config: Path | None
) -> BrokerSettings:
    """Options win over the file, the file over the defaults."""
    from ottla.app import BrokerSettings
    from ottla.cli.config_file import FileSettings, read_config_file
    from ottla.model.durability import Durability

    found = FileSettings({}) if config is None else read_config_file(config)
    chosen_data = data or (Path(found.data_dir) if found.data_dir else default_data_dir())
    return BrokerSettings(
        data_dir=str(chosen_data.expanduser()),
        host=host or found.host or DEFAULT_HOST,
        port=port if port is not None else found.port if found.port is not None else DEFAULT_PORT,
        storage=None if storage is None else Durability(storage.value),
        properties=found.properties,
        advertised_host=found.advertised_host,
    )


def _run(settings: BrokerSettings) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(settings))
    else:
        uvloop.run(_serve(settings))


def _run_many(settings: BrokerSettings, count: int, log_level: str) -> None:
    from ottla.cli.up_many import serve_many, write_settings

    files = write_settings(settings, count)
    log.warning(
        "all %d brokers are on this machine: replicas share it, and are lost with it (ottla.host.shared=true)", count
    )

    async def serve() -> None:
        reason = await serve_many(files, log_level, _stop_on_signals())
        log.info("stopped on %s", reason)

    asyncio.run(serve())


async def _serve(settings: BrokerSettings) -> None:
    stopped = _stop_on_signals()
    running = await _start(settings)
    _calm_collector()
    for warning in running.warnings:
        log.warning(warning)
    log.info("data in %s, process %d", os.path.abspath(settings.data_dir), os.getpid())
    _say_ready(running.bootstrap)
    reason = await stopped
    log.info("stopping on %s", reason)
    await running.stop()
    log.info("stopped")


def _calm_collector() -> None:
    """What lives now lives for ever, and what a broker allocates is freed by reference counts: the collector has
    little to find, and a full collection over a large cache is a pause that every client sees."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


async def _start(settings: BrokerSettings) -> RunningBroker:
    """Turns what can go wrong at the start into sentences."""
    from ottla.adapters.data_dir import UnusableDirectoryError
    from ottla.adapters.lock import DirectoryInUseError
    from ottla.app import BadSettingsError, start_broker

    try:
        return await start_broker(settings)
    except (BadSettingsError, DirectoryInUseError, UnusableDirectoryError) as failure:
        raise FailedError(str(failure)) from failure
    except socket.gaierror as failure:
        raise FailedError(f"the address {settings.host} is not known: {failure.strerror}") from failure
    except OSError as failure:
        raise FailedError(_os_sentence(settings, failure)) from failure


def _os_sentence(settings: BrokerSettings, failure: OSError) -> str:
    where = f"{settings.host}:{settings.port}"
    if failure.errno == errno.EADDRINUSE:
        return f"{where} is already in use, perhaps by another broker: stop that one, or choose another --port"
    if failure.errno == errno.EADDRNOTAVAIL:
        return f"this machine does not have the address {settings.host}: choose another --host"
    if failure.errno == errno.EACCES and failure.filename is None and settings.port < 1024:
        return f"port {settings.port} is reserved for the administrator: choose one above 1023 with --port"
    reason = (failure.strerror or str(failure)).lower()
    path = failure.filename or settings.data_dir
    return f"the data directory {settings.data_dir} cannot be used: {path}: {reason}; choose another one with --data"


def _stop_on_signals() -> asyncio.Future[str]:
    """The first signal asks the broker to stop, a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()

    def on_signal(number: signal.Signals) -> None:
        if stopped.done():
            os._exit(128 + number)
        stopped.set_result(number.name)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return stopped


def _say_ready(bootstrap: str) -> None:
    try:
        print(f"ottla ready bootstrap={bootstrap}", flush=True)
    except BrokenPipeError:
        log.warning("nobody reads the line that says where this broker serves: %s", bootstrap)


def _log_to_stderr(level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise typer.BadParameter(f"--log-level is debug, info, warning or error, not {level}")
    logging.basicConfig(level=number, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
