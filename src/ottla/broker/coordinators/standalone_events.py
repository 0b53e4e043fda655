"""Receives the events of partitions on a broker without a cluster."""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.partition.partition import Partition, PartitionEvents


class StandaloneEvents(PartitionEvents):
    """Passes on failures of logs. The other events occur only in a cluster."""

    def __init__(self, failed: Callable[[Partition], None]) -> None:
        self._failed = failed

    def on_log_failed(self, partition: Partition) -> None:
        self._failed(partition)

    def on_follower_acknowledged(self, partition: Partition) -> None:
        raise AssertionError("a standalone broker has no leader to follow")
