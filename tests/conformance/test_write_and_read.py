"""Every client reads what any client wrote: all codecs, nulls, headers, timestamps, sizes, acknowledgements."""

from __future__ import annotations

import threading
import time

import pytest

from ottla.protocol.records.codecs import Compression
from tests.conformance.clients.interface import CODECS, Ability, Record
from tests.conformance.conftest import LEADERS_MOVE, NAMES, ONE_BROKER, ClientOf, TopicOf, named
from tests.conformance.records import TIME_MS, contents, sample
from tests.conformance.stored import stored_batches

pytestmark = pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)
LARGE_BYTES = 1_000_000
PAIRS_OF_EACH = [
    (writer, codec, NAMES[(place + shift) % len(NAMES)])
    for place, writer in enumerate(NAMES)
    for shift, codec in enumerate(CODECS)
]
"""Each writer with each codec and each reader, and each reader with each codec. Not all triples, since the reader does
not affect the content of a batch."""


@pytest.fixture(scope="module")
def written(client_of: ClientOf, fresh_topic: TopicOf) -> dict[tuple[str, str], str]:
    """Topics already written, by writer and codec."""
    return {}


def write_sample(client_of: ClientOf, fresh_topic: TopicOf, writer: str, codec: str) -> str:
    client = client_of(writer)
    topic = fresh_topic(f"{writer}-{codec}")
    client.create_topic(topic)
    records = sample(client)
    offsets = client.write(topic, records, codec=codec, idempotent=Ability.IDEMPOTENCE in client.abilities)
    if Ability.OFFSETS_OF_WRITES in client.abilities:
        assert offsets == list(range(len(records)))
    return topic


@pytest.mark.worlds(ONE_BROKER)
@pytest.mark.parametrize("reader", NAMES)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", NAMES)
def test_written_by_one_read_by_all(
    client_of: ClientOf,
    fresh_topic: TopicOf,
    written: dict[tuple[str, str], str],
    writer: str,
    codec: str,
    reader: str,
) -> None:
    client_of(reader)
    if (writer, codec) not in written:
        written[writer, codec] = write_sample(client_of, fresh_topic, writer, codec)
    check_read(client_of, written[writer, codec], writer, reader)


@pytest.mark.worlds(LEADERS_MOVE)
@pytest.mark.parametrize(("writer", "codec", "reader"), PAIRS_OF_EACH)
def test_written_by_one_read_by_another_while_leaders_move(
    client_of: ClientOf, fresh_topic: TopicOf, writer: str, codec: str, reader: str
) -> None:
    client_of(reader)
    check_read(client_of, write_sample(client_of, fresh_topic, writer, codec), writer, reader)


def check_read(client_of: ClientOf, topic: str, writer: str, reader: str) -> None:
    expected = sample(client_of(writer))
    found = client_of(reader).read(topic, len(expected))
    assert [record.offset for record in found] == list(range(len(expected)))
    assert contents(found) == contents(expected)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", NAMES)
def test_what_was_stored(client_of: ClientOf, fresh_topic: TopicOf, bootstrap: str, writer: str, codec: str) -> None:
    """A client that does not support a broker's versions silently writes without codec or idempotence."""
    topic = write_sample(client_of, fresh_topic, writer, codec)
    record_count = len(sample(client_of(writer)))
    batches = stored_batches(bootstrap, topic, record_count)
    assert sum(batch.record_count for batch in batches) == record_count
    # Clients send a batch uncompressed if the codec does not make it smaller.
    codecs = {Compression(batch.compression).name for batch in batches}
    assert codec in codecs
    assert codecs <= {codec, "none"}
    assert all(batch.producer_id >= 0 and batch.base_sequence >= 0 for batch in batches)
    assert all(batch.magic == 2 for batch in batches)


@pytest.mark.leaders_at_rest("acks=1 loses what only the old leader had, and a retry doubles and reorders")
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", NAMES)
def test_without_idempotence(client_of: ClientOf, fresh_topic: TopicOf, writer: str, codec: str) -> None:
    client = client_of(writer)
    topic = fresh_topic("plain")
    client.create_topic(topic)
    client.write(topic, sample(client), codec=codec, idempotent=False, acks=1)
    assert contents(client.read(topic, len(sample(client)))) == contents(sample(client))


