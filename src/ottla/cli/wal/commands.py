"""`ottla wal`: a write-ahead log on the command line, through the append stream."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from ottla.cli.failures import CommandError
from ottla.cli.number_options import INT32_MAX, INT64_MAX
from ottla.cli.output import AsJson, print_json, say
from ottla.cli.wal.options import DEFAULT_WAL, OLD_WAL_VARIABLE, WAL_VARIABLE, check_servers
from ottla.protocol.model.addresses import split_address

if TYPE_CHECKING:
    from ottla.wal import Log

PATIENCE_S = 15.0
CONNECT_S = 5.0
REFUSALS = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
IS_IT_A_WAL_PORT = "Start the brokers with `ottla up --wal-port 9192`, and choose the port with --servers"
T = TypeVar("T")

commands = typer.Typer(help="Appends to, reads, trims and fences write-ahead logs.", no_args_is_help=True)
Servers = Annotated[
    str,
    typer.Option(
        "--servers",
        "-s",
        "--wal",
        envvar=[WAL_VARIABLE, OLD_WAL_VARIABLE],
        metavar="HOST:PORT,...",
        callback=check_servers,
        help="Connect to the brokers' append streams at these addresses (`ottla up --wal-port`).",
    ),
]
Topic = Annotated[str, typer.Argument(help="The topic of the log.")]
Partition = Annotated[int, typer.Option(min=0, max=INT32_MAX, help="The partition of the log.")]


@commands.command("append")
def append(
    topic: Topic,
    file: Annotated[Path | None, typer.Argument(help="The file with one record per line; by default stdin.")] = None,
    servers: Servers = DEFAULT_WAL,
    partition: Partition = 0,
    create: Annotated[bool, typer.Option("--create", help="Create the log if it does not exist.")] = False,
    fence: Annotated[bool, typer.Option("--fence", help="Become the single writer first.")] = False,
    acks: Annotated[
        Literal["all", "leader", "none"],
        typer.Option(help="The replicas that must have a record before it is acknowledged."),
    ] = "all",
) -> None:
    """Appends lines as records, and prints their offsets."""
    from ottla.wal import LogSettings

    async def work(log: Log) -> tuple[int, int, int]:
        futures = []
        with sys.stdin.buffer if file is None else file.open("rb") as lines:
            for line in lines:
                await log.ready()
                futures.append(log.append(line.rstrip(b"\n")))
                if len(futures) % 1000 == 0:
                    await asyncio.sleep(0)
        offsets = await asyncio.gather(*futures)
        return len(offsets), min(offsets, default=0), max(offsets, default=0)

    options = {"create": LogSettings() if create else None, "fence": fence, "acks": acks}
    count, first, last = _with_log(servers, topic, partition, work, **options)
    say(f"{count} records appended" + (f", at the offsets {first} to {last}" if count else ""))


@commands.command("read")
def read(
    topic: Topic,
    servers: Servers = DEFAULT_WAL,
    partition: Partition = 0,
    first: Annotated[
        int | None,
        typer.Option("--from", min=0, max=INT64_MAX, help="Start at this offset; by default the start of the log."),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(min=0, max=INT64_MAX, help="Stop before this offset; by default the current end of the log."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new records as they arrive.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Print the offset and a tab before each record.")] = False,
) -> None:
    """Prints records, one per line."""

    async def work(log: Log) -> None:
        start = (await log.tail()).start_offset if first is None else first
        chunks = log.follow_chunks(start) if follow else log.read_chunks(start, until)
        async for chunk in chunks:
            out = b"".join((b"%d\t" % entry.offset if offsets else b"") + entry.data + b"\n" for entry in chunk)
            sys.stdout.buffer.write(out)
            sys.stdout.buffer.flush()

    _with_log(servers, topic, partition, work)


@commands.command("tail")
def tail(topic: Topic, servers: Servers = DEFAULT_WAL, partition: Partition = 0, as_json: AsJson = False) -> None:
    """Shows where the log begins and ends, and the epoch of its single writer."""

    async def work(log: Log) -> tuple[int, int, int]:
        return await log.tail()

    start, end, epoch = _with_log(servers, topic, partition, work)
    if as_json:
        print_json({"start_offset": start, "end_offset": end, "epoch": epoch})
    else:
        print(f"start {start}\nend {end}\nepoch {epoch or 'none: any client may write'}")


@commands.command("trim")
def trim(
    topic: Topic,
    before: Annotated[int, typer.Argument(min=0, max=INT64_MAX, help="Delete the records below this offset.")],
    servers: Servers = DEFAULT_WAL,
    partition: Partition = 0,
) -> None:
    """Deletes the oldest records."""

    async def work(log: Log) -> int:
        return await log.trim(before)

    say(f"the log starts at {_with_log(servers, topic, partition, work)}")


@commands.command("fence")
def fence(topic: Topic, servers: Servers = DEFAULT_WAL, partition: Partition = 0) -> None:
    """Fences the current writer of the log."""

    async def work(log: Log) -> tuple[int | None, int | None]:
        return log.epoch, log.fence_offset

    epoch, offset = _with_log(servers, topic, partition, work, fence=True)
    say(f"fenced at offset {offset}, epoch {epoch}; earlier writers are now rejected")


def _with_log(
    servers: str, topic: str, partition: int, work: Callable[[Log], Coroutine[Any, Any, T]], **options: Any
) -> T:
    try:
        from ottla.wal import Log, UnavailableError, WalError
    except ImportError as failure:
        raise CommandError(f"'{failure.name}' is not installed: pip install 'ottla[wal]'") from failure
    from ottla.wal.values import Limits

    async def run() -> T:
        await _check_somebody_listens(servers)
        limits = Limits(patience_s=PATIENCE_S)
        async with await Log.open(servers, topic, partition=partition, limits=limits, **options) as log:
            return await work(log)

    try:
        return asyncio.run(run())
    except UnavailableError as failure:
        raise CommandError(f"{failure}. {IS_IT_A_WAL_PORT}") from failure
    except (WalError, ValueError) as failure:
        raise CommandError(str(failure)) from failure


async def _check_somebody_listens(servers: str) -> None:
    """Raises FailedError at once if no address accepts a connection, because waiting for a leader would be futile."""
    reasons = []
    for address in filter(None, map(str.strip, servers.split(","))):
        host, port = split_address(address)
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
        except TimeoutError:
            reasons.append(f"{address} did not respond within {CONNECT_S:g} s")
        except OSError as failure:
            reasons.append(f"{address}: {os.strerror(failure.errno).lower() if failure.errno in REFUSALS else failure}")
        else:
            writer.close()
            return
    raise CommandError(f"no append stream: {'; '.join(reasons)}. {IS_IT_A_WAL_PORT}")
