"""Collects metrics of topics and local partitions: traffic, offsets and replica lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ottla.broker.metrics import definitions as declared
from ottla.broker.metrics.page import Page
from ottla.broker.metrics.scrape_target import ScrapeTarget
from ottla.broker.partition.partition import Partition
from ottla.broker.topics.topics import Topic
from ottla.machines.replication.leader import Follower
from ottla.protocol.model.durability import Durability

_TOPIC, _PARTITION = ("topic",), ("topic", "partition")


@dataclass(slots=True)
class PartitionTotals:
    """Totals over all local partitions."""

    partitions: int = 0
    leaders: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    failed_logs: int = 0
    log_bytes: Counter[Durability] = field(default_factory=Counter)


def topics(watched: ScrapeTarget, page: Page) -> Iterator[None]:
    """Adds the metrics of topics and local partitions. Yields after each partition, to keep the loop responsive."""
    sums = PartitionTotals()
    now_ms = watched.broker.clock.monotonic_ms()
    for topic in watched.broker.topics:
        _traffic(topic, page)
        for partition in list(topic.partitions):
            labels = page.labels(_PARTITION, (topic.name, partition.index))
            size_bytes = partition.log.size_bytes
            sums.log_bytes[topic.config.durability] += size_bytes
            _progress(partition, page, labels, size_bytes)
            _count(partition, sums)
            if partition.is_led_here:
                page.add_line(declared.PARTITION_REPLICAS, labels, len(partition.placement.replicas))
                page.add_line(declared.PARTITION_ISR, labels, len(in_sync(partition)))
                stable_lag = max(partition.high_watermark - partition.last_stable_offset, 0)
                page.add_line(declared.PARTITION_STABLE_LAG, labels, stable_lag)
            if partition.leading is not None:
                for replica in partition.placement.replicas:
                    if replica != watched.broker.node_id:
                        of_replica = f'{labels},replica="{replica}"'
                        _lag(partition, partition.leading.follower(replica), page, of_replica, now_ms)
            yield
    page.add(declared.TOPICS, len(watched.broker.topics))
    page.add(declared.PARTITIONS, sums.partitions)
    page.add(declared.LEADERS, sums.leaders)
    page.add(declared.UNDER_REPLICATED, sums.under_replicated)
    page.add(declared.UNDER_MIN_ISR, sums.under_min_isr)
    page.add(declared.FAILED_LOGS, sums.failed_logs)
    for durability in Durability:
        page.add(declared.LOG_BYTES, sums.log_bytes[durability], durability.value)


def _traffic(topic: Topic, page: Page) -> None:
    traffic = topic.traffic
    labels = page.labels(_TOPIC, (topic.name,))
    page.add_line(declared.TOPIC_IN_BYTES, labels, traffic.bytes_in)
    page.add_line(declared.TOPIC_IN_RECORDS, labels, traffic.records_in)
    page.add_line(declared.TOPIC_IN_BATCHES, labels, traffic.batches_in)
    page.add_line(declared.TOPIC_FOLLOWED_BYTES, labels, traffic.bytes_followed)
    page.add_line(declared.TOPIC_FOLLOWED_RECORDS, labels, traffic.records_followed)
    for reader, read in (("consumer", traffic.by_consumers), ("replica", traffic.by_replicas)):
        page.add_line(declared.TOPIC_OUT_BYTES, f'{labels},reader="{reader}"', read.bytes)
        page.add_line(declared.TOPIC_OUT_RECORDS, f'{labels},reader="{reader}"', read.records)


def _progress(partition: Partition, page: Page, labels: str, size_bytes: int) -> None:
    page.add_line(declared.PARTITION_START, labels, partition.log.start_offset)
    page.add_line(declared.PARTITION_END, labels, partition.log.end_offset)
    page.add_line(declared.PARTITION_WATERMARK, labels, partition.high_watermark)
    page.add_line(declared.PARTITION_BYTES, labels, size_bytes)
    page.add_line(declared.PARTITION_LEADER, labels, int(partition.is_led_here))
    page.add_line(declared.PARTITION_EPOCH, labels, partition.leader_epoch)


def _lag(partition: Partition, follower: Follower | None, page: Page, labels: str, now_ms: float) -> None:
    """Adds a follower's lag. A follower that never fetched lacks every record, and its lag in seconds is unknown."""
    start, end = partition.log.start_offset, partition.log.end_offset
    acknowledged_end = start if follower is None else max(follower.acknowledged_end, start)
    page.add_line(declared.REPLICA_LAG_RECORDS, labels, max(end - acknowledged_end, 0))
    if acknowledged_end >= end:
        page.add_line(declared.REPLICA_LAG_SECONDS, labels, 0)
    elif follower is not None and follower.caught_up_ms > 0:
        page.add_line(declared.REPLICA_LAG_SECONDS, labels, round((now_ms - follower.caught_up_ms) / 1000, 3))


def in_sync(partition: Partition) -> tuple[int, ...]:
    """Returns the in-sync replicas as this broker knows them."""
    return tuple(partition.leading.isr) if partition.leading is not None else partition.placement.isr


def _count(partition: Partition, sums: PartitionTotals) -> None:
    sums.partitions += 1
    sums.failed_logs += partition.log.failed is not None
    if partition.is_led_here:
        sums.leaders += 1
        sums.under_replicated += len(in_sync(partition)) < len(partition.placement.replicas)
        sums.under_min_isr += partition.leading is not None and not partition.leading.has_enough_in_sync
