"""The status of connectors: the last record of each in the compacted topic `__connect_status`.

A topic, unlike a file, can be read from any machine that reaches the brokers, even after the connector's machine is
lost.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from ottla.client import Consumer, Producer
from ottla.client.errors import UnknownTopicError
from ottla.connect.positions import ensure_topic

STATUS_TOPIC = "__connect_status"
HEARTBEAT_S = 5.0
SILENT_S = 20.0
"""A connector that has not reported for this long is lost: its machine, its process or its network has failed."""
LAST_WORD_S = 5.0
"""How long a connector that ends waits for the brokers to accept its final status."""


@dataclass(slots=True)
class Status:
    """One report of a connector."""

    name: str
    kind: str
    state: str
    """starting; running; waiting (the process runs and retries, `error` says why); restarting (the process ended and
    will be restarted); failed; stopped; lost (set by a reader that has seen no report for too long)."""
    host: str
    pid: int | None
    since_ms: int
    """When the connector entered this state."""
    at_ms: int
    """When this report was written."""
    restarts: int = 0
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What the connector reports about itself: records, position, lag."""

    def as_seen(self, now_ms: int) -> Status:
        """Changes the state to lost if the last report is too old."""
        is_lost = self.state not in ("failed", "stopped") and now_ms - self.at_ms > SILENT_S * 1000
        if is_lost:
            self.state = "lost"
        return self


class StatusTopic:
    """Writes reports to the status topic."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._producer: Producer | None = None

    @property
    def is_started(self) -> bool:
        """True once reports can be written."""
        return self._producer is not None

    async def start(self) -> None:
        """Creates the status topic, compacted, unless it exists, and starts the producer."""
        await ensure_topic(self.bootstrap, STATUS_TOPIC, {"cleanup.policy": "compact"})
        producer = Producer(self.bootstrap, client_id="ottla-connect-status", delivery_timeout_ms=10_000)
        await producer.start()
        self._producer = producer

    async def write(self, status: Status) -> None:
        """Writes a report, and starts the producer if necessary."""
        if self._producer is None:
            await self.start()
        assert self._producer is not None
        await self._producer.send(STATUS_TOPIC, json.dumps(asdict(status)).encode(), status.name.encode())

    async def close(self) -> None:
        """Flushes pending reports and closes the producer, if it was started."""
        if self._producer is not None:
            await self._producer.close()


async def read_statuses(bootstrap: str) -> list[Status]:
    """Returns the last report of each connector."""
    found: dict[str, Status] = {}
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        try:
            partitions = await consumer.partitions(STATUS_TOPIC)
        except UnknownTopicError:
            return []
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        for partition, end in ends.items():
            await consumer.seek_to_beginning(partition)
            while (rows := await consumer.fetch_range(partition, end, timeout_ms=30_000)) is not None:
                for value in rows[0].column("value").to_pylist():
                    _note(found, value)
    now_ms = time.time_ns() // 1_000_000
    return [found[name].as_seen(now_ms) for name in sorted(found)]


def _note(found: dict[str, Status], value: bytes | None) -> None:
    if value is None:
        return
    status = Status(**json.loads(value))
    found[status.name] = status
