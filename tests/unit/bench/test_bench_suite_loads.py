"""Records, times, costs and the output of tools: the parts of a driver that need no broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ottla.bench.suite.drivers import missing_for
from ottla.bench.suite.java_tools import consumed_from, produced_from
from ottla.bench.suite.kafka_cluster import new_cluster_id
from ottla.bench.suite.loads import ConsumerLoad, ConsumerResult, LoadFailedError, Phase, ProducerResult
from ottla.bench.suite.payloads import prepare, stamp_of, stamped
from ottla.bench.suite.rates import with_rate
from ottla.bench.suite.read_progress import ReadProgress, write_ends
from ottla.bench.suite.run_figures import consumed_figures, produced_figures
from ottla.bench.suite.sampler import Sample, cpu_between, resident_max
from ottla.bench.suite.settings import DEFAULTS, Value

SECOND_NS = 1_000_000_000


def configuration(**changes: Value) -> dict[str, Value]:
    return {**DEFAULTS, **{name.replace("__", "."): value for name, value in changes.items()}}


def test_the_same_seed_is_the_same_load() -> None:
    wanted = configuration(producer__record_bytes=100, producer__keys=10)
    assert prepare(wanted, 1) == prepare(wanted, 1)
    assert prepare(wanted, 1) != prepare(wanted, 2)
    assert {len(record.value) for record in prepare(wanted, 1)} == {100}


def test_no_keys_is_none_at_all() -> None:
    assert {record.key for record in prepare(configuration(), 1)} == {None}


def test_keys_are_as_skewed_as_they_are_told() -> None:
    even = Counter(record.key for record in prepare(configuration(producer__keys=10), 1))
    skewed = Counter(record.key for record in prepare(configuration(producer__keys=10, producer__key_skew=1.0), 1))
    assert len(even) == len(skewed) == 10
    assert max(even.values()) < 1.2 * min(even.values())
    assert skewed[b"key-0"] / skewed[b"key-1"] == pytest.approx(2, rel=0.15)
    assert skewed[b"key-0"] / skewed[b"key-9"] == pytest.approx(10, rel=0.2)


def test_values_are_chosen_out_of_the_first_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "wal.txt"
    path.write_bytes(b"one\n\ntwo\nthree\n")
    some = configuration(producer__records_file=str(path), producer__records_file_count=2)
    assert {record.value for record in prepare(some, 1)} == {b"one", b"two"}
    everything = configuration(producer__records_file=str(path))
    assert {record.value for record in prepare(everything, 1)} == {b"one", b"two", b"three"}


def test_a_stamp_takes_no_room() -> None:
    value = stamped(b"0123456789", 42)
    assert len(value) == 10
    assert stamp_of(value) == 42


def test_a_record_is_due_whatever_became_of_those_before() -> None:
    phase = Phase(rate=1000, duration_s=2)
    assert phase.offered() == 2000
    assert phase.due_ns(5, 1000) - 5 == SECOND_NS
    assert Phase(rate=0, records=7).records_max == 7


@pytest.mark.parametrize("rate", [0.5, 3, 999.7, 123_456])
def test_as_many_are_due_as_have_had_their_moment(rate: float) -> None:
    phase = Phase(rate=rate, duration_s=2)
    for at in (0, 1, 2, 17, 1000):
        due_ns = phase.due_ns(77, at)
        assert phase.due_count(77, due_ns) == at + 1
        assert phase.due_count(77, due_ns - 2) == at


@pytest.mark.parametrize(("begin", "end", "expected"), [(0, 20, 10), (5, 15, 5), (10, 10, 0), (15, 99, 2.5)])
def test_cpu_rises_evenly_between_two_looks(begin: int, end: int, expected: float) -> None:
    samples = [Sample(0, 1.0, 0), Sample(10, 6.0, 0), Sample(20, 11.0, 0)]
    assert cpu_between(samples, begin, end) == pytest.approx(expected)


@pytest.mark.parametrize(("begin", "end", "expected"), [(0, 20, 9), (11, 12, 9), (1, 2, 7), (25, 30, 3), (-5, -1, 5)])
def test_memory_is_that_of_the_looks_around_the_time(begin: int, end: int, expected: int) -> None:
    samples = [Sample(0, 0, 5), Sample(10, 0, 7), Sample(15, 0, 9), Sample(20, 0, 3)]
    assert resident_max(samples, begin, end) == expected


class Costs:
    def cpu_s(self, group: str, begin_ns: int, end_ns: int) -> float:
        return {"brokers": 3.0, "clients": 1.0, "others": 0.2}[group] * (end_ns - begin_ns) / SECOND_NS

    def resident_bytes_max(self, group: str, begin_ns: int, end_ns: int) -> list[int]:
        return [100_000_000, 50_000_000]


def test_figures_are_of_all_clients_from_the_first_to_the_last() -> None:
    one = ProducerResult(records=1000, value_bytes=500_000_000, begin_ns=0, end_ns=SECOND_NS, offered=1000)
    two = ProducerResult(records=500, value_bytes=500_000_000, begin_ns=SECOND_NS, end_ns=2 * SECOND_NS, offered=1000)
    one.latencies.add(1000, 99)
    two.latencies.add(9000)
    figures = produced_figures([one, two], Costs())
    assert figures["records_per_s"] == 750
    assert figures["mb_per_s"] == 500
    assert figures["brokers_cpu_s_per_gb"] == 6
    assert figures["clients_cpu_s_per_gb"] == 2
    assert figures["others_cpu_share"] == pytest.approx(0.2)
    assert (figures["broker_memory_mb"], figures["clients_memory_mb"]) == (100, 150)
    assert figures["behind_share"] == 0.25
    assert (figures["p99_us"], figures["max_us"]) == (1000, 9000)


def test_what_was_read_is_of_all_consumers() -> None:
    one = ConsumerResult(records=10, value_bytes=1_000_000, begin_ns=0, end_ns=SECOND_NS)
    two = ConsumerResult(records=20, value_bytes=1_000_000, begin_ns=0, end_ns=2 * SECOND_NS)
    assert consumed_figures([one, two]) == {"read_records_per_s": 15, "read_mb_per_s": 1}


def test_what_was_read_during_the_warm_up_does_not_count() -> None:
    found = ConsumerResult(begin_ns=5)
    for now_ns in (10, 20, 30):
        found.note(now_ns, 100, 1000)
    later = found.since(15)
    assert (later.records, later.value_bytes, later.begin_ns, later.end_ns) == (200, 2000, 15, 30)
    assert found.since(0).records == 300
    assert found.since(0).begin_ns == 5


PERF = (
    "Warmup first 5000 records. Steady state results will print after the complete test summary.\n"
    "20000 records sent, 2538.07 records/sec (0.24 MB/sec), 2312.38 ms avg latency, 3726.00 ms max latency, "
    "2478 ms 50th, 2853 ms 95th, 3009 ms 99th, 3065 ms 99.9th.\n"
    "15000 steady state records sent, 5000.00 records/sec (0.37 MB/sec), 2550.30 ms avg latency, "
    "3065.00 ms max latency, 2571 ms 50th, 2899 ms 95th, 3010 ms 99th, 3065 ms 99.9th.\n"
)


def test_the_perf_tool_is_understood() -> None:
    found = produced_from(PERF, 10 * SECOND_NS, 20_000, 100)
    assert (found.records, found.value_bytes, found.sent_in_all) == (15_000, 1_500_000, 20_000)
    assert found.begin_ns == 7 * SECOND_NS
    assert found.percentiles_us == {"max_us": 3065e3, "p50_us": 2571e3, "p99_us": 3010e3, "p999_us": 3065e3}


@pytest.mark.parametrize("output", ["", "org.apache.kafka.common.errors.TimeoutException\n", PERF])
def test_a_perf_tool_that_did_not_do_it_is_a_failure(output: str) -> None:
    with pytest.raises(LoadFailedError):
        produced_from(output, 0, 30_000, 100)


def test_the_reading_perf_tool_is_understood() -> None:
    line = "2026-01-01 00:00:00:000, 2026-01-01 00:00:03:000, 2.0000, 1.0, 2000, 700.0, 1000, 2000, 1.0, 1000.0\n"
    found = consumed_from(line, 10 * SECOND_NS, 2000)
    assert (found.records, found.value_bytes, found.begin_ns) == (2000, 2 << 20, 8 * SECOND_NS)
    with pytest.raises(LoadFailedError):
        consumed_from(line, 0, 2001)


def test_a_reader_is_done_at_the_ends_that_it_is_told_later(tmp_path: Path) -> None:
    path = tmp_path / "ends"
    load = ConsumerLoad("", "t", configuration(), {0: 0, 2: 5}, 0, None, str(path))
    progress = ReadProgress(load, 0.0)
    progress.advance({0: 10}, 1.0)
    progress.nothing_came(2.0, 60.0)
    assert not progress.is_done()
    write_ends(path, {0: 10, 1: 99, 2: 6})
    progress.nothing_came(3.0, 60.0)
    assert not progress.is_done()
    progress.advance({2: 6}, 4.0)
    assert progress.is_done()


def test_a_reader_does_not_wait_for_ever() -> None:
    progress = ReadProgress(ConsumerLoad("", "t", configuration(), {0: 0}, 0, {0: 1}), 0.0)
    with pytest.raises(LoadFailedError, match="no records arrived for 60 s"):
        progress.nothing_came(61.0, 60.0)


def test_a_cluster_id_is_no_option() -> None:
    """Kafka's own tool parsed `-t -abc` as two options."""
    drawn = iter([b"\xf8" + bytes(15), b"\xfb" + bytes(15), bytes(16)])
    assert new_cluster_id(lambda _: next(drawn)) == "A" * 22


