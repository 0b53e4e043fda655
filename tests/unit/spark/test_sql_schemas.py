"""Columns of streams: declared, inferred from JSON samples, or from an Avro schema."""

from __future__ import annotations

import json

import pytest

from ottla.spark.sql.avro_schema import avro_columns
from ottla.spark.sql.definitions import Definition, QueryDefinition, declared
from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.inference import infer_columns
from ottla.spark.sql.parser import parse
from ottla.spark.sql.statements import Column, CreateStream


def types(*values: object) -> dict[str, str]:
    found = infer_columns(json.dumps(value).encode() for value in values)
    return {column.name: column.type for column in found.columns}


def test_a_column_has_the_type_that_fits_all_samples() -> None:
    assert types({"a": 1, "b": True, "c": None}, {"a": 2.5, "b": False, "d": "x"}) == {
        "a": "DOUBLE",
        "b": "BOOLEAN",
        "c": "STRING",
        "d": "STRING",
    }


def test_texts_that_are_all_times_are_times() -> None:
    times = ["2026-11-16T12:00:00Z", "2026-11-16 12:00", "2026-11-16T12:00:00.123456+01:00"]
    assert types(*({"t": each, "u": each} for each in times), {"u": "soon"}) == {"t": "TIMESTAMP", "u": "STRING"}


def test_nested_values_and_those_that_disagree() -> None:
    assert types({"s": {"x": 1, "y": [1, 2.5]}, "m": 1, "e": {}, "n": []}, {"s": {"z": "a"}, "m": {"k": 1}}) == {
        "s": "STRUCT<`x`: BIGINT, `y`: ARRAY<DOUBLE>, `z`: STRING>",
        "m": "STRING",
        "e": "STRING",
        "n": "ARRAY<STRING>",
    }
    assert types({"big": 2**70}) == {"big": "DOUBLE"}


def test_values_that_are_no_objects_do_not_count() -> None:
    found = infer_columns([None, b"no JSON", b"[1]", b"\xff", b'{"a": 1}', b"[" * 100_000])
    assert (found.fitting, found.columns) == (1, (Column("a", "BIGINT"),))
    assert infer_columns([b"5"]).columns == ()


def test_fields_that_differ_in_case_only_are_found() -> None:
    assert infer_columns([b'{"user": 1, "USER": 2}']).clash == ("user", "USER")
    assert types({"s": {"a": 1, "A": 2}}) == {"s": "STRING"}


AVRO = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": "Kind"},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "to", "type": {"type": "record", "name": "Place", "fields": [{"name": "zip", "type": "string"}]}},
    ],
}


def test_columns_of_an_avro_schema() -> None:
    assert avro_columns(json.dumps(AVRO)) == (
        Column("id", "BIGINT"),
        Column("note", "STRING"),
        Column("at", "TIMESTAMP"),
        Column("price", "DECIMAL(8, 2)"),
        Column("kind", "STRING"),
        Column("other", "STRING"),
        Column("tags", "MAP<STRING, ARRAY<INT>>"),
        Column("to", "STRUCT<`zip`: STRING>"),
    )


