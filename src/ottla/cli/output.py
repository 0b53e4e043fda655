"""Prints the output of commands: text for people, JSON for scripts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ottla.cli.address_options import check_bootstrap

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "OTTLA_BOOTSTRAP"
PIPE_WIDTH = 1_000_000
"""Wide enough that no row is folded in a pipe; a table takes only the width that its values need."""


def bootstrap_option(help_text: str) -> Any:
    """The option of every command that connects to brokers. `--bootstrap-server` is its name in Kafka's own tools."""
    return typer.Option(
        "--bootstrap",
        "-b",
        "--bootstrap-server",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        callback=check_bootstrap,
        help=help_text,
    )


Bootstrap = Annotated[str, bootstrap_option("The brokers to connect to first.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def print_json(value: Any) -> None:
    """Prints a value as one line of JSON."""
    print(json.dumps(value, ensure_ascii=False, default=str))


def say(sentence: str) -> None:
    """Prints a message for people on stderr, because stdout is for results."""
    print(sentence, file=sys.stderr)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Prints a table: as wide as the terminal or COLUMNS allow, or one line for each row in a pipe."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        justify = "right" if heading in right else "left"
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type] # a Literal of rich's
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    print_rich(table)


def print_rich(table: Table) -> None:
    """Prints a table. Long values are folded, never truncated; in a pipe, each row is one line."""
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns) > 0:
        width: int | None = int(columns)
    else:
        width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(width=width, highlight=False, markup=False)
    console.width = max(console.width, 4 * len(table.columns) + 2)  # rich drops whole columns below this width
    console.print(table, crop=False)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    result: T = uvloop.run(work)
    return result


def size_text(size_bytes: int) -> str:
    """Formats a size in bytes with a unit."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{int(size)} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def count_text(count: int, thing: str) -> str:
    """Formats a count with its noun, in the plural if needed."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
