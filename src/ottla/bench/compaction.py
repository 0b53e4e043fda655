"""Compaction of one partition: its speed with a share of a core and with a whole core, and its cost for producers.

A topic is filled while its records are kept (`cleanup.policy=delete`), and then switched to compaction. The load of
`produce 1 KB, one a batch, 1 in flight` runs on another topic before and during the compaction; the difference between
its latencies is the cost of compaction for others. The time runs from the request until the mark of the finished
compaction appears.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from ottla.bench.calls import Caller, RefusedError
from ottla.bench.frames import PreparedBatch, prepare_batch, produce_frame
from ottla.bench.latencies import Latencies, percentiles
from ottla.bench.processes import cpu_seconds, resident_bytes
from ottla.bench.produce import CASES, run_on_broker
from ottla.bench.quotients import rate
from ottla.bench.results import Goal, Row
from ottla.bench.targets import OneBroker
from ottla.bench.workbench import Workbench
from ottla.broker.storage.compaction.mark import MARK_FILE
from ottla.net.apis import INCREMENTAL_ALTER_CONFIGS
from ottla.protocol.records.batch import HEADER_BYTES
from ottla.protocol.records.bridge import RowEncoder, Traits, seal
from ottla.testing.broker_process import BrokerProcess

MB = 1 << 20
SIZE_BYTES, SIZE_BYTES_QUICK = 1024 * MB, 64 * MB
RECORD_BYTES = 1000
BATCH_BYTES_MAX = 16 * 1024
KEYS = 100_000
IN_FLIGHT = 16
BROKER_CONFIG = {"log.cleaner.backoff.ms": "100", "ottla.flush.interval.ms": "500"}
TOPIC_CONFIG = {"segment.bytes": str(64 * MB), "min.cleanable.dirty.ratio": "0.01", "retention.ms": "-1"}
SHARES = ((25, 1), (100, 8))
"""Percent of a core, and the divisor of the size: a fast compaction needs less data."""
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
PATIENCE_S = 600.0
BESIDE = "beside"
BESIDE_CASE = CASES[5]
P99_GOAL = 2.0
POLL_S = 0.02


def estimate_s(size_bytes: int) -> float:
    """Returns the estimated duration of `measure` in seconds."""
    return 4 + sum(size_bytes / divided / (64 * MB) for _, divided in SHARES)


def measure(bench: Workbench, size_bytes: int) -> list[Row]:
    """Fills a topic and measures its compaction, once for each share of a core."""
    broker = bench.new_broker(BROKER_CONFIG)
    target = OneBroker(lambda: broker)
    target.create([BESIDE], {"ottla.durability": "disk"})
    rows: list[Row] = []
    for number, (percent, divided) in enumerate(SHARES):
        part_bytes = size_bytes // divided
        topic = f"compacted-{number}"
        bench.advance(0, f"compaction: {part_bytes // MB} MB are written")
        target.create([topic], TOPIC_CONFIG)
        bench.driver.call(fill, broker.port, topic, part_bytes, number)
        os.sync()  # otherwise the first latencies would include writing back the filled topic
        bench.advance(0, f"compaction: {percent}% of a core")
        rows += _compact(bench, broker, topic, percent, part_bytes)
        target.delete([topic])
        bench.advance(estimate_s(size_bytes) / len(SHARES), "")
    broker.kill()
    return rows


def _compact(bench: Workbench, broker: BrokerProcess, topic: str, percent: int, size_bytes: int) -> list[Row]:
    before = _latencies_beside(bench, broker)
    (directory,) = (path for path in (broker.data / "logs").iterdir() if not _is_beside(path))
    bytes_before, cpu_before = _log_bytes(directory), cpu_seconds(broker.pid)
    with bench.caller(broker) as caller:
        alter(caller, BROKER_RESOURCE, "", {"ottla.log.cleaner.cpu.percent": str(percent)})
        begin = time.time()
        alter(caller, TOPIC_RESOURCE, topic, {"cleanup.policy": "compact"})
    during: dict[int, int] = {}
    mark = directory / MARK_FILE
    while not mark.exists():
        if time.time() - begin > PATIENCE_S:
            raise RuntimeError(f"{topic} is not compacted after {PATIENCE_S:.0f} s")
        for microseconds, count in _latencies_beside(bench, broker).items():
            during[microseconds] = during.get(microseconds, 0) + count
    seconds = mark.stat().st_mtime - begin
    case = f"{size_bytes // MB} MB, {KEYS:,} keys, {percent}% of a core"
    figures = {
        "seconds": seconds,
        "mb_per_s": rate(bytes_before / 1e6, seconds),
        "left_mb": _log_bytes(directory) / 1e6,
        "cpu_s": cpu_seconds(broker.pid) - cpu_before,
        "resident_mb": resident_bytes(broker.pid) / 1e6,
    }
    quiet, busy = percentiles(before), percentiles(during)
    ratio = busy.p99_us / max(quiet.p99_us, 1.0)
    goal = Goal("times the p99 without", ratio, P99_GOAL, is_upper=True) if percent < 100 else None
    return [
        Row("compaction", case, "", figures),
        Row("compaction", "produce 1 KB beside it, before", "", _figures(before)),
        Row("compaction", "produce 1 KB beside it, during", "", {**_figures(during), "p99_to_before": ratio}, goal),
    ]


def _figures(latencies: Latencies) -> dict[str, float]:
    found = percentiles(latencies)
    return {"p50_us": found.p50_us, "p99_us": found.p99_us, "p999_us": found.p999_us}


def _latencies_beside(bench: Workbench, broker: BrokerProcess) -> Latencies:
    batch = prepare_batch(BESIDE_CASE.record_bytes, BESIDE_CASE.batch_bytes_max, bench.timestamp_ms)
    pace = replace(bench.pace, warm_up_s=0.0)
    return run_on_broker(bench, BESIDE_CASE, batch, BESIDE, OneBroker(lambda: broker), pace).latencies


def _is_beside(directory: Path) -> bool:
    """Returns whether this is the log of the load beside the compaction: the smaller one of two."""
    siblings = list(directory.parent.iterdir())
    return directory != max(siblings, key=_log_bytes)


def _log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def alter(caller: Caller, kind: int, name: str, configs: dict[str, str]) -> None:
    """Sets configurations of a topic or a broker."""
    entries = [{"name": key, "config_operation": 0, "value": value} for key, value in configs.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": entries}
    reply = caller.call(INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
    for result in reply.responses:
        if result.error_code:
            raise RefusedError(f"{result.error_code.name}: {result.error_message}")


def fill(port: int, topic: str, size_bytes: int, seed: int) -> None:
    """Fills a topic with random keys. Runs in a separate process."""
    with Caller(port) as caller:
        for frames in _frames(topic, size_bytes, seed):
            caller.exchange_all(frames)


def _frames(topic: str, size_bytes: int, seed: int) -> Iterator[list[bytes]]:
    random, now_ms = Random(seed), int(time.time() * 1000)
    values = [os.urandom(RECORD_BYTES) for _ in range(64)]
    frames: list[bytes] = []
    written = 0
    while written < size_bytes:
        encoder = RowEncoder(BATCH_BYTES_MAX - HEADER_BYTES)
        while encoder.append(b"key-%08d" % random.randrange(KEYS), random.choice(values), [], now_ms):
            if encoder.size_bytes >= BATCH_BYTES_MAX - HEADER_BYTES - RECORD_BYTES:
                break
        records = encoder.take()
        batch = PreparedBatch(bytes(seal(records, Traits())), records.record_count, RECORD_BYTES)
        written += len(batch.data)
        frames.append(produce_frame(topic, batch))
        if len(frames) == IN_FLIGHT:
            yield frames
            frames = []
    yield frames
