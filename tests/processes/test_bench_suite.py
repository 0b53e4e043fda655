"""Runs a tiny matrix of `ottla bench`, interrupted and resumed, and Apache Kafka beside it where it is available."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ottla.bench.leaders import any_broker
from ottla.bench.processes import Worker
from ottla.bench.suite.drivers import DRIVERS
from ottla.bench.suite.histogram import highest_in
from ottla.bench.suite.kafka_jars import KafkaUnavailableError, kafka_libraries
from ottla.bench.suite.loads import ProducerLoad
from ottla.bench.suite.settings import DEFAULTS, Value
from ottla.bench.suite.store import RESULTS_FILE, read_lines
from ottla.cli import main
from ottla.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.timeout(600)

TINY = """
repetitions = 2
warm_up_s = 0.1
producer = { duration_s = 0.4, record_bytes = 100 }
topic.partitions = 2
[targets.ottla]
kind = "ottla"
[[list]]
label = "at a rate"
producer.rate = 500
consumers.clients = 2
[[list]]
label = "one by one"
driver = "ottla"
producer.mode = "sync"
[[list]]
label = "by table"
driver = "ottla-arrow"
producer = { records = 5000, batch_records = 1000, keys = 10 }
consumers = { clients = 1, read = "disk" }
"""

REFUSED = """
repetitions = 1
warm_up_s = 0
producer.duration_s = 0.3
[targets.ottla]
kind = "ottla"
[[list]]
label = "too large"
producer.record_bytes = 4_000_000
[[list]]
label = "fine"
"""

FROM_DISK = """
repetitions = 1
warm_up_s = 0
producer = { records = 2000, record_bytes = 100 }
topic.replication = 3
[targets.ottla]
kind = "ottla"
brokers = 3
[[list]]
label = "from disk"
consumers = { clients = 1, read = "disk" }
"""

BESIDE = """
repetitions = 1
warm_up_s = 0.1
producer.duration_s = 0.4
subject = "ottla"
peer = "kafka"
goals = ["records_per_s >= 0.0001"]
[targets.ottla]
kind = "ottla"
[targets.kafka]
kind = "kafka"
heap_mb = 256
[[list]]
label = "synced before it is acknowledged"
topic.durability = "disk"
[[list]]
label = "the Java tool"
driver = "java"
producer = { records = 2000 }
consumers = { clients = 1, read = "log" }
"""


def cells(results: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(results / RESULTS_FILE) if line["kind"] == "cell"]


def written(directory: Path, text: str) -> Path:
    path = directory / "matrix.toml"
    path.write_text(text, encoding="utf-8")
    return path


def interrupt_after_one(file: Path, results: Path) -> int:
    command = [sys.executable, "-m", "ottla", "bench", "run", str(file), "--out", str(results)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not cells(results):
        assert process.poll() is None, "it ended before it measured anything"
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


def test_a_matrix_is_measured_interrupted_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, results = written(tmp_path, TINY), tmp_path / "results"
    assert interrupt_after_one(file, results) == 130
    before = cells(results)
    assert 0 < len(before) < 6
    assert list((results / "data").iterdir()) == []

    assert main(["bench", "run", str(file), "--out", str(results)]) == 0
    after = cells(results)
    assert after[: len(before)] == before
    assert Counter((line["label"], line["repetition"]) for line in after) == Counter(
        (label, repetition) for label in ("at a rate", "one by one", "by table") for repetition in (0, 1)
    )
    _check_figures({line["label"]: line["figures"] for line in after})
    with (results / "results.csv").open(newline="") as table:
        assert len(list(csv.DictReader(table))) == 6
    assert "<svg" in (results / "report.html").read_text(encoding="utf-8")

    capsys.readouterr()
    assert main(["bench", "run", str(file), "--out", str(results)]) == 0
    assert "6 of 6 measurements already exist" in capsys.readouterr().err
    assert cells(results) == after
    monkeypatch.setenv("COLUMNS", "200")  # in a narrow table the words that the test searches for wrap
    assert main(["bench", "compare", str(results), str(results)]) == 0
    assert "within the noise" in capsys.readouterr().out


def _check_figures(figures: dict[str, dict[str, float]]) -> None:
    for found in figures.values():
        assert found["records_per_s"] > 0
        assert found["p50_us"] <= found["p99_us"] <= found["p999_us"] <= found["max_us"]
        assert found["broker_memory_mb"] > 10
        assert found["clients_memory_mb"] > 10
    for name in ("brokers_cpu_s_per_gb", "clients_cpu_s_per_gb"):
        assert any(found[name] > 0 for found in figures.values()), "CPU time is counted in ticks of 10 ms"
    at_a_rate = figures["at a rate"]
    assert at_a_rate["records_per_s"] <= 510
    assert at_a_rate["end_to_end_p50_us"] > 0
    assert at_a_rate["read_records_per_s"] > 0
    assert figures["by table"]["read_records_per_s"] > 0
    assert figures["by table"]["read_brokers_cpu_s_per_gb"] >= 0


def test_a_cell_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, results = written(tmp_path, REFUSED), tmp_path / "results"
    assert main(["bench", "run", str(file), "--out", str(results)]) == 1
    printed = capsys.readouterr()
    assert "1 could not be measured: ottla: too large #1: " in printed.err
    assert printed.out.splitlines()[0] == "1 row failed"
    found = {line["label"]: line for line in cells(results)}
    assert "too large" in found["too large"]["failure"].lower()
    assert found["fine"]["figures"]["records_per_s"] > 0


def test_a_cluster_is_read_from_disk(tmp_path: Path) -> None:
    """The brokers coordinate through SQLite and named pipes, which have no pages to drop."""
    file, results = written(tmp_path, FROM_DISK), tmp_path / "results"
    assert main(["bench", "run", str(file), "--out", str(results)]) == 0
    (found,) = cells(results)
    assert found["figures"]["read_records_per_s"] > 0


def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "[producer]\nack = 1\n")
    assert main(["bench", "run", str(file)]) == 1
    expected = f"ottla: {file}, line 2: there is no key producer.ack. Did you mean producer.acks?\n"
    assert capsys.readouterr().err == expected


def test_apache_kafka_is_measured_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        kafka_libraries()
    except KafkaUnavailableError as reason:
        pytest.skip(str(reason))
    file, results = written(tmp_path, BESIDE), tmp_path / "results"
    assert main(["bench", "run", str(file), "--out", str(results)]) == 0
    found = {(line["label"], line["target"]): line["figures"] for line in cells(results)}
    assert len(found) == 4
    for figures in found.values():
        assert figures["records_per_s"] > 0
    assert found["the Java tool", "kafka"]["read_records_per_s"] > 0
    printed = capsys.readouterr().out
    assert ">= 0.0001: met" in printed
    page = (results / "report.html").read_text(encoding="utf-8")
    assert "Apache Kafka 4." in page
    assert "-Xmx256m" in page
    for line in read_lines(results / RESULTS_FILE):
        if line["kind"] == "start":
            assert line["figures"]["start_s"] > 0


@pytest.mark.parametrize("driver", ["librdkafka", "ottla"])
def test_a_stall_is_charged_to_every_record_that_was_due(driver: str, tmp_path: Path) -> None:
    """No coordinated omission: records that are due during a stall are sent late, and the delay counts."""
    configuration: dict[str, Value] = {
        **DEFAULTS,
        "driver": driver,
        "producer.mode": "sync",
        "producer.rate": 200,
        "producer.duration_s": 3,
        "producer.record_bytes": 100,
    }
    with BrokerProcess(tmp_path / "broker", ready_timeout_s=120.0) as broker, Worker() as worker:
        with any_broker(broker.bootstrap) as caller:
            caller.create_topics(["t"], 1, {})
        load = ProducerLoad(broker.bootstrap, "t", configuration, 0, 0.0, 0)
        with ThreadPoolExecutor(1) as threads, any_broker(broker.bootstrap) as caller:
            produced = threads.submit(worker.call, DRIVERS[driver].produce, load)
            while caller.end_offset("t") < 10:
                time.sleep(0.01)
            os.kill(broker.pid, signal.SIGSTOP)
            time.sleep(0.6)
            os.kill(broker.pid, signal.SIGCONT)
            found = produced.result()
    slow = sum(times for bucket, times in found.latencies.counts.items() if highest_in(bucket) > 100_000)
    assert slow > 50
    assert found.latencies.count == found.records
