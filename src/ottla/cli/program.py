"""Puts the commands together and turns failures into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ottla import __version__
from ottla.cli import (
    backup,
    bench,
    broker,
    cluster,
    connect,
    consume,
    dlq,
    doctor,
    groups,
    log_files,
    pipeline,
    produce,
    restore,
    sql,
    topics,
    transactions,
    up,
    wal,
)
from ottla.cli.failures import FAILURE, INTERRUPTED, report, want_debug

program = typer.Typer(
    name="ottla",
    help="A write-ahead log that speaks the Kafka protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
program.command("up")(up.up)
program.add_typer(broker.commands, name="broker")
program.add_typer(cluster.commands, name="cluster")
program.add_typer(topics.commands, name="topics")
program.add_typer(groups.commands, name="groups")
program.add_typer(transactions.commands, name="transactions")
program.add_typer(wal.commands, name="wal")
program.command("produce")(produce.produce)
program.command("consume")(consume.consume)
program.add_typer(log_files.commands, name="log")
program.command("doctor")(doctor.doctor)
program.add_typer(bench.commands, name="bench")
program.add_typer(connect.commands, name="connect")
program.add_typer(dlq.commands, name="dlq")
program.add_typer(pipeline.commands, name="pipeline")
program.command("sql")(sql.sql)
program.add_typer(backup.commands, name="backup")
program.add_typer(restore.commands, name="restore")


@program.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code a failure happened.")] = False,
) -> None:
    if debug:
        want_debug()


@program.command("version")
def version() -> None:
    """Prints the version."""
    typer.echo(f"ottla {__version__}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code."""
    try:
        program(args=None if arguments is None else list(arguments), prog_name="ottla")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer's way of passing it on
            _forget_output()
            return 0
        return end.code if isinstance(end.code, int) else (0 if end.code is None else FAILURE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
    except Exception as failure:
        return report(failure)
    return 0


def _forget_output() -> None:
    """The reader of our output has gone: that is how `| head` ends, not a failure. Nothing is written any more."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
