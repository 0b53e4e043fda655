"""`ottla connect sqlite`: follows a database and ships its transactions into a log."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.output import say
from ottla.cli.sqlite_options import DEFAULT_WAL, LogName, WalServers, failures_in_words, seconds_of

if TYPE_CHECKING:
    from ottla.wal import SyncLog

_PATIENCE_S = 10.0


def sqlite(
    database: Annotated[Path, typer.Argument(metavar="DB", help="The file of the database.", show_default=False)],
    log: LogName,
    wal: WalServers = DEFAULT_WAL,
    replicas: Annotated[int | None, typer.Option(help="Of a new log. Without it: the brokers' default.")] = None,
    durability: Annotated[str | None, typer.Option(help="Of a new log: disk, cache or memory.")] = None,
    snapshot_every: Annotated[
        str, typer.Option(help="How often a snapshot goes into the log, if there is news.")
    ] = "1d",
    keep: Annotated[
        str, typer.Option(help="Any moment of this time can be restored; 'all' never gives up any.")
    ] = "7d",
    checkpoint_mb: Annotated[int, typer.Option(min=1, help="How large the WAL gets before it is begun anew.")] = 4,
    wal_mb_max: Annotated[int, typer.Option(min=1, help="How large it gets at most, if the log is not there.")] = 4096,
) -> None:
    """Ships each committed transaction of an SQLite database into a log, until it is stopped."""
    every_s = seconds_of(snapshot_every, "--snapshot-every")
    keep_s = None if keep == "all" else seconds_of(keep, "--keep")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with failures_in_words():
        from ottla.connect.sqlite.running import Shipping, ShippingSettings

        settings = ShippingSettings(
            database,
            lambda: _open(wal, log, replicas, durability),
            snapshot_every_s=every_s,
            keep_s=keep_s,
            checkpoint_bytes=checkpoint_mb << 20,
            wal_bytes_max=wal_mb_max << 20,
        )
        Shipping(settings, _news, stopping).run()


def _open(wal: str, log: str, replicas: int | None, durability: str | None) -> SyncLog:
    from ottla.wal import LogSettings, SyncLog
    from ottla.wal.log import Limits

    new = LogSettings(replicas=replicas, durability=durability, retention_ms=-1)
    return SyncLog.open(wal, log, create=new, fence=True, limits=Limits(patience_s=_PATIENCE_S))


def _news(sentence: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} {sentence}")
