"""The settings of a matrix cell, with their types, defaults and meanings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Value = str | int | float | bool
Kind = Literal["word", "count", "number", "flag", "acks", "path", "label"]
Configuration = Mapping[str, Value]
"""The value of each setting, by its dotted name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    name: str
    kind: Kind
    default: Value
    meaning: str
    words: tuple[str, ...] = ()
    """The possible values, if its kind is `word`."""
    least: float = 0

    def problem_with(self, value: object) -> str | None:
        """Returns why this value is invalid, as the end of a sentence."""
        match self.kind:
            case "word":
                allowed = isinstance(value, str) and value in self.words
                return None if allowed else f"must be one of {', '.join(self.words)}"
            case "acks":
                return None if value in (0, 1, "all") and not isinstance(value, bool) else 'must be 0, 1 or "all"'
            case "flag":
                return None if isinstance(value, bool) else "must be true or false"
            case "path":
                return None if isinstance(value, str) else "must be a file name in quotes"
            case "label":
                return None if isinstance(value, str) else "must be a string in quotes"
        types = int if self.kind == "count" else (int, float)
        if isinstance(value, bool) or not isinstance(value, types):
            return "must be an integer" if self.kind == "count" else "must be a number"
        return None if value >= self.least else f"must be at least {self.least:g}"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("driver", "word", "librdkafka", "The client.", ("librdkafka", "java", "ottla", "ottla-arrow")),
        Setting("storage", "word", "disk", "Where brokers keep their logs.", ("disk", "ram-disk", "memory")),
        Setting("producer.clients", "count", 1, "Number of producers, each in its own process.", least=1),
        Setting("producer.mode", "word", "async", "sync: the next record is sent when the last one is acknowledged.",
                ("sync", "async")),
        Setting("producer.acks", "acks", "all", "Which replicas have a record when it is acknowledged."),
        Setting("producer.idempotence", "flag", False, "Deduplicate retries. Needs acks=all, at most 5 in flight."),
        Setting("producer.in_flight", "count", 5, "Maximum number of unanswered requests on a connection.", least=1),
        Setting("producer.batch_bytes", "count", 131_072, "Maximum size of a batch.", least=1),
        Setting("producer.batch_records", "count", 0, "Records per batch (Arrow: rows per table); 0 is no limit."),
        Setting("producer.linger_ms", "number", 5, "How long a batch waits for more; a sync producer never waits."),
        Setting("producer.compression", "word", "none", "The codec.", ("none", "gzip", "snappy", "lz4", "zstd")),
        Setting("producer.record_bytes", "count", 1024, "The size of a value, made of random letters.", least=1),
        Setting("producer.keys", "count", 0, "Number of different keys; 0 means no keys."),
        Setting("producer.key_skew", "number", 0, "0 chooses keys evenly; s gives the k-th the weight 1/k^s (Zipf)."),
        Setting("producer.records_file", "path", "", "A file whose lines are the values, chosen at random."),
        Setting("producer.records_file_count", "count", 0, "Number of its lines to choose from; 0 is all."),
        Setting("producer.duration_s", "number", 5, "How long to write, after the warm-up.", least=0.1),
        Setting("producer.records", "count", 0, "Write this many records (each client) instead of for a time."),
        Setting("producer.rate", "number", 0, "Records per second of all clients together; 0 is unlimited."),
        Setting("producer.rate_of", "label", "", "Take the rate from the throughput of the row with this label."),
        Setting("producer.rate_share", "number", 1, "The share of that throughput to use as the rate.", least=0.001),
        Setting("producer.rate_target", "label", "", "The target of that row; by default the same target."),
        Setting("topic.partitions", "count", 1, "Partitions.", least=1),
        Setting("topic.replication", "count", 1, "Copies.", least=1),
        Setting("topic.min_insync", "count", 0, "min.insync.replicas; 0 is a majority of the copies."),
        Setting("topic.retention_ms", "number", 604_800_000, "How long records are kept."),
        Setting("topic.segment_bytes", "count", 0, "The size of a segment; 0 is the broker's default."),
        Setting("topic.durability", "word", "cache", "What an acknowledgement means: see docs/guides/bench-suite.md.",
                ("disk", "cache", "memory")),
        Setting("topic.stored_mb", "number", 0, "Records that are written before the measurement."),
        Setting("consumers.clients", "count", 0, "Number of consumers, which share the partitions."),
        Setting("consumers.read", "word", "tail",
                "tail: during the writes. log: afterwards. disk: afterwards, with the files not in the page cache.",
                ("tail", "log", "disk")),
    )
}  # fmt: skip
"""The settings by name, in the order of the report's columns."""

