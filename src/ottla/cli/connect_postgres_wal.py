"""`ottla connect postgres-wal`: a PostgreSQL server's WAL, kept on the log; commits can wait for it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ottla.cli.output import say
from ottla.cli.wal_options import DEFAULT_LOG, DEFAULT_WAL, Dsn, LogName, WalServers, run_postgres, until_stopped


def postgres_wal(
    dsn: Dsn = "",
    wal: WalServers = DEFAULT_WAL,
    log: LogName = DEFAULT_LOG,
    slot: Annotated[str, typer.Option(help="The replication slot on the server; made if it is not there.")] = "ottla",
    name: Annotated[str, typer.Option(help="As synchronous_standby_names has it (application_name).")] = "ottla",
    replicas: Annotated[int | None, typer.Option(help="Of a new log. Without it: the brokers' default.")] = None,
    durability: Annotated[str | None, typer.Option(help="Of a new log: disk, cache or memory.")] = None,
    unbounded_slot: Annotated[
        bool, typer.Option("--unbounded-slot", help="Go on although max_slot_wal_keep_size is -1.")
    ] = False,
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Go on although the server has removed WAL that the log lacks.")
    ] = False,
) -> None:
    """Receives the server's WAL as a synchronous standby does, and stores it in a log. Runs until it is stopped.

    With synchronous_standby_names = 'ottla' on the server, a commit returns when its WAL is on the log's replicas.
    """

    async def work() -> None:
        from ottla.connect.postgres_wal.opening import LogPlace, settings_of_new_log
        from ottla.connect.postgres_wal.receiver import Receiver, ReceiverSettings

        place, new = LogPlace(wal, log), settings_of_new_log(replicas, durability)
        settings = ReceiverSettings(
            dsn, slot=slot, application_name=name, unbounded_slot=unbounded_slot, accept_gap=accept_gap
        )
        receiver = Receiver(settings, lambda fence: place.open(fence=fence, create=new), _news)
        await until_stopped(receiver.run())

    run_postgres(work())


def _news(sentence: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} {sentence}")
