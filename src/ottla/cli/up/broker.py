"""`ottla broker`: runs one broker of a cluster in the foreground; `ottla broker drain` moves replicas off a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.address_options import check_host
from ottla.cli.cluster.drain import drain
from ottla.cli.failures import CommandError
from ottla.cli.up.broker_runtime import log_to_stderr, run_broker, warn_of_missing_extensions
from ottla.cli.up.commands import DiskKind, LogLevel, settings_from

if TYPE_CHECKING:
    from ottla.broker.app import BrokerSettings

NEEDED = {
    "node.id": "the id of this broker, unique in the cluster",
    "ottla.coordination": (
        "the coordination store of the cluster: etcd:HOST:PORT,.../NAME, zookeeper:HOST:PORT,.../NAME or, on one "
        "machine, sqlite:DIRECTORY"
    ),
}
"""Settings that a broker of a cluster must have because no default is possible, with their meanings."""

commands = typer.Typer(help="Runs one broker of a cluster, or drains one.", invoke_without_command=True)
commands.command("drain")(drain)


@commands.callback()
def broker(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(help="The configuration file of the broker: .properties, or .toml.", show_default=False),
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Override the port in the file.")] = None,
    data: Annotated[Path | None, typer.Option(help="Override the data directory in the file.")] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST", callback=check_host, help="Advertise this host to clients."),
    ] = None,
    disk: Annotated[DiskKind, typer.Option(hidden=True)] = DiskKind.real,
    fault_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
    ends_with_stdin: Annotated[bool, typer.Option("--ends-with-stdin", hidden=True)] = False,
    log_level: LogLevel = "info",
) -> None:
    """Runs one broker of a cluster until SIGINT or SIGTERM, with the settings in a file.

    Prints `ottla ready bootstrap=HOST:PORT` on stdout when the broker is ready; everything else goes to stderr.
    """
    if context.invoked_subcommand is not None:
        if config is not None:
            raise typer.BadParameter(f"--config cannot be used with `ottla broker {context.invoked_subcommand}`")
        return
    if config is None:
        raise typer.BadParameter("give the broker's configuration file: --config FILE")
    log_to_stderr(log_level)
    settings = settings_from(None, port, data, None, config)
    if advertise is not None:
        settings.advertised_host = advertise.removeprefix("[").removesuffix("]")
    _demand_cluster_settings(settings, config, data)
    settings.disk = "volatile" if disk is DiskKind.volatile else "real"
    settings.fault_file = None if fault_file is None else str(fault_file)
    if not ends_with_stdin:  # for a child of `ottla up`, the parent has warned already
        warn_of_missing_extensions()
    run_broker(settings, ends_with_stdin=ends_with_stdin)


def _demand_cluster_settings(settings: BrokerSettings, config: Path, data: Path | None) -> None:
    """Raises FailedError if a required setting is missing or invalid.

    Without its coordination store, a broker would start a cluster of its own and look healthy.
    """
    from ottla.cli.up.config_file import read_config_file
    from ottla.coordination.store_factory import BadCoordinationError, parse_place

    for name, meaning in NEEDED.items():
        if name not in settings.properties:
            raise CommandError(f"{config} does not set {name}: {meaning}")
    if data is None and read_config_file(config).data_dir is None:
        raise CommandError(f"{config} does not set log.dirs: the directory for the data of this broker")
    try:
        parse_place(settings.properties["ottla.coordination"])
    except BadCoordinationError as failure:
        raise CommandError(f"{config}: {failure}") from failure
