"""Checks the topics of `postgres-cdc`: every transaction once and complete, and the resulting rows."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import psycopg

from ottla.client import Admin, Consumer


async def read_values(bootstrap: str, topic: str) -> list[bytes | None]:
    """Returns the values of all committed records."""
    return await _read(bootstrap, topic, "value")


async def read_keys(bootstrap: str, topic: str) -> list[bytes | None]:
    return await _read(bootstrap, topic, "key")


async def _read(bootstrap: str, topic: str, column: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        partition = (topic, 0)
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[consumer.assignment[0]]
        while (part := await consumer.fetch_range(partition, end, timeout_ms=60_000)) is not None:
            found += part[0].column(column).to_pylist()
    return found


async def check_transactions(bootstrap: str, prefix: str) -> int:
    """Checks that each transaction begins and ends once, with each change once; returns the number of changes."""
    async with Admin(bootstrap) as admin:
        topics = [each.name for each in await admin.list_topics() if each.name.startswith(f"{prefix}.")]
    begun: list[str] = []
    counts: dict[str, int] = {}
    for value in await read_values(bootstrap, f"{prefix}.transaction"):
        boundary = orjson.loads(value or b"")
        if boundary["status"] == "BEGIN":
            begun.append(boundary["id"])
        else:
            assert boundary["id"] not in counts, f"{boundary['id']} ends twice"
            counts[boundary["id"]] = boundary["event_count"]
    assert len(set(begun)) == len(begun), "a transaction begins twice"
    assert set(begun) == set(counts), "a transaction begins and does not end"
    orders: dict[str, list[int]] = {}
    for topic in topics:
        if topic in (f"{prefix}.transaction", f"{prefix}.schema"):
            continue
        for value in await read_values(bootstrap, topic):
            if value is not None:
                transaction = orjson.loads(value)["transaction"]
                orders.setdefault(transaction["id"], []).append(transaction["total_order"])
    for name, count in counts.items():
        assert sorted(orders.pop(name)) == list(range(1, count + 1)), f"changes of {name} are missing, or there twice"
    assert not orders, "there are changes without a transaction"
    return sum(counts.values())


def expected_rows(url: str, table: str) -> dict[str, dict[str, Any]]:
    """Returns the rows of a table by key, as text comparable with `normal_row`."""
    options = "-c timezone=UTC -c intervalstyle=iso_8601 -c extra_float_digits=3"
    with psycopg.connect(url, options=options) as connection:
        names = [
            (name, kind)
            for name, kind in connection.execute(
                "SELECT attname, format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = %s::regclass "
                "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                [table],
            )
        ]
        # Arrays by PostgreSQL's own JSON, so that the connector's code is not compared with itself. And `format`,
        # because a cast to text differs from a type's own output for char(8) and inet.
        chosen = ", ".join(
            f'to_jsonb("{name}")::text'
            if kind.endswith("[]")
            else f'CASE WHEN "{name}" IS NOT NULL THEN format(\'%s\', "{name}") END'
            for name, kind in names
        )
        rows = connection.execute(f"SELECT {chosen} FROM {table}")
        return dict(_expected(names, row) for row in rows)


def _expected(names: list[tuple[str, str]], row: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    found: dict[str, Any] = {}
    for (name, kind), value in zip(names, row, strict=True):
        if value is None:
            found[name] = None
        elif kind.endswith("[]"):
            found[name] = orjson.loads(value)
        else:
            found[name] = _typed(kind, value)
    return _identity(found), found


def normal_row(url_kinds: dict[str, str], value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns a row of a change log in the form of `expected_rows`."""
    found: dict[str, Any] = {}
    for name, each in value.items():
        kind = url_kinds[name]
        if each is None or isinstance(each, list):
            found[name] = each
        elif kind == "bytea":
            found[name] = "\\x" + base64.b64decode(each).hex()
        elif kind.startswith("timestamp") and "T" in each:
            found[name] = each.replace("T", " ").replace("Z", "+00")
        else:
            found[name] = _typed(kind, each)
    return _identity(found), found


def _typed(kind: str, value: Any) -> Any:
    if kind in ("real", "double precision"):
        return repr(float(value))
    if kind == "boolean":
        return value if isinstance(value, bool) else value == "t"
    if kind in ("smallint", "integer", "bigint"):
        return int(value)
    return value


def _identity(row: dict[str, Any]) -> str:
    return str(row["id"]) if "id" in row else f"{row['a']}:{row['b']}"


def column_kinds(url: str, table: str) -> dict[str, str]:
    with psycopg.connect(url) as connection:
        return dict(
            connection.execute(
                "SELECT attname, format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = %s::regclass "
                "AND attnum > 0 AND NOT attisdropped",
                [table],
            ).fetchall()
        )
