"""Records to changes: both envelopes, and records that are neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.archive.failures import BadRecordsError, PipelineError
from ottla.archive.store import Store
from ottla.spark.jobs.changes import Envelope, fold, infer_columns, latest, parse_changes, parse_columns, with_columns
from ottla.spark.jobs.live_log import RECORD_SCHEMA, BrokerLog
from ottla.spark.jobs.materialize import MaterializeOptions, materialize
from ottla.spark.jobs.table_history import History
from ottla.spark.jobs.tables import Table
from ottla.testing import Cluster
from tests.spark.jobs.change_logs import produce_raw

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Records = list[tuple[bytes | None, bytes | None]]


def as_records(spark: SparkSession, records: Records) -> DataFrame:
    rows = [(key, value, "t", 0, offset, None, 0, None) for offset, (key, value) in enumerate(records)]
    return spark.createDataFrame(rows, RECORD_SCHEMA)


def parsed(spark: SparkSession, records: Records, envelope: Envelope) -> list[tuple[str | None, ...]]:
    rows = parse_changes(as_records(spark, records), envelope).orderBy("offset").collect()
    return [(row["key"], row["op"], row["value"]) if row["reason"] is None else (row["reason"],) for row in rows]


def test_plain_changes_and_what_is_none(spark: SparkSession) -> None:
    records: Records = [
        (b"1", b'{"a": 1}'),
        (b"1", None),
        (None, b'{"a": 1}'),
        (b"\xff", b'{"a": 1}'),
        (b"1", b"\xff"),
        (b"1", b'{"a": 1'),
        (b"1", b'{"a": 1} {"a": 2}'),
        (b"1", b'{"a": 1},{"a": 2}'),
        (b"1", b""),
        (b"1", b"[1]"),
        (b"1", b"null"),
        (b"1", b'{"a": 1}] x'),
        (b"1", b'{"a": 1}],[{"a": 2}'),
        (b"1", b'{"a": [1]}  '),
        (b"1", b'{"a": 1, "b": 2, "a": 3}'),
    ]
    not_json = ("the value is not JSON",)
    assert parsed(spark, records, Envelope.PLAIN) == [
        ("1", "u", '{"a": 1}'),
        ("1", "d", None),
        ("no key",),
        ("the key is not UTF-8",),
        ("the value is not UTF-8",),
        not_json,
        not_json,
        not_json,
        not_json,
        ("the value is JSON, but not an object",),
        ("the value is JSON, but not an object",),
        not_json,
        not_json,
        ("1", "u", '{"a": [1]}  '),
        not_json,
    ]


def test_changes_of_debezium_with_and_without_their_schema(spark: SparkSession) -> None:
    def envelope(op: str | None, after: object = None) -> bytes:
        return json.dumps({"before": None, "after": after, "op": op, "ts_ms": 1}).encode()

    key = b'{"id":7}'
    wrapped_key = b'{"schema":{"type":"struct"},"payload":{"id":7}}'
    wrapped = json.dumps({"schema": {}, "payload": {"before": None, "after": {"id": 7, "n": "x"}, "op": "r"}}).encode()
    records: Records = [
        (key, envelope("c", {"id": 7, "n": "a"})),
        (wrapped_key, wrapped),
        (key, envelope("d")),
        (wrapped_key, None),
        (key, b'{"id": 7}'),
        (key, envelope("u")),
        (key, envelope("t")),
        (key, envelope("x", {"id": 7})),
        (key, b'{"op": "c", "after": {"id": 7, "id": 8}}'),
    ]
    assert parsed(spark, records, Envelope.DEBEZIUM) == [
        ('{"id":7}', "u", '{"id":7,"n":"a"}'),
        ('{"id":7}', "u", '{"id":7,"n":"x"}'),
        ('{"id":7}', "d", None),
        ('{"id":7}', "d", None),
        ('no "op": not a Debezium envelope',),
        ('no row in "after"',),
        ("a truncate in a topic of several partitions: it is unknown which rows preceded it",),
        ('unknown "op": x',),
        ("the value is not JSON",),
    ]


def test_the_last_change_of_a_key_counts_also_over_a_snapshot(spark: SparkSession) -> None:
    def state(records: Records, base: DataFrame | None = None) -> DataFrame:
        return latest(parse_changes(as_records(spark, records), Envelope.PLAIN), base)

    first: Records = [(b"a", b'{"n": 1}'), (b"b", b'{"n": 2}'), (b"a", None), (b"a", b'{"n": 3}')]
    rows = {row["_key"]: row["_offset"] for row in state(first).collect()}
    assert rows == {"a": 3, "b": 1}
    later = as_records(spark, [*first, (b"b", None), (b"c", b'{"n": 4}')]).where("offset >= 4")
    after = latest(parse_changes(later, Envelope.PLAIN), state(first)).collect()
    assert {row["_key"]: row["_offset"] for row in after} == {"a": 3, "c": 5}


def test_a_truncate_empties_a_table_of_one_partition(spark: SparkSession) -> None:
    def envelope(op: str, **fields: object) -> bytes:
        return json.dumps({"before": None, "after": None, "op": op, **fields}).encode()

    def state(records: Records, base: DataFrame | None = None) -> dict[str, int]:
        changes = parse_changes(as_records(spark, records), Envelope.DEBEZIUM, one_partition=True)
        folded = fold(changes, base)
        assert not folded.bad_records
        return {row["_key"]: row["_offset"] for row in folded.state.collect()}

    row = envelope("c", after={"n": 1})
    first: Records = [(b"a", row), (b"b", row), (None, envelope("t")), (b"b", row), (b"c", row)]
    assert state(first) == {"b": 3, "c": 4}
    assert state([*first, (None, envelope("t"))]) == {}
    base = latest(parse_changes(as_records(spark, first[:2]), Envelope.DEBEZIUM, one_partition=True))
    assert state(first[:3], base) == {}, "rows of a snapshot too"


def test_a_row_with_a_gap_is_no_row(spark: SparkSession) -> None:
    change = {"after": {"id": 1, "body": "__debezium_unavailable_value"}, "op": "u", "source": {"unchanged": ["body"]}}
    elsewhere = {"after": {"id": 1, "body": "__debezium_unavailable_value"}, "op": "u"}
    found = parsed(spark, [(b"k", json.dumps(each).encode()) for each in (change, elsewhere)], Envelope.DEBEZIUM)
    assert all("REPLICA IDENTITY FULL" in str(reason) for (reason,) in found)
    assert len(found) == 2


def test_columns_have_the_types_of_all_rows(spark: SparkSession) -> None:
    values = [
        b'{"id": 1, "Id": 9, "price": 1.5, "ok": true, "odd name": "x", "inner": {"a": 1}, "mixed": 1, "_key": "mine"}',
        b'{"id": 2, "price": 2, "big": 12345678901234567890, "inner": [1], "mixed": "one", "nothing": null}',
    ]
    state = latest(parse_changes(as_records(spark, [(b"%d" % n, v) for n, v in enumerate(values)]), Envelope.PLAIN))
    columns = infer_columns(state)
    expected = {"Id": "bigint", "_key": "string", "big": "decimal(38,0)", "id": "bigint", "inner": "string"}
    expected |= {"mixed": "string", "nothing": "string", "odd name": "string", "ok": "boolean", "price": "double"}
    assert columns == expected
    typed = with_columns(state, {"id": "bigint", **{name: kind for name, kind in columns.items() if name != "Id"}})
    one, two = sorted(typed.collect(), key=lambda row: int(row["id"]))
    assert (one["_key"], one["price"], one["ok"], one["odd name"], one["inner"]) == ("0", 1.5, True, "x", '{"a":1}')
    assert (two["price"], int(two["big"]), two["inner"], two["mixed"]) == (2.0, 12345678901234567890, "[1]", "one")


def test_a_schema_that_is_none_is_refused(spark: SparkSession) -> None:
    assert parse_columns("id BIGINT, name STRING") == {"id": "bigint", "name": "string"}
    with pytest.raises(PipelineError, match="is not a schema"):
        parse_columns("id NUMBERISH")


def test_bad_records_stop_the_table_or_are_set_aside_with_their_reasons(
    spark: SparkSession, cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, table = new_topic(1), Table(Store(str(tmp_path)))
    records: Records = [(b"1", b'{"a": 1}'), (b"2", b"not JSON"), (None, b'{"a": 1}'), (b"3", b'{"a": 3}')]
    produce_raw(cluster.bootstrap_servers, topic, records)
    history = History.open(topic, archive=None, log=BrokerLog(cluster.bootstrap_servers))
    with pytest.raises(BadRecordsError, match=f"2 records .*: {topic}-0 offset 1: the value is not JSON; .*no key"):
        materialize(spark, history, table, Envelope.PLAIN)
    assert table.snapshots() == []

    made = materialize(spark, history, table, Envelope.PLAIN, MaterializeOptions(dead_letters=True))
    assert made is not None
    assert (made.rows, made.changes, made.bad_records) == (2, 4, 2)
    assert made.dead_letters is not None
    aside = spark.read.parquet(table.store.spark_path(made.dead_letters)).orderBy("offset").collect()
    assert [(row["offset"], row["reason"]) for row in aside] == [(1, "the value is not JSON"), (2, "no key")]
    assert table.sweep(table.snapshots()) == []
