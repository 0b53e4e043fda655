"""Options, ranges and filters of the source: their meaning, and the errors for invalid ones."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import datasource as ds

from ottla.client import TopicPartition
from ottla.spark.options_text import OptionError
from ottla.spark.sink.options import read_sink_options
from ottla.spark.source.filters import RowBounds, narrowed
from ottla.spark.source.offsets import OffsetRange, from_json, limited, split, to_json
from ottla.spark.source.options import EARLIEST, read_options

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BASE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "a"}


def options(**given: str) -> ds.CaseInsensitiveDict:
    found = ds.CaseInsensitiveDict()
    found.update({**BASE, **{name.replace("__", "."): text for name, text in given.items()}})
    return found


def test_defaults_are_those_of_sparks_connector() -> None:
    batch, stream = read_options(options(), streaming=False), read_options(options(), streaming=True)
    assert (batch.start.kind, batch.end.kind) == ("earliest", "latest")
    assert stream.start.kind == "latest"
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert batch.group is None
    assert batch.consumer == {}


def test_names_have_no_case() -> None:
    found = read_options(options(STARTINGOFFSETS="latest", FailOnDataLoss="FALSE"), streaming=True)
    assert found.start.kind == "latest"
    assert not found.fail_on_data_loss


def test_offsets_and_times() -> None:
    found = read_options(
        options(startingOffsets='{"a":{"0":23,"1":-2}}', endingTimestamp="1700000000000"), streaming=False
    )
    assert found.start.numbers == {A0: 23, A1: EARLIEST}
    assert (found.end.kind, found.end.time_ms) == ("time", 1_700_000_000_000)
    both = options(startingOffsets="latest", startingTimestamp="5", startingOffsetsByTimestamp='{"a":{"0":6}}')
    assert read_options(both, streaming=True).start.time_ms == 5, "one time goes before all"


def test_settings_of_kafkas_client_reach_ours() -> None:
    found = read_options(
        options(
            kafka__isolation__level="read_committed", kafka__fetch__min__bytes="7", kafka__session__timeout__ms="9"
        ),
        streaming=False,
    )
    assert found.consumer == {"isolation_level": "read_committed", "fetch_min_bytes": 7}
    assert read_options(options(kafka__security__protocol="plaintext"), streaming=False).consumer == {}
    assert read_options(options(kafka__group__id="g"), streaming=True).group == "g"
    assert read_options(options(ottla__group="h"), streaming=True).group == "h"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kafka__bootstrap__servers": ""}, "kafka.bootstrap.servers must be given"),
        ({"assign": '{"a":[0]}'}, "subscribe, assign choose the topics with exactly one"),
        ({"subscribe": " , "}, "contains no topic"),
        ({"startingOffsets": "first"}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"a":[1]}'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"a":{"0":-7}}'}, "invalid offset for a-0"),
        ({"startingOffsets": "latest"}, "cannot be latest in a batch query"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "cannot be latest in a batch query"),
        ({"endingOffsets": "earliest"}, "cannot be earliest in a batch query"),
        ({"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'}, "is after endingOffsets in a-0"),
        ({"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"1":4}}'}, "must have the same partitions"),
        ({"startingTimestamp": "yesterday"}, "must be an integer"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "must be error or latest"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"minPartitions": "0"}, "must be at least 1"),
        ({"maxTriggerDelay": "soon"}, "must be a duration"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is larger than maxOffsetsPerTrigger=4"),
        ({"startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"ottla__nonsense": "1"}, "ottla.nonsense is not an option"),
        ({"kafka__auto__offset__reset": "latest"}, "startingOffsets"),
        ({"kafka__value__deserializer": "x"}, "cast the column"),
        ({"kafka__isolation__level": "serializable"}, "read_uncommitted or read_committed"),
        ({"kafka__isolation__levle": "read_committed"}, "did you mean kafka.isolation.level"),
        ({"kafka__partitioner__ignore__keys": "true"}, "the key of a row always determines its partition"),
        ({"kafka__security__providers": "x"}, "PLAINTEXT only"),
        ({"kafka__security__protocol": "SASL_SSL"}, "PLAINTEXT only"),
        ({"kafka__ssl__truststore__location": "x"}, "PLAINTEXT only"),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options(options(**given), streaming=False)


def test_a_password_is_not_told() -> None:
    with pytest.raises(OptionError) as caught:
        read_options(options(kafka__sasl__jaas__config="secret"), streaming=False)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["subscribePattern", "assign"])
def test_other_ways_to_say_what_to_read(name: str) -> None:
    text = {"subscribePattern": "a.*", "assign": '{"a":[1,0]}'}[name]
    given = ds.CaseInsensitiveDict()
    given.update({"kafka.bootstrap.servers": "x:1", name: text})
    found = read_options(given, streaming=True).subscription
    assert found.partitions == ((A0, A1) if name == "assign" else ())
    assert found.matches("aa") is (name != "assign")
    assert not found.matches("ba")


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="a streaming query has no end"):
        read_options(options(endingOffsets="latest"), streaming=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ottla__delivery": "at-most-once"}, "must be one of exactly-once, at-least-once"),
        ({"kafka__acks": "1"}, "needs kafka.acks=all"),
        ({"kafka__enable__idempotence": "false"}, "needs kafka.acks=all"),
        ({"ottla__txn__app__id": "x"}, "must be set together"),
        ({"ottla__txn__app__id": "x/y", "ottla__txn__version": "1"}, "must consist of at most 150 letters, digits"),
        ({"ottla__lost__transactions": "ignore"}, "must be one of fail, accept"),
        ({"kafka__transactional__id": "x"}, "ottla.delivery"),
        ({"kafka__partitioner__class": "x"}, "Java's default partitioner"),
        ({"topics": "x"}, "did you mean topic"),
    ],
)
def test_what_is_wrong_for_the_sink_is_told(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_sink_options(options(**given), streaming=False)


def test_offsets_are_written_as_sparks_connector_writes_them() -> None:
    offsets = {B0: 1, A1: 2, A0: 3}
    assert list(to_json(offsets)) == ["a", "b"]
    assert to_json(offsets) == {"a": {"0": 3, "1": 2}, "b": {"0": 1}}
    assert from_json(to_json(offsets)) == offsets


def test_a_limit_is_shared_by_what_waits() -> None:
    start, end = {A0: 0, A1: 0, B0: 7}, {A0: 900, A1: 100, B0: 7}
    assert limited(start, end, 100) == {A0: 90, A1: 10, B0: 7}
    assert limited(start, end, 2000) == end
    assert limited({A0: 0, A1: 0}, {A0: 10_000, A1: 1}, 10) == {A0: 9, A1: 1}, "each has at least one"


def test_ranges_are_cut_for_more_tasks() -> None:
    whole = [OffsetRange(A0, 0, 100), OffsetRange(A1, 5, 5), OffsetRange(B0, 0, 10)]
    assert split(whole) == [whole[0], whole[2]]
    cut = split(whole, 4)
    assert [each.at for each in cut] == [A0, A0, A0, B0]
    assert [each.size for each in cut] == [33, 33, 34, 10]
    assert (cut[0].start, cut[1].start, cut[2].end) == (0, cut[0].end, 100)
    assert [each.size for each in split(whole, None, 40)] == [33, 33, 34, 10]
    assert sum(each.size for each in split(whole, 50, 7)) == 110


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_filters_narrow_what_is_read() -> None:
    def wanted(*filters: Any) -> RowBounds:
        return narrowed(RowBounds(), filters)

    offset, time, partition = ("offset",), ("timestamp",), ("partition",)
    both = wanted(ds.GreaterThan(offset, 4), ds.LessThanOrEqual(offset, 9))
    assert (both.offset_min, both.offset_end) == (5, 10)
    assert wanted(ds.EqualTo(offset, 4), ds.GreaterThanOrEqual(offset, 2)) == RowBounds(offset_min=4, offset_end=5)
    assert wanted(ds.In(offset, (9, 3))) == RowBounds(offset_min=3, offset_end=10)
    since = wanted(ds.GreaterThanOrEqual(time, at("1970-01-01T00:00:01.000001")))
    assert since.time_min_us == 1_000_001
    assert since.time_min_ms == 1001
    assert wanted(ds.EqualTo(partition, 1)).includes(A1)
    assert not wanted(ds.EqualTo(partition, 1)).includes(A0)
    assert not wanted(ds.In(("topic",), ("b", "c")), ds.EqualTo(("topic",), "c")).includes(B0)
    for says_nothing in (
        ds.Not(ds.EqualTo(offset, 4)),
        ds.IsNotNull(offset),
        ds.EqualTo(("value",), b"x"),
        ds.GreaterThan(time, datetime(2020, 1, 1)),
        ds.StringStartsWith(("topic",), "a"),
    ):
        assert wanted(says_nothing) == RowBounds()
