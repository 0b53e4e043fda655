"""How the commands read times and formats, and how they print records."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime

import pytest

from ottla.cli.lines import read_lines
from ottla.cli.output import count_text, size_text
from ottla.cli.record_format import compile_format, to_json_line
from ottla.cli.since import since_ms
from ottla.client import ConsumerRecord

RECORD = ConsumerRecord("orders", 3, 42, 1_700_000_000_123, b"key", b"value", (("a", b"1"), ("b", None)))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%v\\n", b"value\n"),
        ("%v", b"value\n"),
        ("%k\\t%v", b"key\tvalue\n"),
        ("%p:%o@%t %n", b"3:42@1700000000123 orders\n"),
        ("%T", b"2023-11-14T22:13:20.123+00:00\n"),
        ("%h 100%%", b"a=1,b= 100%\n"),
        ("%v\\0", b"value\0"),
    ],
)
def test_formats(text: str, printed: bytes) -> None:
    assert compile_format(text)(RECORD) == printed


@pytest.mark.parametrize("text", ["%x", "100%"])
def test_a_format_that_is_not_known(text: str) -> None:
    with pytest.raises(ValueError, match="it knows %k key"):
        compile_format(text)


def test_json_keeps_text_readable_and_bytes_exact() -> None:
    line = to_json_line(RECORD._replace(value=b"\xff\x00", key=None))
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1_700_000_000_123,
        "key": None,
        "value": {"base64": "/wA="},
        "headers": [["a", "1"], ["b", None]],
    }
    assert line.endswith(b"\n")


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("10m", 600_000), ("90s", 90_000), ("1h30m", 5_400_000), ("1.5 h", 5_400_000), ("2d", 172_800_000), ("5ms", 5)],
)
def test_so_long_ago(text: str, ago_ms: int) -> None:
    assert since_ms(text, 1_000_000_000) == 1_000_000_000 - ago_ms


def test_a_time() -> None:
    expected = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
    assert since_ms("2026-01-31T12:00:00Z", 0) == expected
    assert since_ms("2026-01-31T14:00:00+02:00", 0) == expected


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "10x", "m10"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="neither a duration"):
        since_ms(text, 0)


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb", [b"a", b"b"]),
        (b"\n\n", [b"", b""]),
        (b"x" * 3_000_000 + b"\ny", [b"x" * 3_000_000, b"y"]),
    ],
)
async def test_lines(written: bytes, lines: list[bytes]) -> None:
    read_end, write_end = os.pipe()

    def write() -> None:
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(written)

    writing = asyncio.get_running_loop().run_in_executor(None, write)
    found = [line async for some in read_lines(read_end) for line in some]
    await writing
    os.close(read_end)
    assert found == lines


def test_numbers_for_people() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 5_000_000)] == ["0 B", "1023 B", "1.0 KiB", "4.8 MiB"]
    assert count_text(1, "record") == "1 record"
    assert count_text(12_345, "record") == "12,345 records"