def test_avro_types_are_known_after_the_record_that_defines_them() -> None:
    kind = {"type": "enum", "name": "Kind", "symbols": ["A"]}
    price = {"type": "fixed", "name": "Price", "size": 8, "logicalType": "decimal", "precision": 8, "scale": 2}
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "k", "type": kind}, {"name": "p", "type": price}]}
    types = {"i": inner, "k": "Kind", "p": "Price", "j": "Inner"}
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": each} for name, each in types.items()]}
    assert avro_columns(json.dumps(schema)) == (
        Column("i", "STRUCT<`k`: STRING, `p`: DECIMAL(8, 2)>"),
        Column("k", "STRING"),
        Column("p", "DECIMAL(8, 2)"),
        Column("j", "STRUCT<`k`: STRING, `p`: DECIMAL(8, 2)>"),
    )


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        (["int", "string"], "union"),
        ("nonsense", "is not an Avro type"),
        ("R", "is recursive"),
        ({"type": "int", "logicalType": "time-millis"}, "is not supported by Spark"),
    ],
)
def test_avro_that_spark_cannot_hold(field: object, sentence: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": field}]}
    with pytest.raises(SqlError, match=sentence):
        avro_columns(json.dumps(schema))
    with pytest.raises(SqlError, match="not JSON"):
        avro_columns("{")
    with pytest.raises(SqlError, match="must be a record"):
        avro_columns('"string"')


def declare(text: str, files: dict[str, str] | None = None) -> Definition:
    (statement,) = parse(text)
    assert isinstance(statement, CreateStream)

    def read(path: str) -> str:
        if files is None or path not in files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return files[path]

    return declared(statement, text, read)


def test_defaults_of_a_declaration() -> None:
    made = declare("CREATE STREAM clicks (user STRING, ts TIMESTAMP) WITH (topic='web')")
    assert (made.topic, made.format, made.event_time, made.delay) == ("web", "json", "ts", "10 minutes")
    assert made.dead_letters == "clicks-dead-letters"
    two = declare(
        "CREATE STREAM c (a TIMESTAMP, b TIMESTAMP) WITH (topic='t', dead_letters='none', watermark='2 hours')"
    )
    assert (two.event_time, two.delay, two.dead_letters) == (None, "2 hours", None)
    assert declare("CREATE STREAM c WITH (topic='t', format='string')").columns == (Column("value", "STRING"),)
    assert declare("CREATE STREAM c (b BINARY) WITH (topic='t', format='bytes')").columns == (Column("b", "BINARY"),)
    chosen = declare(
        "CREATE STREAM c (id STRING, at BIGINT) WITH (topic='t', timestamp='at', key='id', dead_letters='x')"
    )
    assert (chosen.event_time, chosen.key, chosen.dead_letters) == ("at", ("id",), "x")


def test_an_avro_schema_is_inline_or_in_a_file() -> None:
    text = json.dumps(AVRO)
    inline = declare(f"CREATE STREAM o WITH (topic='t', format='avro', avro_schema='{text}')")
    filed = declare("CREATE STREAM o WITH (topic='t', format='avro', avro_schema_file='o.avsc')", {"o.avsc": text})
    assert inline.columns == filed.columns == avro_columns(text)
    assert filed.avro_schema == text
    assert filed.event_time == "at"


@pytest.mark.parametrize(
    ("text", "where", "sentence"),
    [
        ("CREATE STREAM c (a INT) WITH (format='json')", "CREATE", "the topic of the stream is missing"),
        ("CREATE STREAM c (a INT) WITH (topic='t', format='xml')", "'xml'", "format must be one of"),
        ("CREATE STREAM c WITH (topic='t', format='json')", "CREATE", "columns are expected"),
        ("CREATE STREAM c (_offset INT) WITH (topic='t')", "_offset", "that every record has"),
        ("CREATE STREAM c (a INT) WITH (topic='t', key='b')", "'b'", "not one of the columns"),
        ("CREATE STREAM c (a INT) WITH (topic='t', timestamp='b')", "'b'", "not one of the columns"),
        ("CREATE STREAM c (a DOUBLE) WITH (topic='t', timestamp='a')", "'a'", "TIMESTAMP, BIGINT"),
        ("CREATE STREAM c (a INT) WITH (topic='t', watermark='soon')", "'soon'", "is not a delay"),
        ("CREATE STREAM c (a INT, b INT) WITH (topic='t', format='string')", "b INT", "one column"),
        ("CREATE STREAM c (a INT) WITH (topic='t', format='string')", "a INT", "of type STRING"),
        ("CREATE STREAM c WITH (topic='t', format='avro')", "CREATE", "needs avro_schema"),
        ("CREATE STREAM c (a INT) WITH (topic='t', avro_schema='{}')", "'{}'", "needs format"),
        ("CREATE STREAM c WITH (topic='t', format='avro', avro_schema='{}')", "'{}'", "must be a record"),
        ("CREATE STREAM c WITH (topic='t', format='avro', avro_schema_file='no')", "'no'", "No such file"),
    ],
)
def test_declarations_that_do_not_fit_together(text: str, where: str, sentence: str) -> None:
    with pytest.raises(SqlError) as caught:
        declare(text)
    assert sentence in caught.value.sentence
    assert caught.value.position == text.index(where)


def test_definitions_are_the_same_after_json() -> None:
    made = declare("CREATE STREAM c (id STRING, at BIGINT) WITH (topic='t', timestamp='at', key='id')")
    assert Definition.from_json(json.loads(json.dumps(made.to_json()))) == made
    query = QueryDefinition("q", made, "INSERT INTO t SELECT 1", "insert into t select 1", "abc", {"c": made})
    assert QueryDefinition.from_json(json.loads(json.dumps(query.to_json()))) == query