@pytest.mark.leaders_at_rest("nobody tells the client that it wrote to the wrong broker")
@pytest.mark.parametrize("name", NAMES)
def test_unacknowledged_writes_arrive(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("unacknowledged")
    client.create_topic(topic)
    # No error is returned if the leader does not know the topic yet; once this record is acknowledged, it does.
    first = Record(b"acknowledged")
    client.write(topic, [first])
    records = [Record(b"%d" % number) for number in range(10)]
    client.write(topic, records, idempotent=False, acks=0)
    assert contents(client.read(topic, 11)) == [first, *records]


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_is_created_by_its_first_write(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("automatic")
    client.write(topic, [Record(b"hello")])
    assert contents(client.read(topic, 1)) == [Record(b"hello")]
    assert client.topics()[topic] == 1


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("name", NAMES)
def test_large_records(client_of: ClientOf, fresh_topic: TopicOf, name: str, codec: str) -> None:
    client = client_of(name)
    topic = fresh_topic("large")
    client.create_topic(topic)
    records = [Record(bytes([97 + number]) * LARGE_BYTES, b"large") for number in range(3)]
    for record in records:
        client.write(topic, [record], codec=codec)
    found = client.read(topic, 3)
    assert [len(record.value or b"") for record in found] == [LARGE_BYTES] * 3
    assert contents(found) == records


@pytest.mark.parametrize("name", named(Ability.TIMESTAMPS))
def test_timestamps_are_the_writers(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("created")
    client.create_topic(topic)
    client.write(topic, [Record(b"x", timestamp_ms=TIME_MS + number * 1000) for number in range(5)])
    assert [r.timestamp_ms for r in client.read(topic, 5)] == [TIME_MS + number * 1000 for number in range(5)]


@pytest.mark.parametrize("name", named(Ability.TIMESTAMPS))
def test_timestamps_are_the_brokers_on_demand(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("appended")
    client.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    client.write(topic, [Record(b"x", timestamp_ms=TIME_MS) for _ in range(3)])
    after_ms = int(time.time() * 1000)
    assert all(before_ms - 1 <= (r.timestamp_ms or 0) <= after_ms + 1 for r in client.read(topic, 3))


@pytest.mark.parametrize("name", NAMES)
def test_reading_starts_inside_a_batch(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("middle")
    client.create_topic(topic)
    client.write(topic, [Record(b"%d" % number) for number in range(20)], codec="gzip")
    found = client.read(topic, 7, offset=13)
    assert [(record.offset, record.value) for record in found] == [(n, b"%d" % n) for n in range(13, 20)]


@pytest.mark.parametrize("name", named(Ability.ADMIN))
def test_partitions_are_logs_of_their_own(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    client = client_of(name)
    topic = fresh_topic("partitions")
    client.create_topic(topic, partitions=3)
    client.write(topic, [Record(b"%d" % number, partition=number % 3) for number in range(30)])
    for partition in range(3):
        found = client.read(topic, 10, partition=partition)
        assert [record.value for record in found] == [b"%d" % number for number in range(partition, 30, 3)]


@pytest.mark.worlds(ONE_BROKER)
@pytest.mark.parametrize("topic_codec", CODECS[1:])
@pytest.mark.parametrize("reader", NAMES)
def test_the_topic_decides_the_codec(client_of: ClientOf, fresh_topic: TopicOf, reader: str, topic_codec: str) -> None:
    """One of the few exceptions to opaque batches: a topic with its own codec."""
    check_codec_of_topic(client_of, fresh_topic, reader, topic_codec)


@pytest.mark.worlds(LEADERS_MOVE)
@pytest.mark.parametrize("topic_codec", CODECS[1:])
def test_the_topic_decides_the_codec_while_leaders_move(
    client_of: ClientOf, fresh_topic: TopicOf, topic_codec: str
) -> None:
    check_codec_of_topic(client_of, fresh_topic, NAMES[CODECS.index(topic_codec)], topic_codec)


def check_codec_of_topic(client_of: ClientOf, fresh_topic: TopicOf, reader: str, topic_codec: str) -> None:
    writer = client_of("confluent-kafka")
    topic = fresh_topic("codec")
    writer.create_topic(topic, configs={"compression.type": topic_codec})
    records = [Record(b"compress me " * 50, b"%d" % number) for number in range(20)]
    writer.write(topic, records, codec="none")
    writer.write(topic, records, codec="lz4")
    assert contents(client_of(reader).read(topic, 40)) == records * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_waiting_reader_gets_what_is_written_later(client_of: ClientOf, fresh_topic: TopicOf, name: str) -> None:
    """The reader's fetch waits on the broker until records arrive."""
    client = client_of(name)
    if name == "kcat":
        pytest.skip("kcat -e ends at the end of the log instead of waiting")
    topic = fresh_topic("later")
    client.create_topic(topic)
    other = client_of("kafka-python" if name == "confluent-kafka" else "confluent-kafka")
    found: list[Record] = []
    reader = threading.Thread(target=lambda: found.extend(client.read(topic, 2)))
    reader.start()
    time.sleep(0.7)
    other.write(topic, [Record(b"one"), Record(b"two")])
    reader.join(30)
    assert contents(found) == [Record(b"one"), Record(b"two")]
