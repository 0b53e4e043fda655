"""The records of a load: values and keys, prepared before the measurement and equal for equal seeds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from string import ascii_uppercase
from typing import NamedTuple

from ottla.bench.suite.settings import Configuration, count, number

RING = 16_384
"""The number of records that are prepared and sent in a cycle."""
DIFFERENT_VALUES_MAX = 1024
VALUES_BYTES_MAX = 16 << 20
STAMP_BYTES = 8


class PreparedRecord(NamedTuple):
    """A record before it gets its timestamp."""

    key: bytes | None
    value: bytes


def prepare(configuration: Configuration, seed: int) -> list[PreparedRecord]:
    """Returns the records that a producer sends round and round. Equal seeds give equal records."""
    random = Random(seed)
    values = random.choices(values_of(configuration, random), k=RING)
    keys = keys_of(configuration, random)
    return [PreparedRecord(key, value) for key, value in zip(keys, values, strict=True)]


def values_of(configuration: Configuration, random: Random) -> list[bytes]:
    """Returns lines of a file, or random capital letters as Kafka's own performance tool writes them."""
    if name := str(configuration["producer.records_file"]):
        return lines_of(Path(name), count(configuration, "producer.records_file_count"))
    size = count(configuration, "producer.record_bytes")
    different = max(1, min(DIFFERENT_VALUES_MAX, VALUES_BYTES_MAX // size))
    letters = ascii_uppercase.encode()
    table = bytes(letters[code % len(letters)] for code in range(256))
    return [random.randbytes(size).translate(table) for _ in range(different)]


def lines_of(path: Path, limit: int) -> list[bytes]:
    """Returns the non-empty lines of a file, at most `limit` (0: all). Raises ValueError if there are none."""
    lines = [line for line in path.read_bytes().splitlines() if line]
    if not lines:
        raise ValueError(f"{path} has no records")
    return lines[: limit or None]


def keys_of(configuration: Configuration, random: Random) -> Sequence[bytes | None]:
    """Returns a key for each prepared record, distributed by Zipf's law; None for each if keys are off."""
    keys = count(configuration, "producer.keys")
    if not keys:
        return [None] * RING
    skew = number(configuration, "producer.key_skew")
    cumulated = list(accumulate(rank**-skew for rank in range(1, keys + 1)))
    return [b"key-%d" % rank for rank in random.choices(range(keys), cum_weights=cumulated, k=RING)]


def is_stamped(configuration: Configuration) -> bool:
    """Returns whether values begin with the time when they were due, for consumers that read at the same time."""
    return (
        count(configuration, "consumers.clients") > 0
        and configuration["consumers.read"] == "tail"
        and not configuration["producer.records_file"]
        and count(configuration, "producer.record_bytes") >= STAMP_BYTES
        and configuration["driver"] in ("librdkafka", "ottla")
    )


def stamped(value: bytes, due_ns: int) -> bytes:
    """Returns the value with the time at which it was due in its first bytes."""
    return due_ns.to_bytes(STAMP_BYTES, "big") + value[STAMP_BYTES:]


def stamp_of(value: bytes) -> int:
    """Returns the time that `stamped` put into the value."""
    return int.from_bytes(value[:STAMP_BYTES], "big")
