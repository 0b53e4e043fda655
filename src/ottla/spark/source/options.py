"""The options of the source, with the names and meanings of Spark's Kafka connector."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ottla.client import TopicPartition
from ottla.spark.options_kafka import FOR_CONSUMERS, GROUP, bootstrap_servers, kafka_settings
from ottla.spark.options_text import (
    OptionError,
    check_names,
    to_bool,
    to_int,
    to_milliseconds,
    to_numbers,
    to_partitions,
    to_positive,
)

LATEST, EARLIEST = -1, -2
OFFSETS_EXAMPLE = (
    'must be earliest, latest, or JSON such as {"orders":{"0":23,"1":-1}}, where -1 is latest and -2 earliest'
)
TIMES_EXAMPLE = 'must be JSON such as {"orders":{"0":1700000000000}}, in milliseconds'
KNOWN = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "ottla.group",
    # Options of the sink, so that one set of options can serve both.
    "topic",
    "path",
    "checkpointLocation",
    "ottla.delivery",
    "ottla.once",
    "ottla.decisions.topic",
    "ottla.lost.transactions",
)
_ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
POLL_TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to start or end: at an end of the log, at offsets, or at the first record of a time."""

    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    numbers: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets (including LATEST and EARLIEST) or times, by partition."""
    time_ms: int = 0
    or_latest: bool = False
    """If true, a time after the last record means the end of the log; otherwise it is an error."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What to read: topics, a pattern or partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def matches(self, topic: str) -> bool:
        """Returns whether the subscription covers the topic."""
        return re.fullmatch(self.pattern, topic) is not None if self.pattern is not None else topic in self.topics


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of the source."""

    servers: str
    subscription: Subscription
    start: Bound
    end: Bound
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    group: str | None
    poll_timeout_ms: int
    consumer: Mapping[str, Any]
    """Arguments for `ottla.client.Consumer`."""


def read_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parses options. Raises OptionError for a missing, invalid or unsupported option."""
    check_names(options, KNOWN)
    if streaming and (named := [name for name in _ENDING if name in options]):
        raise OptionError(
            named[0], options[named[0]], "is only for batch queries, because a streaming query has no end"
        )
    start = _bound(options, "starting", Bound("latest" if streaming else "earliest"))
    end = _bound(options, "ending", Bound("latest"))
    if not streaming:
        _check_batch_bounds(options, start, end)
    limits = {name: _optional(options, name) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")}
    low, high = limits["minOffsetsPerTrigger"], limits["maxOffsetsPerTrigger"]
    if low is not None and high is not None and low > high:
        raise OptionError("minOffsetsPerTrigger", str(low), f"is larger than maxOffsetsPerTrigger={high}")
    timeout = options.get("kafkaConsumer.pollTimeoutMs", str(POLL_TIMEOUT_MS))
    return SourceOptions(
        servers=bootstrap_servers(options),
        subscription=_subscription(options),
        start=start,
        end=end,
        fail_on_data_loss=to_bool("failOnDataLoss", options.get("failOnDataLoss", "true")),
        include_headers=includes_headers(options),
        max_offsets=high,
        min_offsets=low,
        max_delay_ms=to_milliseconds("maxTriggerDelay", options.get("maxTriggerDelay", "15m")),
        min_partitions=_optional(options, "minPartitions"),
        max_records_per_partition=_optional(options, "maxRecordsPerPartition"),
        group=options.get("ottla.group") or options.get(GROUP) or None,
        poll_timeout_ms=to_positive("kafkaConsumer.pollTimeoutMs", timeout),
        consumer=kafka_settings(options, FOR_CONSUMERS),
    )


def includes_headers(options: Mapping[str, str]) -> bool:
    """Returns the option `includeHeaders`, which adds the column `headers`."""
    return to_bool("includeHeaders", options.get("includeHeaders", "false"))


def _optional(options: Mapping[str, str], name: str) -> int | None:
    return to_positive(name, options[name]) if name in options else None


def _subscription(options: Mapping[str, str]) -> Subscription:
    ways = ("subscribe", "subscribePattern", "assign")
    given = [name for name in ways if name in options]
    if len(given) != 1:
        raise OptionError(", ".join(given or ways), "", "choose the topics with exactly one of them")
    name, text = given[0], options[given[0]].strip()
    if name == "assign":
        return Subscription(partitions=tuple(to_partitions(name, text)))
    if name == "subscribe":
        topics = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        if not topics:
            raise OptionError(name, text, "contains no topic")
        return Subscription(topics=topics)
    try:
        re.compile(text)
    except re.error as mistake:
        raise OptionError(name, text, f"is not a regular expression: {mistake}") from None
    if not text:
        raise OptionError(name, text, "is empty")
    return Subscription(pattern=text)


def _bound(options: Mapping[str, str], which: Literal["starting", "ending"], default: Bound) -> Bound:
    """Parses a bound. As in Spark's connector, one time for all partitions takes precedence over times by partition,
    and both over offsets."""
    strategy_name = "startingOffsetsByTimestampStrategy"
    strategy = options.get(strategy_name, "error").strip().lower()
    if strategy not in {"error", "latest"}:
        raise OptionError(strategy_name, strategy, "must be error or latest")
    or_latest = which == "ending" or strategy == "latest"
    time, times, offsets = f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"
    if time in options:
        return Bound("time", time_ms=to_int(time, options[time]), or_latest=or_latest)
    if times in options:
        return Bound("times", to_numbers(times, options[times], TIMES_EXAMPLE), or_latest=or_latest)
    if offsets not in options:
        return default
    text = options[offsets].strip()
    if text.lower() == "earliest":
        return Bound("earliest")
    if text.lower() == "latest":
        return Bound("latest")
    numbers = to_numbers(offsets, text, OFFSETS_EXAMPLE)
    if wrong := [at for at, offset in numbers.items() if offset < EARLIEST]:
        raise OptionError(offsets, text, f"has an invalid offset for {wrong[0]}")
    return Bound("offsets", numbers)


def _check_batch_bounds(options: Mapping[str, str], start: Bound, end: Bound) -> None:
    if start.kind == "latest" or (start.kind == "offsets" and LATEST in start.numbers.values()):
        raise OptionError("startingOffsets", options["startingOffsets"], "cannot be latest in a batch query")
    if end.kind == "earliest" or (end.kind == "offsets" and EARLIEST in end.numbers.values()):
        raise OptionError("endingOffsets", options["endingOffsets"], "cannot be earliest in a batch query")
    if start.kind == end.kind == "offsets" and set(start.numbers) != set(end.numbers):
        raise OptionError("endingOffsets", options["endingOffsets"], "must have the same partitions as startingOffsets")
    for at in start.numbers.keys() & end.numbers.keys():
        if start.kind == end.kind and start.numbers[at] > end.numbers[at] >= 0:
            raise OptionError("startingOffsets", "", f"is after endingOffsets in {at}")
