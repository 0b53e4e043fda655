"""The output of `ottla sql`: appended rows, changing groups, and the progress of a query."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from rich.console import Console

from ottla.cli.sql.output import LiveTable, RowStream, cell, plain
from ottla.cli.sql.prompt import statements
from ottla.spark.sql.running_query import lag_of

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


class Struct(tuple[object, ...]):
    """Like Spark's Row."""

    def asDict(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        return {"start": self[0], "end": self[1]}


def test_values_as_json_and_as_cells() -> None:
    window = Struct((NOON, NOON.replace(minute=1)))
    assert plain([NOON, date(2026, 1, 2), Decimal("1.50"), b"text", b"\xff", {1: None}]) == [
        "2026-11-16T12:00:00+00:00",
        "2026-01-02",
        "1.50",
        "text",
        "/w==",
        {"1": None},
    ]
    assert plain(window) == {"start": "2026-11-16T12:00:00+00:00", "end": "2026-11-16T12:01:00+00:00"}
    assert cell(window) == "2026-11-16 12:00:00 - 12:01:00"
    assert (cell(None), cell(1.5), cell(["a"]), cell(NOON.replace(microsecond=5000))) == (
        "",
        "1.5",
        '["a"]',
        "2026-11-16 12:00:00.005",
    )


def test_added_rows_end_at_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    display = RowStream(as_json=False, limit=3)
    display.show(["user", "n"], [("a", 1), ("bob", 22)])
    assert not display.is_full
    display.show(["user", "n"], [("c", None), ("never shown", 4)])
    assert display.is_full
    assert capsys.readouterr().out.splitlines() == ["user  n", "----  --", "a     1", "bob   22", "c"]


def test_changes_of_groups_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    def told() -> list[object]:
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    display = LiveTable(["page"], as_json=True, limit=None, on_terminal=False)
    display.show(["page", "n"], [("/", 1), ("/a", 1)], is_all=False)
    assert told() == [{"page": "/", "n": 1}, {"page": "/a", "n": 1}]
    display.show(["page", "n"], [("/", 2), ("/a", 1)], is_all=False)
    assert told() == [{"page": "/", "n": 2}]
    whole = LiveTable([], as_json=True, limit=None, on_terminal=False)
    whole.show(["page", "n"], [("/", 1), ("/a", 1)], is_all=True)
    told()
    whole.show(["page", "n"], [("/", 2), ("/a", 1)], is_all=True)
    assert told() == [{"page": "/", "n": 2}]


def test_the_table_on_a_terminal_has_the_groups_as_they_are() -> None:
    display = LiveTable(["page"], as_json=True, limit=2, on_terminal=False)
    display.show(["page", "n"], [("/", 1), ("/a", 1), ("/b", 1)], is_all=False)
    display.show(["page", "n"], [("/", 2)], is_all=False)
    page = io.StringIO()
    Console(width=60, file=page).print(display.table(["page", "n"]))
    shown = page.getvalue()
    assert [line.split() for line in shown.splitlines() if "/" in line] == [["/b", "1"], ["/", "2"]]
    assert "and 1 more" in " ".join(shown.split())


def test_lines_up_to_a_semicolon_are_a_statement() -> None:
    typed = iter(["SELECT 1", "  FROM x;", "SELECT ';", "still a text';", "forgotten", "", "SHOW TOPICS;", "quit"])
    assert list(statements(lambda _: next(typed))) == [
        "SELECT 1\n  FROM x;",
        "SELECT ';\nstill a text';",
        "SHOW TOPICS;",
    ]


def test_ctrl_c_forgets_what_was_begun_and_ctrl_d_ends() -> None:
    typed: list[str | type[BaseException]] = ["SELECT", KeyboardInterrupt, "SHOW TOPICS;", EOFError]

    def read(_: str) -> str:
        found = typed.pop(0)
        if isinstance(found, str):
            return found
        raise found

    assert list(statements(read)) == ["SHOW TOPICS;"]


def test_lag_is_what_is_not_read_yet() -> None:
    end, latest = '{"t": {"0": 5, "1": -2}}', '{"t": {"0": 8, "1": 4}}'
    assert lag_of([(end, latest)]) == 7
    assert lag_of([(end, latest), (latest, latest)]) == 7
    assert lag_of([(end, None)]) is None
    assert lag_of([("{}", latest)]) is None
