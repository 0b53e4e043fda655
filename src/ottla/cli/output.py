"""How commands print: text for people, JSON for scripts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import typer

T = TypeVar("T")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "OTTLA_BOOTSTRAP"

Bootstrap = Annotated[
    str,
    typer.Option("--bootstrap", "-b", envvar=BOOTSTRAP_VARIABLE, help="The brokers to ask first: host:port,..."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, default=str))


def say(sentence: str) -> None:
    """News for a person, on stderr: stdout is for results."""
    print(sentence, file=sys.stderr)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """A plain table: the same on a terminal, in a pipe and in a log."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        justify = "right" if heading in right else "left"
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type] # a Literal of rich's
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    width = None if sys.stdout.isatty() else max(120, int(os.environ.get("COLUMNS", "0") or 0))
    Console(width=width, highlight=False, markup=False).print(table)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine, on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    result: T = uvloop.run(work)
    return result


def size_text(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{int(size)} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def count_text(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
