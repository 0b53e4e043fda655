"""Assembles the commands and turns failures into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from ottla import __version__
from ottla.cli.client_security import choose_file
from ottla.cli.failures import FAILURE, INTERRUPTED, report, want_debug

MODULES = {
    "up": "up.commands",
    "broker": "up.broker",
    "cluster": "cluster.commands",
    "topics": "topics",
    "groups": "groups.commands",
    "transactions": "transactions.commands",
    "users": "users",
    "certs": "certs",
    "wal": "wal.commands",
    "produce": "records.produce",
    "consume": "records.consume",
    "log": "log.commands",
    "doctor": "doctor.commands",
    "tune": "tune.commands",
    "bench": "bench",
    "connect": "connect.commands",
    "dlq": "records.dlq",
    "pipeline": "pipeline.commands",
    "sql": "sql.commands",
    "backup": "restore.backup",
    "restore": "restore.commands",
}
"""The module of each command, in help order. It has a function named after the command, or a group named `commands`."""


def program_of(names: Iterable[str]) -> typer.Typer:
    """Builds the program with these commands only, so that a broker need not keep the pipeline's modules in memory."""
    program = typer.Typer(
        name="ottla",
        help="A write-ahead log that speaks the Kafka protocol.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        module = import_module(f"ottla.cli.{MODULES[name]}")
        group = getattr(module, "commands", None)
        if group is None:
            program.command(name)(getattr(module, name))
        else:
            program.add_typer(group, name=name)
    program.callback()(options)
    program.command("version")(version)
    return program


def options(
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of a failure.")] = False,
    _: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A file with Kafka's client properties (security.protocol, sasl.*, ssl.*) for connections to brokers; "
            "also the variable OTTLA_CONFIG.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Applies the options that precede a command."""
    if debug:
        want_debug()
    if config is not None:
        choose_file(config)


def version() -> None:
    """Prints the version."""
    typer.echo(f"ottla {__version__}")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        version()
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    named = next((each for each in arguments if not each.startswith("-")), None)
    try:
        chosen = [named] if named in MODULES else [] if named == "version" else MODULES
        program_of(chosen)(args=arguments, prog_name="ottla")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer passes it on as the context
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
    """Redirects stdout to /dev/null after its reader has closed it, as in `| head`, which is not a failure."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
