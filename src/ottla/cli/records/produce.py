"""`ottla produce`: sends lines of stdin or of files as records."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.number_options import INT32_MAX
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, run, say, size_text
from ottla.cli.records.produce_progress import Progress
from ottla.cli.records.record_input import (
    Headers,
    Parse,
    ParsedRecord,
    json_parser,
    parse_headers,
    text_parser,
    unescape,
)
from ottla.cli.records.record_reader import read_records

if TYPE_CHECKING:
    from ottla.client import Producer

STDIN = Path("-")
STDIN_FD = 0
RECORD_BYTES_MAX = 100 * 1024 * 1024 - 64 * 1024
"""Brokers close the connection on a larger request (socket.request.max.bytes); below it, max.message.bytes applies."""
LAST_ACKNOWLEDGEMENTS_S = 5.0
"""How long an interrupted command waits for acknowledgements of records in flight."""


class Codec(StrEnum):
    """A compression codec."""

    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class AcksChoice(StrEnum):
    """The acknowledgements to wait for."""

    all = "all"
    one = "1"
    zero = "0"


@dataclass(frozen=True, slots=True)
class Source:
    """The input, and how it is split into records."""

    files: list[Path]
    delimiter: bytes | None
    """None makes each file one record."""
    parse: Parse


EmptyAsNull = Annotated[
    bool,
    typer.Option(
        "--empty-as-null",
        "-Z",
        help="Send empty keys and values as null; a record with a null value is a tombstone.",
    ),
]
Acks = Annotated[
    AcksChoice,
    typer.Option(
        help="Choose the guarantee: all is idempotent and writes each record once and in order, 1 and 0 do neither."
    ),
]


def produce(
    topic: Annotated[str, typer.Argument(help="The topic to write to.", show_default=False)],
    files: Annotated[
        list[Path] | None, typer.Argument(help="The files to read; by default, or for -, stdin.", show_default=False)
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="Split each record into key and value at this text."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Use this key for every record.")] = None,
    delimiter: Annotated[
        str,
        typer.Option(
            "--delimiter", "-D", metavar="TEXT", help="End each record at this text: \\n, \\t, \\0, \\x1e or any text."
        ),
    ] = "\\n",
    lines: Annotated[
        bool,
        typer.Option("--lines/--whole-files", "-l", help="Send each line as a record, or each file as one record."),
    ] = True,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines", "-J", help="Read one JSON object per line, as `ottla consume --json` prints them."
        ),
    ] = False,
    empty_is_null: EmptyAsNull = False,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Add this header to each record; repeatable."),
    ] = None,
    compression: Annotated[Codec, typer.Option("--compression", "-z")] = Codec.none,
    acks: Acks = AcksChoice.all,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, max=INT32_MAX, help="Write to this partition instead of choosing one by key."
        ),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Sends each line as a record and waits for the acknowledgements. Ctrl-C prints what was acknowledged.

    Fails if any record was not acknowledged. A line without the separator has no key.
    """
    try:
        headers = parse_headers(header or [])
        if json_lines:
            _check_json_alone(key_separator, key, delimiter, lines, empty_is_null)
            source = Source(files or [STDIN], b"\n", json_parser(headers))
        else:
            parse = _text_parser(key_separator, key, headers, empty_is_null)
            source = Source(files or [STDIN], _delimiter(delimiter) if lines else None, parse)
    except ValueError as mistake:
        raise typer.BadParameter(str(mistake)) from None
    check_inputs(source.files)
    options: dict[str, Any] = {
        "compression": compression.value,
        "client_id": "ottla-cli",
        "max_request_bytes": RECORD_BYTES_MAX,
    }
    if acks is not AcksChoice.all:
        options |= {"acks": int(acks.value), "idempotence": False}
    run(_produce(topic, source, partition, options, bootstrap, as_json))


def _check_json_alone(
    key_separator: str | None, key: str | None, delimiter: str, lines: bool, empty_is_null: bool
) -> None:
    if key_separator is not None or key is not None or delimiter != "\\n" or not lines or empty_is_null:
        raise ValueError(
            "--json-lines cannot be combined with --key-separator, --key, --delimiter, --whole-files or "
            "--empty-as-null; the JSON contains the key and null values"
        )


