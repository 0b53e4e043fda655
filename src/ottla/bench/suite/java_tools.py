"""Kafka's own performance tools, each measurement in its own JVM."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from ottla.bench.processes import ending_with_us
from ottla.bench.quotients import per
from ottla.bench.suite.kafka_jars import require_java
from ottla.bench.suite.loads import (
    BUFFER_BYTES,
    READ_TIMEOUT_S,
    ConsumerLoad,
    ConsumerResult,
    LoadFailedError,
    ProducerLoad,
    ProducerResult,
    mean_bytes,
    wait_until,
)
from ottla.bench.suite.payloads import lines_of
from ottla.bench.suite.settings import Configuration, count

HEAP_MB = 256
WARM_UP_SHARE = 0.2
"""For a load by count, the share of records written in addition, before the measurement."""
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
REPORT_MS = 3_600_000

_SUMMARY = re.compile(
    r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+) ms avg latency, "
    r"([\d.]+) ms max latency, (\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99.9th"
)


def producer_properties(configuration: Configuration) -> dict[str, str]:
    """Returns the Java client's settings for a configuration."""
    return {
        "acks": str(configuration["producer.acks"]),
        "enable.idempotence": str(configuration["producer.idempotence"]).lower(),
        "max.in.flight.requests.per.connection": str(count(configuration, "producer.in_flight")),
        "batch.size": str(count(configuration, "producer.batch_bytes")),
        "linger.ms": str(count(configuration, "producer.linger_ms")),
        "compression.type": str(configuration["producer.compression"]),
        "buffer.memory": str(BUFFER_BYTES),
    }


def produce(load: ProducerLoad) -> ProducerResult:
    """Runs the producer tool. Latencies are the tool's own: from the call of `send`, in whole milliseconds."""
    _, measured = load.phases()
    records = measured.offered()
    warm_up = int(load.rate * load.warm_up_s) or int(records * WARM_UP_SHARE)
    command = [require_java(), f"-Xmx{HEAP_MB}m", QUIET, "-cp", f"{load.libraries}/*"]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", load.bootstrap]
    command += ["--topic", load.topic, "--num-records", str(records + warm_up)]
    command += ["--warmup-records", str(warm_up)] if warm_up else []
    command += ["--throughput", str(load.rate or -1), "--reporting-interval", str(REPORT_MS)]
    name = str(load.configuration["producer.records_file"])
    size = str(count(load.configuration, "producer.record_bytes"))
    command += ["--payload-file", name] if name else ["--record-size", size]
    command += [
        "--command-property",
        *(f"{key}={value}" for key, value in producer_properties(load.configuration).items()),
    ]
    wait_until(load.start_at_ns)
    output = _run(command, load.bootstrap)
    value_bytes = mean_bytes(lines_of(Path(name), 0)) if name else float(size)
    produced = produced_from(output, time.monotonic_ns(), records + warm_up, value_bytes)
    produced.has_rate = load.rate > 0
    return produced


def produced_from(output: str, ended_ns: int, sent: int, value_bytes: float) -> ProducerResult:
    """Parses the last summary, which is that of the steady state if there was a warm-up."""
    summaries = _SUMMARY.findall(output)
    if not summaries:
        raise LoadFailedError(f"the output of the Java perf tool could not be parsed: {output[-500:]}")
    if int(summaries[0][0]) != sent:
        raise LoadFailedError(f"the Java perf tool sent {summaries[0][0]} of {sent} records: {output[-500:]}")
    records, per_s = int(summaries[-1][0]), float(summaries[-1][1])
    percentiles_us = {
        "max_us": float(summaries[-1][4]) * 1000,
        "p50_us": float(summaries[-1][5]) * 1000,
        "p99_us": float(summaries[-1][7]) * 1000,
        "p999_us": float(summaries[-1][8]) * 1000,
    }
    return ProducerResult(
        records=records,
        value_bytes=int(records * value_bytes),
        begin_ns=ended_ns - int(per(records, per_s) * 1e9),
        end_ns=ended_ns,
        sent_in_all=sent,
        offered=records,
        percentiles_us=percentiles_us,
    )


def consume(load: ConsumerLoad) -> ConsumerResult:
    """Runs the consumer tool on the whole topic. The time is the tool's own, without that of joining a group."""
    assert load.ends is not None, "the Java perf tool can only read existing records"
    records = sum(load.ends.values()) - sum(load.offsets.values())
    command = [require_java(), f"-Xmx{HEAP_MB}m", QUIET, "-cp", f"{load.libraries}/*"]
    command += ["org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", load.bootstrap]
    command += ["--topic", load.topic, "--num-records", str(records), "--hide-header"]
    command += ["--timeout", str(int(READ_TIMEOUT_S * 1000))]
    wait_until(load.start_at_ns)
    return consumed_from(_run(command, load.bootstrap), time.monotonic_ns(), records)


def consumed_from(output: str, ended_ns: int, expected: int) -> ConsumerResult:
    """Parses the only line: start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, records/s."""
    fields = output.strip().splitlines()[-1].split(", ") if output.strip() else []
    try:
        megabytes, records, fetch_ms = float(fields[2]), int(fields[4]), float(fields[7])
    except (IndexError, ValueError) as cause:
        raise LoadFailedError(f"the output of the Java perf tool could not be parsed: {output[-500:]}") from cause
    if records < expected:
        raise LoadFailedError(f"the Java perf tool read {records} of {expected} records")
    begin_ns = ended_ns - int(max(fetch_ms, 1) * 1e6)
    return ConsumerResult(records=records, value_bytes=int(megabytes * 2**20), begin_ns=begin_ns, end_ns=ended_ns)


def _run(command: list[str], bootstrap: str) -> str:
    done = subprocess.run(ending_with_us(command), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadFailedError(f"the Java perf tool failed at {bootstrap}: {(done.stderr or done.stdout)[-1000:]}")
    return done.stdout
