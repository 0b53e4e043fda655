"""How the commands parse times and formats, and how they print records."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime

import pytest

from ottla.cli.failures import CommandError
from ottla.cli.output import count_text, size_text
from ottla.cli.records.consume import offsets_in_range
from ottla.cli.records.record_format import compile_format, to_json_line
from ottla.cli.records.record_input import ParsedRecord, json_parser, text_parser, unescape
from ottla.cli.records.record_reader import read_records
from ottla.cli.time_options import since_ms
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
    with pytest.raises(ValueError, match="the fields are %k key"):
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
    found = [line async for some in read_records(read_end, b"\n") for line in some]
    await writing
    os.close(read_end)
    assert found == lines


def test_numbers_for_people() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 5_000_000)] == ["0 B", "1023 B", "1.0 KiB", "4.8 MiB"]
    assert count_text(1, "record") == "1 record"
    assert count_text(12_345, "record") == "12,345 records"


@pytest.mark.parametrize(
    ("written", "delimiter", "records"),
    [
        (b"a;b;c", b";", [b"a", b"b", b"c"]),
        (b"a\r;b\n;", b";", [b"a\r", b"b\n"]),
        (b"a--b--c-", b"--", [b"a", b"b", b"c-"]),
        (b"a\n\nb", None, [b"a\n\nb"]),
        (b"", None, [b""]),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 2, 100])
async def test_records_with_delimiters(
    written: bytes, delimiter: bytes | None, records: list[bytes], piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.cli.records.record_reader.BLOCK_BYTES", piece_bytes)
    read_end, write_end = os.pipe()
    os.write(write_end, written)
    os.close(write_end)
    found = [record async for some in read_records(read_end, delimiter) for record in some]
    os.close(read_end)
    assert found == records


def test_text_input() -> None:
    parse = text_parser(key_separator=b":", key=None, headers=(("h", b"1"),), empty_is_null=True)
    assert parse(b"k:v:w") == ParsedRecord(b"k", b"v:w", (("h", b"1"),))
    assert parse(b"k:") == ParsedRecord(b"k", None, (("h", b"1"),))
    assert parse(b":v") == ParsedRecord(None, b"v", (("h", b"1"),))
    assert parse(b"v") == ParsedRecord(None, b"v", (("h", b"1"),))
    assert text_parser(key_separator=b":", key=None, headers=())(b"k:") == ParsedRecord(b"k", b"", ())
    assert text_parser(key_separator=None, key=b"all", headers=())(b"v") == ParsedRecord(b"all", b"v", ())


def test_json_input_takes_what_consume_prints() -> None:
    row = ConsumerRecord("t", 0, 7, 5, b"k", b"\xff", (("h", b"1"), ("h", None)))
    parsed = json_parser((("all", b"x"),))(to_json_line(row))
    assert parsed == ParsedRecord(b"k", b"\xff", (("all", b"x"), ("h", b"1"), ("h", None)), 5)
    parse = json_parser(())
    assert parse(b'{"value": null}') == ParsedRecord(None, None, ())
    assert parse(b'{"value": {"a": 1}, "key": 7, "headers": {"h": "v"}}') == ParsedRecord(
        b"7", b'{"a":1}', (("h", b"v"),)
    )


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[1]",
        b"{}",
        b'{"key": "k"}',
        b'{"value": "v", "vlaue": 1}',
        b'{"value": {"base64": "?"}}',
        b'{"value": "v", "headers": "h"}',
        b'{"value": "v", "headers": [["h"]]}',
        b'{"value": "v", "timestamp_ms": -1}',
        b'{"value": "v", "timestamp_ms": true}',
        b"\xff",
        b"",
    ],
)
def test_json_that_is_no_record(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|field|base64|headers|timestamp_ms"):
        json_parser(())(line)


@pytest.mark.parametrize(
    ("text", "data"), [("\\t", b"\t"), ("\\0", b"\0"), ("\\x1e", b"\x1e"), ("é\\n", "é\n".encode()), ("a", b"a")]
)
def test_escapes(text: str, data: bytes) -> None:
    assert unescape(text) == data


def test_null_is_printed_on_demand() -> None:
    row = ConsumerRecord("t", 0, 7, 5, None, None, ())
    assert compile_format("%k|%v")(row) == b"|\n"
    assert compile_format("%k|%v", null=b"NULL")(row) == b"NULL|NULL\n"


def test_offsets_are_brought_into_range() -> None:
    told: list[str] = []
    assert offsets_in_range(5, {"t-0": 0, "t-1": 7, "t-2": 0}, {"t-0": 9, "t-1": 9, "t-2": 3}, told.append) == {
        "t-0": 5,
        "t-1": 7,
        "t-2": 3,
    }
    assert told == [
        "t-1 starts at 7; the records before it, from offset 5 on, were deleted",
        "t-2 ends at 3, before offset 5; reading only its new records",
    ]
    assert offsets_in_range(-2, {"t-0": 8}, {"t-0": 9}, told.append) == {"t-0": 8}
    assert offsets_in_range(9, {"t-0": 8}, {"t-0": 9}, told.append) == {"t-0": 9}
    with pytest.raises(CommandError, match="no offset 10 yet: t-0 ends at 9"):
        offsets_in_range(10, {"t-0": 8}, {"t-0": 9}, told.append)