def _text_parser(key_separator: str | None, key: str | None, headers: Headers, empty_is_null: bool) -> Parse:
    if key_separator is not None and key is not None:
        raise ValueError("choose one of --key-separator and --key")
    separator = None if key_separator is None else unescape(key_separator)
    if separator == b"":
        raise ValueError("--key-separator must not be empty")
    fixed = None if key is None else key.encode()
    return text_parser(key_separator=separator, key=fixed, headers=headers, empty_is_null=empty_is_null)


def _delimiter(text: str) -> bytes:
    found = unescape(text)
    if not found:
        raise ValueError("--delimiter must not be empty; --whole-files sends each file as one record")
    return found


def check_inputs(files: list[Path]) -> None:
    """Raises FailedError for a file that cannot be read, before anything is sent."""
    for path in files:
        try:
            mode = os.fstat(STDIN_FD).st_mode if path == STDIN else path.stat().st_mode
        except OSError as failure:
            raise CommandError(f"{_name(path)}: {failure.strerror}") from failure
        if stat.S_ISDIR(mode):
            raise CommandError(f"{_name(path)} is a directory; give the files to send")
        if path != STDIN and not os.access(path, os.R_OK):
            raise CommandError(f"{path}: Permission denied")


def _name(path: Path) -> str:
    return "stdin" if path == STDIN else str(path)


async def _produce(
    topic: str, source: Source, partition: int | None, options: dict[str, Any], bootstrap: str, as_json: bool
) -> None:
    from ottla.client import ClientError, Producer

    producer = Producer(bootstrap, security=client_security(), **options)
    started_s = time.monotonic()
    progress = Progress(producer)
    failure: Exception | None = None
    interruption: asyncio.CancelledError | None = None
    await producer.start()
    try:
        await _send_all(producer, topic, source, partition, progress)
    except (ClientError, CommandError) as cause:
        failure = cause
    except asyncio.CancelledError as cause:  # Ctrl-C
        interruption = cause
    finally:
        progress.clear()
    try:
        await asyncio.wait_for(producer.close(), None if interruption is None else LAST_ACKNOWLEDGEMENTS_S)
    except (ClientError, TimeoutError) as cause:
        failure = failure or cause
    summary = progress.summary(topic, time.monotonic() - started_s)
    missing = progress.sent - producer.acknowledged_count
    if as_json:
        print_json(summary.as_json())
    else:
        print(summary.text())
    if interruption is not None:
        if missing:
            say(f"interrupted: {count_text(missing, 'record')} not acknowledged, and may or may not be written")
        raise interruption
    if failure is not None:
        what = f"{count_text(missing, 'record')} not acknowledged: " if missing else ""
        raise CommandError(f"{what}{failure}") from failure


async def _send_all(producer: Producer, topic: str, source: Source, partition: int | None, progress: Progress) -> None:
    from ottla.client.errors import RecordTooLargeError

    for path in source.files:
        number = 0
        async for some in _read(path, source.delimiter):
            for data in some:
                number += 1
                key, value, headers, timestamp_ms = _parsed(source, path, number, data)
                progress.add(len(data))
                try:
                    await producer.enqueue(topic, value, key, headers, timestamp_ms, partition)
                except RecordTooLargeError:
                    limit = size_text(RECORD_BYTES_MAX)
                    where = f"{_name(path)}, record {number}"
                    raise CommandError(
                        f"{where}: the record has {size_text(len(data))}, more than the limit of {limit}"
                    ) from None
    await producer.flush()


def _parsed(source: Source, path: Path, number: int, data: bytes) -> ParsedRecord:
    try:
        return source.parse(data)
    except ValueError as mistake:
        raise CommandError(f"{_name(path)}, record {number}: {mistake}") from None


async def _read(path: Path, delimiter: bytes | None) -> AsyncIterator[list[bytes]]:
    fd = None
    try:
        if path != STDIN:
            fd = os.open(path, os.O_RDONLY)
        async for some in read_records(STDIN_FD if fd is None else fd, delimiter):
            yield some
    except OSError as failure:
        raise CommandError(f"{_name(path)}: {failure.strerror}") from failure
    finally:
        if fd is not None:
            os.close(fd)
