"""Encodes records as files of JSON lines or Parquet. Pure."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from ottla.client.consumer.types import ConsumerRecord


class BadValueError(Exception):
    """A record that the format cannot represent. The message says why."""


def check_json(record: ConsumerRecord) -> None:
    """Raises BadValueError if the value is not JSON."""
    if record.value is None:
        return
    try:
        orjson.loads(record.value)
    except ValueError as mistake:
        raise BadValueError(f"the value is not JSON: {mistake}") from mistake


def accept_all(_: ConsumerRecord) -> None:
    """Accepts every record: Parquet stores bytes unchanged."""


def encode_json_lines(records: Sequence[ConsumerRecord]) -> bytes:
    """Encodes each record as one line that embeds its JSON value. Keys that are not UTF-8 are base64."""
    lines = []
    for record in records:
        head = orjson.dumps(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                **_text_or_base64("key", record.key),
                "headers": [[name, _shown(value)] for name, value in record.headers],
            }
        )
        value = b"null" if record.value is None else record.value.strip().replace(b"\n", b" ")
        lines.append(head[:-1] + b',"value":' + value + b"}\n")
    return b"".join(lines)


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _shown(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def encode_parquet(records: Sequence[ConsumerRecord]) -> bytes:
    """Encodes records as Parquet with unchanged bytes, in the schema of `records.arrow` plus topic and partition."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ottla.protocol.records.arrow import SCHEMA

    schema = pa.schema([("topic", pa.utf8()), ("partition", pa.int32()), *SCHEMA])
    columns: dict[str, list[Any]] = {
        "topic": [each.topic for each in records],
        "partition": [each.partition for each in records],
        "offset": [each.offset for each in records],
        "timestamp": [each.timestamp_ms for each in records],
        "key": [each.key for each in records],
        "value": [each.value for each in records],
        "headers": [[{"key": name, "value": value} for name, value in each.headers] for each in records],
    }
    into = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), into, compression="zstd")
    return into.getvalue()


FORMATS: dict[str, tuple[Callable[[ConsumerRecord], None], Callable[[Sequence[ConsumerRecord]], bytes]]] = {
    "jsonl": (check_json, encode_json_lines),
    "parquet": (accept_all, encode_parquet),
}
