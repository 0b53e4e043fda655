"""Options of the commands for SQLite, and their error messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ottla.cli.failures import CommandError
from ottla.cli.number_options import parse_duration_ms

LogName = Annotated[
    str, typer.Option("--log", help="The name of the log; each database needs its own log.", show_default=False)
]


@contextmanager
def failures_in_words() -> Iterator[None]:
    """Turns expected failures into FailedError."""
    try:
        import ottla.wal
        from ottla.connect.failures import ConnectorError
    except ImportError as missing:
        raise CommandError(f"{missing}. Run: pip install 'ottla[wal]'") from None
    try:
        yield
    except (ConnectorError, ottla.wal.WalError) as failure:
        raise CommandError(str(failure)) from failure


def seconds_of(text: str, option: str) -> float:
    """Parses a duration and returns it in seconds."""
    return parse_duration_ms(text, option, min_ms=1) / 1000
