"""`ottla connect postgres-wal`: stores the WAL of a PostgreSQL server in a log; commits can wait for it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.output import bootstrap_option, say
from ottla.cli.wal.options import (
    DEFAULT_LOG,
    DEFAULT_WAL,
    Dsn,
    LogName,
    NewLogDurability,
    NewLogReplicas,
    WalServers,
    run_postgres,
    until_stopped,
)

if TYPE_CHECKING:
    from ottla.connect.postgres_wal.receiver import Receiver


def postgres_wal(
    dsn: Dsn = "",
    wal: WalServers = DEFAULT_WAL,
    log: LogName = DEFAULT_LOG,
    slot: Annotated[
        str, typer.Option(help="Use this replication slot on the server, and create it if it does not exist.")
    ] = "ottla",
    name: Annotated[str, typer.Option(help="The application_name, as in synchronous_standby_names.")] = "ottla",
    replicas: NewLogReplicas = None,
    durability: NewLogDurability = None,
    bootstrap: Annotated[
        str | None, bootstrap_option("Report the status to these brokers, for `ottla connect status`.")
    ] = None,
    unbounded_slot: Annotated[
        bool, typer.Option("--unbounded-slot", help="Continue even if max_slot_wal_keep_size is -1.")
    ] = False,
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Continue even if the server has removed WAL that the log lacks.")
    ] = False,
) -> None:
    """Receives the server's WAL as a synchronous standby does, and stores it in a log. Runs until it is stopped.

    With synchronous_standby_names = 'ottla' on the server, a commit returns when its WAL is on the log's replicas.
    """

    async def work() -> None:
        from ottla.connect.postgres_wal.log_location import LogLocation, settings_of_new_log
        from ottla.connect.postgres_wal.receiver import Receiver, ReceiverSettings

        place, new = LogLocation(wal, log), settings_of_new_log(replicas, durability)
        settings = ReceiverSettings(
            dsn, slot=slot, application_name=name, unbounded_slot=unbounded_slot, accept_gap=accept_gap
        )
        receiver = Receiver(settings, lambda fence: place.open(fence=fence, create=new), _news)
        await until_stopped(_keep(receiver, bootstrap, f"{name}-{log}"))

    run_postgres(work())


async def _keep(receiver: Receiver, bootstrap: str | None, name: str) -> None:
    """Runs the receiver and, if `bootstrap` is given, reports its status to that cluster."""
    from ottla.connect.postgres_wal.status_reports import report_status

    reporting = None if bootstrap is None else asyncio.create_task(report_status(bootstrap, name, receiver, _news))
    try:
        await receiver.run()
    finally:
        if reporting is not None:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)


def _news(sentence: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} {sentence}")
