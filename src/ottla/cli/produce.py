"""`ottla produce`: lines of stdin or of files as records."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.failures import FailedError
from ottla.cli.lines import read_lines
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, count_text, print_json, run, size_text
from ottla.cli.topics import parse_pairs

if TYPE_CHECKING:
    from ottla.client import Producer

PROGRESS_EVERY_S = 0.2


class Codec(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class AcksChoice(StrEnum):
    all = "all"
    one = "1"
    zero = "0"


def produce(
    topic: Annotated[str, typer.Argument(help="The topic to write to.", show_default=False)],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files whose lines to send; stdin if there are none.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="What stands between a line's key and its value.")
    ] = None,
    compression: Annotated[Codec, typer.Option("--compression", "-z")] = Codec.none,
    acks: Annotated[AcksChoice, typer.Option(help="all: idempotent, in order, once. 1 and 0: neither.")] = (
        AcksChoice.all
    ),
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Instead of choosing by key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="On each record; repeatable.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Sends each line as a record and waits for the acknowledgements.

    Fails if a single record was not acknowledged. A line without the separator has no key.
    """
    separator = None if key_separator is None else _separator(key_separator)
    headers = tuple((name, value.encode()) for name, value in parse_pairs(header, "--header").items())
    options: dict[str, Any] = {"compression": compression.value, "client_id": "ottla-cli"}
    if acks is not AcksChoice.all:
        options |= {"acks": int(acks.value), "idempotence": False}
    run(_produce(topic, files or [], separator, headers, partition, options, bootstrap, as_json))


def _separator(text: str) -> bytes:
    """Backslash escapes make a tab typable."""
    separator = text.encode().decode("unicode_escape").encode("latin-1") if "\\" in text else text.encode()
    if not separator:
        raise typer.BadParameter("--key-separator must not be empty")
    return separator


async def _produce(
    topic: str,
    files: list[Path],
    separator: bytes | None,
    headers: tuple[tuple[str, bytes], ...],
    partition: int | None,
    options: dict[str, Any],
    bootstrap: str,
    as_json: bool,
) -> None:
    from ottla.client import ClientError, Producer

    producer = Producer(bootstrap, **options)
    started_s = time.monotonic()
    progress = Progress(producer)
    failure: Exception | None = None
    await producer.start()
    try:
        async for lines in _all_lines(files):
            for line in lines:
                key, value = _split(line, separator)
                await producer.enqueue(topic, value, key, headers, None, partition)
            progress.show(len(lines), sum(map(len, lines)))
        await producer.flush()
    except ClientError as cause:
        failure = cause
    except OSError as cause:
        failure = FailedError(f"{cause.filename or 'stdin'}: {cause.strerror}")
    finally:
        progress.clear()
        try:
            await producer.close()
        except ClientError as cause:
            failure = failure or cause
    progress.summarise(topic, time.monotonic() - started_s, as_json)
    if failure is not None:
        missing = progress.sent - producer.acknowledged_count
        raise FailedError(f"{count_text(missing, 'record')} not acknowledged: {failure}") from failure


async def _all_lines(files: list[Path]) -> AsyncIterator[list[bytes]]:
    if not files:
        async for lines in read_lines(sys.stdin.fileno()):
            yield lines
        return
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            async for lines in read_lines(fd):
                yield lines
        finally:
            os.close(fd)


def _split(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else (None, line)


class Progress:
    """A line on stderr that moves while records go out, if a person is watching."""

    def __init__(self, producer: Producer) -> None:
        self.sent = 0
        self._bytes = 0
        self._producer = producer
        self._shown_s = 0.0
        self._is_terminal = sys.stderr.isatty()

    def show(self, more: int, more_bytes: int) -> None:
        self.sent += more
        self._bytes += more_bytes
        now_s = time.monotonic()
        if self._is_terminal and now_s - self._shown_s >= PROGRESS_EVERY_S:
            self._shown_s = now_s
            acknowledged = self._producer.acknowledged_count
            print(f"\r{self.sent:,} sent, {acknowledged:,} acknowledged ", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_terminal and self._shown_s:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def summarise(self, topic: str, seconds: float, as_json: bool) -> None:
        acknowledged = self._producer.acknowledged_count
        if as_json:
            print_json(
                {
                    "topic": topic,
                    "sent": self.sent,
                    "acknowledged": acknowledged,
                    "bytes": self._bytes,
                    "seconds": round(seconds, 3),
                }
            )
            return
        rate = acknowledged / seconds if seconds else 0.0
        amount = f"{count_text(acknowledged, 'record')} of {self.sent:,} acknowledged by {topic}"
        print(f"{amount}: {size_text(self._bytes)} in {seconds:.2f} s, {rate:,.0f} records/s")
