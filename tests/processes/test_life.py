"""Start and shutdown: one broker per directory and per port, and a shutdown that answers accepted requests."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from ottla.testing.broker_process import BrokerEndedError, BrokerProcess
from tests.processes.conftest import StartBroker
from tests.processes.traffic import acknowledged, create_topic, ends, plain_producer, read, topic_names, write

LAST_LINES = 6


def refusal_to_start(broker: BrokerProcess) -> BrokerEndedError:
    with pytest.raises(BrokerEndedError) as caught:
        broker.start()
    return caught.value


def test_a_second_broker_on_one_directory(start_broker: StartBroker, tmp_path: Path) -> None:
    first = start_broker()
    create_topic(first.bootstrap, "topic")
    second = BrokerProcess(first.data)
    second.log_path = tmp_path / "second.log"
    refusal = refusal_to_start(second)
    assert refusal.exit_code == 1
    assert "in use" in refusal.log
    assert str(first.pid) in refusal.log, "the message names who has the directory"
    assert "Traceback" not in refusal.log
    assert len(refusal.log.strip().splitlines()) <= LAST_LINES
    assert acknowledged(write(first.bootstrap, "topic", [b"unharmed"])) == [0]


def test_a_busy_port(start_broker: StartBroker, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = BrokerProcess(tmp_path / "data")
        broker.port = taken.getsockname()[1]
        refusal = refusal_to_start(broker)
    assert refusal.exit_code == 1
    assert str(broker.port) in refusal.log
    assert "Traceback" not in refusal.log
    free = start_broker()
    assert topic_names(free.bootstrap) == set()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"ottla.durabilty": "cache"}, "ottla.durability"),
        ({"authorizer.class.name": "com.example.MyAuthorizer"}, "it must be one of"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "it must be one of"),
        ({"listeners": "SSL://127.0.0.1:0"}, "ssl.keystore"),
    ],
)
def test_settings_that_no_broker_starts_with(tmp_path: Path, setting: dict[str, str], message: str) -> None:
    refusal = refusal_to_start(BrokerProcess(tmp_path / "data", config=setting))
    assert refusal.exit_code != 0
    assert message in refusal.log
    assert "Traceback" not in refusal.log
    assert not (tmp_path / "data").exists(), "a broker that does not start leaves nothing behind"


def test_settings_that_only_kafka_has(tmp_path: Path) -> None:
    given = {"num.io.threads": "8", "zookeeper.connect": "a:2181", "num.network.threads": "3", "num.partition": "3"}
    with BrokerProcess(tmp_path / "data", config=given) as broker:
        warnings = [line for line in broker.log().splitlines() if " WARNING " in line and "effect" in line]
        assert topic_names(broker.bootstrap) == set()
    assert len(warnings) == 2
    assert "num.io.threads, num.network.threads" in warnings[0]
    assert "zookeeper.connect" in warnings[0]
    assert "did you mean num.partitions?" in warnings[1]


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("mine")
    refusal = refusal_to_start(BrokerProcess(tmp_path / "data"))
    assert refusal.exit_code == 1
    assert "thesis.txt" in refusal.log
    assert (tmp_path / "data" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_end_answers_what_it_accepted(start_broker: StartBroker, number: signal.Signals) -> None:
    broker = start_broker()
    create_topic(broker.bootstrap, "topic")
    producer = plain_producer(broker.bootstrap, max_in_flight_requests_per_connection=50, linger_ms=0)
    acknowledged_offsets: list[int] = []
    failures: list[str] = []

    def on_delivery(error: object, message: object) -> None:
        if error is None:
            acknowledged_offsets.append(message.offset())  # type: ignore[attr-defined]  # confluent's own class
        else:
            failures.append(str(error))

    sent = 0
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        producer.produce("topic", value=b"%d" % sent, partition=0, on_delivery=on_delivery)
        producer.poll(0)
        sent += 1
        if sent % 50 == 0:
            time.sleep(0.002)
    os.kill(broker.pid, number)
    assert broker.wait(20) == 0
    producer.flush(20)
    broker.start()
    found = dict(read(broker.bootstrap, "topic"))
    assert len(acknowledged_offsets) + len(failures) == sent
    assert set(found) >= set(acknowledged_offsets)
    # Every accepted request was answered: the log has nothing that its producer believes lost, except for requests in
    # flight when the socket closed.
    assert len(found) == len(acknowledged_offsets)


def test_a_clean_restart_has_nothing_to_recover(start_broker: StartBroker) -> None:
    broker = start_broker()
    create_topic(broker.bootstrap, "topic", 3)
    for partition in range(3):
        write(broker.bootstrap, "topic", [b"x" * 1000] * 100, partition)
    assert broker.stop() == 0
    broker.start()
    assert [ends(broker.bootstrap, "topic", partition) for partition in range(3)] == [(0, 100)] * 3


def test_memory_topics_stay_and_their_offsets_go_on(start_broker: StartBroker) -> None:
    """The records of a `memory` topic are lost with the process; their offsets are never reused."""
    broker = start_broker()
    create_topic(broker.bootstrap, "topic", ottla_durability="memory")
    last = acknowledged(write(broker.bootstrap, "topic", [b"x"] * 100))[-1]
    broker.kill()
    broker.start()
    first, end = ends(broker.bootstrap, "topic")
    assert first == end > last
    (after,) = acknowledged(write(broker.bootstrap, "topic", [b"y"]))
    assert read(broker.bootstrap, "topic") == [(after, b"y")]


def test_many_restarts_do_not_fill_the_directory(start_broker: StartBroker) -> None:
    broker = start_broker()
    create_topic(broker.bootstrap, "topic")
    sizes = []
    for _ in range(6):
        write(broker.bootstrap, "topic", [b"x"] * 10)
        broker.kill()
        broker.start()
        sizes.append(sum(path.stat().st_blocks * 512 for path in broker.data.rglob("*") if path.is_file()))
    assert sizes[-1] <= sizes[1] + 1_000_000
    assert len(read(broker.bootstrap, "topic")) == 60