DEFAULTS: dict[str, Value] = {setting.name: setting.default for setting in SETTINGS.values()}
IN_FLIGHT_IDEMPOTENT_MAX = 5


def conflict_in(configuration: Mapping[str, Value]) -> str | None:
    """Returns why these values are incompatible, whatever the target. Missing settings conflict with nothing.

    It is also called with partial configurations, so a rule looks only at settings that are present.
    """
    get = configuration.get
    if get("producer.idempotence") is True:
        if get("producer.acks", "all") != "all":
            return 'producer.idempotence needs producer.acks = "all"'
        in_flight = get("producer.in_flight", 1)
        if isinstance(in_flight, int) and in_flight > IN_FLIGHT_IDEMPOTENT_MAX:
            return f"producer.idempotence needs producer.in_flight of at most {IN_FLIGHT_IDEMPOTENT_MAX}"
    if get("storage") == "memory" and get("topic.durability", "memory") == "disk":
        return 'storage = "memory" never touches a disk, so topic.durability cannot be "disk"'
    if get("producer.rate") and get("producer.rate_of"):
        return "producer.rate and producer.rate_of cannot be combined"
    if _exceeds(get("consumers.clients"), get("topic.partitions")):
        return "consumers.clients share the partitions, so there are at most topic.partitions of them"
    if _exceeds(get("topic.min_insync"), get("topic.replication")):
        return "topic.min_insync must be at most topic.replication"
    return _conflict_of_driver(configuration)


def _conflict_of_driver(configuration: Mapping[str, Value]) -> str | None:
    get = configuration.get
    driver = get("driver")
    if driver == "java":
        if get("producer.mode") == "sync":
            return "the Java perf tool has no sync mode"
        if get("producer.keys", 0) != 0:
            return "the Java perf tool writes no keys"
        if get("producer.records") == 0 and not has_rate(configuration):
            return "the Java perf tool writes a number of records: it needs producer.records, or producer.rate"
        if get("consumers.read") == "tail" and get("consumers.clients", 0) != 0:
            return "the Java perf tool can only read existing records: consumers.read must be log or disk"
        if _exceeds(get("consumers.clients"), 1):
            return "the Java perf tool reads the whole topic: consumers.clients must be at most 1"
    if driver == "ottla-arrow" and has_rate(configuration):
        return "ottla-arrow writes whole tables: it has no rate by record"
    return None


def has_rate(configuration: Mapping[str, Value]) -> bool:
    """Returns whether the load has a rate, its own or that of another row."""
    return bool(configuration.get("producer.rate") or configuration.get("producer.rate_of"))


def _exceeds(count: Value | None, limit: Value | None) -> bool:
    return isinstance(count, int) and isinstance(limit, int) and count > limit


def durability_of(configuration: Configuration) -> str:
    """Returns the durability class of a configuration's topics."""
    return "memory" if configuration["storage"] == "memory" else str(configuration["topic.durability"])


def number(configuration: Configuration, name: str) -> float:
    """Returns a numeric setting."""
    value = configuration[name]
    assert isinstance(value, int | float), f"{name} must be a number"
    return float(value)


def count(configuration: Configuration, name: str) -> int:
    """Returns a numeric setting as a whole number, rounded down."""
    return int(number(configuration, name))
