"""`ottla up`: runs a cluster of three brokers on this machine, or a standalone broker, in the foreground."""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.address_options import check_host
from ottla.cli.failures import CommandError
from ottla.cli.up.broker_runtime import log_to_stderr, run_broker, warn_of_missing_extensions
from ottla.cli.up.data_layout import brokers_to_run
from ottla.cli.up.port_settings import METRICS_PORT, WAL_PORT

if TYPE_CHECKING:
    from ottla.broker.app import BrokerSettings

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092
DEFAULT_BROKERS = 3

log = logging.getLogger("ottla.up")


class Storage(StrEnum):
    """The default durability of topics."""

    disk = "disk"
    cache = "cache"
    memory = "memory"


class DiskKind(StrEnum):
    """The kind of disk. `volatile` keeps unsynced data in memory, for tests of power cuts."""

    real = "real"
    volatile = "volatile"


LogLevel = Annotated[str, typer.Option(help="Set the log level: debug, info, warning or error.")]


Advertise = Annotated[
    str | None,
    typer.Option(
        metavar="HOST",
        callback=check_host,
        help="Advertise this host name or address to clients (default: that of --host).",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Serve Prometheus metrics at http://127.0.0.1:PORT/metrics (default: no metrics); the first broker uses "
        "this port and the others the next ones; 0 chooses free ports.",
    ),
]
WalPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Serve the append stream for write-ahead logs over gRPC (default: no append stream); the first broker "
        "uses this port and the others the next ones; 0 chooses free ports.",
    ),
]


def up(
    host: Annotated[
        str | None, typer.Option(callback=check_host, help=f"Listen on this address (default: {DEFAULT_HOST}).")
    ] = None,
    advertise: Advertise = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help=f"The port of the first broker (default: {DEFAULT_PORT}); the others use the next ones; "
            "0 chooses free ports.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The data directory (default: ottla in the user's state directory).")
    ] = None,
    storage: Annotated[
        Storage | None, typer.Option(help="The durability of topics that are created without one (default: disk).")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A configuration file: .properties, or .toml.")] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help=f"The number of brokers (default: {DEFAULT_BROKERS}, or as many as the data directory has).",
        ),
    ] = None,
    metrics_port: MetricsPort = None,
    wal_port: WalPort = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Encrypt and authenticate (TLS and SCRAM). Creates certificates and passwords at the first start, and "
            "client.properties in the data directory, for `ottla --config`.",
        ),
    ] = False,
    disk: Annotated[DiskKind, typer.Option(hidden=True)] = DiskKind.real,
    fault_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
    log_level: LogLevel = "info",
) -> None:
    """Runs a cluster of three brokers on this machine until SIGINT or SIGTERM; with `--brokers 1`, a standalone broker.

    Prints `ottla ready bootstrap=HOST:PORT[,...]` on stdout when all brokers are ready; everything else goes to stderr.
    """
    from ottla.protocol.model.group_keys import DEVELOPMENT_DEFAULTS

    log_to_stderr(log_level)
    settings = settings_from(host, port, data, storage, config)
    if advertise is not None:
        settings.advertised_host = advertise.removeprefix("[").removesuffix("]")
    settings.properties = {**DEVELOPMENT_DEFAULTS, **settings.properties}
    settings.disk = "volatile" if disk is DiskKind.volatile else "real"
    settings.fault_file = None if fault_file is None else str(fault_file)
    if metrics_port is not None:
        settings.properties[METRICS_PORT] = str(metrics_port)
    if wal_port is not None:
        settings.properties[WAL_PORT] = str(wal_port)
    _secure(settings, is_wanted=secure)
    count = brokers_to_run(settings, brokers, DEFAULT_BROKERS, config)
    warn_of_missing_extensions()
    if count == 1:
        run_broker(settings)
    else:
        _run_many(settings, count, log_level)


def _secure(settings: BrokerSettings, *, is_wanted: bool) -> None:
    """Adds security if it is wanted. A cluster that was secured never starts without it."""
    if is_wanted:
        from ottla.cli.up.secure import secure

        log.info("clients use the settings in %s", secure(settings))
    elif (Path(settings.data_dir) / "security" / "ca.key").exists():
        raise CommandError(f"the cluster in {settings.data_dir} was created with --secure; add --secure")


def _run_many(settings: BrokerSettings, count: int, log_level: str) -> None:
    import asyncio

    from ottla.cli.up.cluster import Cluster

    asyncio.run(Cluster(settings, count, log_level).run())


def default_data_dir() -> Path:
    """Returns the XDG state directory, the place for state that outlives a program."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "ottla"


def settings_from(
    host: str | None, port: int | None, data: Path | None, storage: Storage | None, config: Path | None
) -> BrokerSettings:
    """Merges the settings. Options take precedence over the file, and the file over the defaults."""
    from ottla.broker.app import BrokerSettings
    from ottla.cli.up.config_file import FileSettings, read_config_file
    from ottla.protocol.model.durability import Durability

    found = FileSettings({}) if config is None else read_config_file(config)
    for notice in found.notices:
        log.warning("%s: %s", config, notice)
    chosen_data = data or (Path(found.data_dir) if found.data_dir else default_data_dir())
    client = found.listeners.client
    return BrokerSettings(
        data_dir=str(chosen_data.expanduser()),
        host=host or client.host or DEFAULT_HOST,
        port=port if port is not None else client.port if client.port is not None else DEFAULT_PORT,
        storage=None if storage is None else Durability(storage.value),
        properties=found.properties,
        advertised_host=client.advertised_host,
        advertised_port=client.advertised_port if port is None else None,
        listeners=found.listeners,
    )
