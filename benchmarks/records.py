"""Encoding and decoding of batches: the compiled bridge, its Python twin, and aiokafka's compiled builder.

    python benchmarks/records.py [--seconds 1] [--json]

1 MB of records at a time, which is what a consumer fetches from a partition; keys of 10 bytes, no compression, one
thread. Checksums are computed and verified. MB/s counts batches. Rates are per second of CPU time, so that other work
on the machine has little effect.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from rich.console import Console
from rich.table import Table

from ottla.bench.quotients import rate
from ottla.protocol.records import _decoding, _encoding, bridge, decoding, encoding
from ottla.protocol.records.arrow import decode_record_batch, encode_table
from ottla.protocol.records.encoding import Row

BATCH_BYTES_MAX = 1 << 20
COMPILED = {"decoding": _decoding, "encoding": _encoding}
PLAIN = {"decoding": decoding, "encoding": encoding}
TIMESTAMP_MS = 1_700_000_000_000


class Result(NamedTuple):
    record_bytes: int
    work: str
    by: str
    records_per_s: float
    mb_per_s: float


def rows_of(record_bytes: int) -> list[Row]:
    count = BATCH_BYTES_MAX // record_bytes
    return [(b"key%07d" % n, bytes(record_bytes - 10), [], TIMESTAMP_MS + n) for n in range(count)]


def with_aiokafka(rows: list[Row]) -> list[bytes]:
    batches: list[bytes] = []
    at = 0
    while at < len(rows):
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, BATCH_BYTES_MAX)
        offset = 0
        while at < len(rows):
            key, value, headers, timestamp_ms = rows[at]
            if builder.append(offset, timestamp_ms, key, value, headers) is None:
                break
            offset, at = offset + 1, at + 1
        batches.append(bytes(builder.build()))
    return batches


def read_with_aiokafka(batches: list[bytes]) -> list[Any]:
    records: list[Any] = []
    for data in batches:
        batch = DefaultRecordBatch(data)
        assert batch.validate_crc()
        records += [(each.offset, each.timestamp, each.key, each.value, each.headers) for each in batch]
    return records


def per_second(work: Callable[[], object], seconds: float) -> float:
    """Returns passes per second of this process's CPU time, measured for that long on the wall clock."""
    work()
    passes, start, cpu_start = 0, time.perf_counter(), time.process_time()
    while not passes or time.perf_counter() - start < seconds:
        work()
        passes += 1
    return rate(passes, time.process_time() - cpu_start)


def measure(record_bytes: int, seconds: float) -> list[Result]:
    rows = rows_of(record_bytes)
    batches = [bytes(batch) for batch in bridge.encode_rows(rows, batch_bytes_max=BATCH_BYTES_MAX)]
    blob = b"".join(batches)
    table = decode_record_batch(bridge.split_batches(blob))
    works: dict[str, Callable[[], object]] = {
        "encode rows": lambda: bridge.encode_rows(rows, batch_bytes_max=BATCH_BYTES_MAX),
        "encode Arrow": lambda: encode_table(table, batch_bytes_max=BATCH_BYTES_MAX, default_timestamp_ms=0),
        "decode rows": lambda: bridge.decode_records(bridge.split_batches(blob)),
        "decode Arrow": lambda: decode_record_batch(bridge.split_batches(blob)),
    }
    others: dict[str, Callable[[], object]] = {
        "encode rows": lambda: with_aiokafka(rows),
        "decode rows": lambda: read_with_aiokafka(batches),
    }
    results = []
    for name, work in works.items():
        for by, twins in (("ottla", COMPILED), ("ottla, plain twin", PLAIN)):
            vars(bridge).update(twins)  # overrides the choice that the bridge made at import
            passes = per_second(work, seconds)
            results.append(Result(record_bytes, name, by, passes * len(rows), passes * len(blob) / 1e6))
        if name in others:
            passes = per_second(others[name], seconds)
            results.append(Result(record_bytes, name, "aiokafka", passes * len(rows), passes * len(blob) / 1e6))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=1.0, help="per line")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    results = [result for record_bytes in (100, 1000) for result in measure(record_bytes, arguments.seconds)]
    if arguments.json:
        for result in results:
            print(json.dumps(result._asdict()))
        return
    table = Table(
        "record", "work", "by", "records/s", "MB/s", title="Records and batches, one thread, per second of CPU"
    )
    for column in table.columns[3:]:
        column.justify = "right"
    for result in results:
        cells = (f"{result.record_bytes} B", result.work, result.by)
        table.add_row(*cells, f"{result.records_per_s:,.0f}", f"{result.mb_per_s:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
