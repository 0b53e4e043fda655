"""`ottla connect run`, `status` and `reset`."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connect.connector_runs import failures_in_words, run_connectors
from ottla.cli.failures import CommandError
from ottla.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    bootstrap_option,
    print_json,
    print_table,
    run,
    say,
)

if TYPE_CHECKING:
    from ottla.connect.status import Status


def run_file(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The TOML file with a table connector.NAME for each connector.", show_default=False
        ),
    ],
    bootstrap: Annotated[str | None, bootstrap_option("Connect to these brokers instead of those in the file.")] = None,
) -> None:
    """Runs the connectors defined in a file, each in its own process, until Ctrl-C."""
    with failures_in_words():
        from ottla.connect.configuration import load_file

        configs = load_file(file, bootstrap)
    run_connectors(configs)


def status(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", show_default=False)] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Shows the status of connectors, wherever they run."""
    with failures_in_words():
        from ottla.connect.status import read_statuses

        found = [each for each in run(read_statuses(bootstrap)) if not names or each.name in names]
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = [
        (each.name, each.kind, each.state, _ago(each.since_ms), each.restarts, _where(each), _facts(each), each.error)
        for each in found
    ]
    print_table(["name", "kind", "state", "since", "restarts", "where", "", "error"], rows, right=["restarts"])


def reset(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of a source that is stopped.", show_default=False)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Makes a source start over with a new snapshot. Its topics then receive a truncate event."""
    if not yes:
        typer.confirm(f"{name} will read its tables from the beginning. Continue?", abort=True)
    with failures_in_words():
        from ottla.connect.positions import reset_position

        if not run(reset_position(bootstrap, name)):
            raise CommandError(f'the connector "{name}" has no saved position; it starts with a snapshot in any case')
    say(f"{name} starts from the beginning at its next start")


def _ago(at_ms: int) -> str:
    seconds = max(0, time.time_ns() // 1_000_000 - at_ms) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _where(status: Status) -> str:
    return status.host if status.pid is None else f"{status.host} ({status.pid})"


def _facts(status: Status) -> str:
    shown = {key: value for key, value in status.facts.items() if isinstance(value, int | str)}
    return ", ".join(f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in shown.items())
