"""Shows the results of `ottla sql`: a table that is updated, rows that are appended, or JSON lines."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ottla.cli.output import print_json, print_table

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

ROWS_SHOWN = 40
WIDTH_MAX = 40
Rows = list[tuple[Any, ...]]


def plain(value: Any) -> Any:
    """Converts a value for JSON: times to ISO 8601, bytes to text or base64, rows to objects."""
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.astimezone()).astimezone(UTC).isoformat()
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return _bytes_text(bytes(value))
    if hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(plain(name)): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def _bytes_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def cell(value: Any) -> str:
    """Formats a value for a table cell."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        moment = (value if value.tzinfo is not None else value.astimezone()).astimezone(UTC)
        return moment.strftime("%Y-%m-%d %H:%M:%S") + (
            f".{moment.microsecond // 1000:03}" if moment.microsecond else ""
        )
    if hasattr(value, "asDict"):
        inside = value.asDict()
        if list(inside) == ["start", "end"]:
            return f"{cell(inside['start'])} - {cell(inside['end'])[11:]}"
        return ", ".join(f"{name}={cell(each)}" for name, each in inside.items())
    if isinstance(value, dict | list | tuple):
        import json

        return json.dumps(plain(value), ensure_ascii=False, default=str)
    return str(plain(value))


def print_result(columns: Sequence[str], rows: Rows, *, as_json: bool) -> None:
    """Prints a complete result."""
    if as_json:
        for row in rows:
            print_json(dict(zip(columns, map(plain, row), strict=True)))
        return
    print_table(columns, [[cell(each) for each in row] for row in rows], right=numbers_of(columns, rows))


def numbers_of(columns: Sequence[str], rows: Rows) -> list[str]:
    """Returns the columns that hold numbers, which are right-aligned."""
    return [
        name
        for index, name in enumerate(columns)
        if rows and all(isinstance(row[index], int | float | Decimal | None) for row in rows)
    ]


class RowStream:
    """Shows each row once, as it arrives."""

    def __init__(self, *, as_json: bool, limit: int | None) -> None:
        self._as_json = as_json
        self._left = limit
        self._widths: list[int] = []

    @property
    def is_full(self) -> bool:
        """Returns whether the limit is reached."""
        return self._left == 0

    def show(self, columns: Sequence[str], rows: Rows) -> None:
        """Prints new rows."""
        if self._left is not None:
            rows = rows[: self._left]
            self._left -= len(rows)
        if self._as_json:
            print_result(columns, rows, as_json=True)
        elif rows:
            self._print(columns, [[cell(each) for each in row] for row in rows])
        sys.stdout.flush()

    def _print(self, columns: Sequence[str], rows: list[list[str]]) -> None:
        """Prints rows with the column widths of the first ones, so that columns do not shift later."""
        if not self._widths:
            fitting = [max(len(row[index]) for row in rows) for index in range(len(columns))]
            self._widths = [min(WIDTH_MAX, max(len(name), width)) for name, width in zip(columns, fitting, strict=True)]
            print(self._line(columns))
            print(self._line(["-" * width for width in self._widths]))
        for row in rows:
            print(self._line(row))

    def _line(self, cells: Sequence[str]) -> str:
        padded = (text.ljust(width) for text, width in zip(cells, self._widths, strict=True))
        return "  ".join(padded).rstrip()

    def close(self) -> None:
        """Does nothing, because every row has been shown."""


class LiveTable:
    """Shows groups whose values change: as one table that is redrawn on a terminal, and as single changes elsewhere."""

    def __init__(self, keys: Sequence[str], *, as_json: bool, limit: int | None, on_terminal: bool) -> None:
        self._keys = keys
        self._as_json = as_json
        self._limit = limit
        self._on_terminal = on_terminal and not as_json
        self._rows: dict[Any, tuple[Any, ...]] = {}
        self._live: Live | None = None

    is_full = False

    def show(self, columns: Sequence[str], rows: Rows, *, is_all: bool) -> None:
        """Takes in rows and shows the changes. `is_all` means that `rows` is the whole result."""
        changed = self._take(columns, rows, is_all=is_all)
        if self._on_terminal:
            self._draw(columns)
        elif changed:
            print_result(columns, changed[: self._limit], as_json=self._as_json)
            sys.stdout.flush()

    def _take(self, columns: Sequence[str], rows: Rows, *, is_all: bool) -> Rows:
        """Stores the rows and returns those that are new or changed."""
        if is_all:  # keep Spark's order
            before = {repr(row) for row in self._rows.values()}
            self._rows = dict(enumerate(rows))
            return [row for row in rows if repr(row) not in before]
        places = [list(columns).index(name) for name in self._keys]
        changed = []
        for row in rows:
            key = repr([row[place] for place in places])
            if self._rows.pop(key, None) != row:
                changed.append(row)
            self._rows[key] = row  # the most recent change comes last
        return changed

    def table(self, columns: Sequence[str]) -> Table:
        """Returns the current rows as a table."""
        from rich import box
        from rich.table import Table

        rows = list(self._rows.values())
        shown_max = self._limit or ROWS_SHOWN
        shown = rows[:shown_max] if self._is_ordered else rows[-shown_max:]
        more = len(rows) - len(shown)
        made = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", caption=f"and {more:,} more" if more else None
        )
        right = numbers_of(columns, shown)
        for name in columns:
            made.add_column(name, justify="right" if name in right else "left", overflow="fold")
        for row in shown:
            made.add_row(*(cell(each) for each in row))
        return made

    @property
    def _is_ordered(self) -> bool:
        return not self._keys

    def _draw(self, columns: Sequence[str]) -> None:
        from rich.live import Live

        if self._live is None:
            self._live = Live(auto_refresh=False)
            self._live.start()
        self._live.update(self.table(columns), refresh=True)

    def close(self) -> None:
        """Stops redrawing."""
        if self._live is not None:
            self._live.stop()
