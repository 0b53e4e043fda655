"""Converts Avro values to rows and back, with fastavro in Spark's Python workers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.inference import schema_text

if TYPE_CHECKING:
    from ottla.spark.sql.definitions import Definition

CONFLUENT_PREFIX_BYTES = 5
"""A zero byte and the id of a schema in a registry. The id is ignored: the declared schema applies."""


class AvroCodec:
    """Encodes and decodes one schema, in one worker."""

    def __init__(self, schema: str, framing: str) -> None:
        import fastavro

        self._schema = fastavro.parse_schema(_without_uuids(json.loads(schema)))
        self._framing = framing

    def decode(self, value: bytes) -> dict[str, Any]:
        """Decodes a record. Raises ValueError with the reason if the bytes are not such a record."""
        is_framed = value[:1] == b"\0" and len(value) >= CONFLUENT_PREFIX_BYTES
        if self._framing == "confluent":
            if not is_framed:
                raise ValueError("the value does not start with Confluent's magic byte and schema id")
            return self._record(value[CONFLUENT_PREFIX_BYTES:])
        if is_framed and self._framing == "auto":
            try:
                return self._record(value[CONFLUENT_PREFIX_BYTES:])
            except ValueError:
                pass  # a record without a prefix may begin with a zero too
        return self._record(value)

    def _record(self, value: bytes) -> dict[str, Any]:
        import fastavro

        stream = io.BytesIO(value)
        try:
            found = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as failure:  # fastavro raises whatever its parser runs into
            raise ValueError(
                f"the value does not match the Avro schema: {type(failure).__name__} {failure}".strip()
            ) from None
        if stream.tell() != len(value):
            raise ValueError("the value does not match the Avro schema: unexpected bytes at the end")
        if not isinstance(found, dict):
            raise ValueError("the value is not an Avro record")
        return found

    def encode(self, row: dict[str, Any]) -> bytes:
        """Returns the row in Avro's binary form, without a schema."""
        import fastavro

        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, self._schema, row)
        return stream.getvalue()


def check_available() -> None:
    """Raises SqlError if fastavro is not installed."""
    try:
        import fastavro  # noqa: F401 - only whether it is there
    except ImportError:
        raise SqlError("Avro needs fastavro: pip install 'ottla[spark]'") from None


def decoder(definition: Definition) -> Callable[..., Any]:
    """Returns a Spark function from binary to struct<row, reason>."""
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StringType, StructType

    check_available()
    schema, framing = definition.avro_schema or "", definition.avro_framing
    row_type = StructType.fromDDL(schema_text(definition.columns))
    result = StructType().add("row", row_type).add("reason", StringType())
    arrow_type = to_arrow_type(result, timezone="UTC")

    def decode(values: pa.Array) -> pa.Array:
        return decode_all(AvroCodec(schema, framing), values, arrow_type)

    # Otherwise Spark would decode once for the filter and once for the columns.
    return arrow_udf(decode, result).asNondeterministic()  # type: ignore[call-overload,no-any-return] # by its hints


def decode_all(codec: AvroCodec, values: pa.Array, kind: Any) -> pa.Array:
    """Decodes values to an Arrow array, with a reason for each value that cannot be decoded."""
    rows = [_decoded(codec, value) for value in values.to_pylist()]
    try:
        return pa.array(rows, kind)
    except (ValueError, TypeError, OverflowError):  # one of them does not fit; find out which
        return pa.array([_fitting(row, kind) for row in rows], kind)


def _decoded(codec: AvroCodec, value: bytes | None) -> dict[str, Any]:
    try:
        return {"row": None if value is None else codec.decode(value), "reason": None}
    except ValueError as failure:
        return {"row": None, "reason": str(failure)}


def _fitting(row: dict[str, Any], kind: Any) -> dict[str, Any]:
    try:
        pa.array([row], kind)
    except (ValueError, TypeError, OverflowError) as failure:
        return {"row": None, "reason": f"the value does not match the columns: {failure}"}
    return row


def encoder(definition: Definition) -> Callable[..., Any]:
    """Returns a Spark function from a struct of the columns to binary."""
    from pyspark.sql.pandas.functions import arrow_udf

    check_available()
    schema = definition.avro_schema or ""

    def encode(rows: pa.Array) -> pa.Array:
        codec = AvroCodec(schema, "none")
        return pa.array([codec.encode(row) for row in rows.to_pylist(maps_as_pydicts="strict")], pa.binary())

    return arrow_udf(encode, "binary")  # type: ignore[call-overload,no-any-return] # what it is, its hints tell


def _without_uuids(schema: Any) -> Any:
    """Removes the logical type uuid: UUIDs are text in Spark and in Avro, but fastavro would convert them to
    objects."""
    if isinstance(schema, list):
        return [_without_uuids(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: each for name, each in schema.items() if (name, each) != ("logicalType", "uuid")}
    return {name: _without_uuids(each) if name != "default" else each for name, each in kept.items()}