def test_a_rate_is_a_share_of_what_another_row_reached() -> None:
    def line(label: str, target: str, records_per_s: float) -> dict[str, Any]:
        return {"kind": "cell", "label": label, "target": target, "figures": {"records_per_s": records_per_s}}

    lines = [line("most", "kafka", 1000), line("most", "kafka", 3000), line("most", "kafka", 2000)]
    lines += [line("most", "ottla", 8000), line("other", "kafka", 5), {**line("most", "kafka", 9), "kind": "start"}]
    half = configuration(producer__rate_of="most", producer__rate_share=0.5, producer__rate_target="kafka")
    found, reached = with_rate(half, "ottla", lines)
    assert (found["producer.rate"], reached) == (1000, 2000)
    own = configuration(producer__rate_of="most", producer__rate_share=1.5)
    assert with_rate(own, "ottla", lines)[0]["producer.rate"] == 12_000
    assert with_rate(configuration(producer__rate=7), "ottla", [])[0]["producer.rate"] == 7
    with pytest.raises(LoadFailedError, match='the row "most" was not measured on kafka'):
        with_rate(half, "ottla", [])


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_for(["librdkafka", "ottla", "ottla-arrow", "java"]) is None
    monkeypatch.setattr("ottla.bench.suite.drivers.find_spec", lambda _: None)
    assert missing_for(["ottla", "java"]) is None
    expected = "the driver librdkafka needs the package confluent_kafka: pip install 'ottla[bench]'"
    assert missing_for(["ottla", "librdkafka"]) == expected
