"""The running targets: started when first needed, and ended when another storage is measured."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ottla.bench.suite.matrix import Matrix, TargetPlan
from ottla.bench.suite.measure import Measurement
from ottla.bench.suite.ottla_producer import run_on_uvloop
from ottla.bench.suite.running_targets import RunningTarget, make_target
from ottla.bench.suite.settings import DEFAULTS
from ottla.client import Producer

REPLICAS_MAX = 3
Started = Callable[[TargetPlan, str, dict[str, float], dict[str, Any]], None]
"""Called with the target, the storage, the figures of the start, and the facts."""


@dataclass(frozen=True, slots=True)
class DataDirectories:
    """Directories for the brokers' data, by storage."""

    disk: Path
    ram_disk: Path

    def of(self, storage: str) -> Path:
        """Returns the directory for a storage; `memory` uses the disk's, for metadata."""
        return self.ram_disk if storage == "ram-disk" else self.disk


@dataclass(slots=True)
class TargetPool:
    """The running targets. As a context manager, it ends all of them and removes their data at the end."""

    matrix: Matrix
    places: DataDirectories
    on_start: Started
    _running: dict[tuple[str, str], RunningTarget] = field(default_factory=dict)

    def get(self, plan: TargetPlan, storage: str) -> RunningTarget:
        """Returns a target that is started and warmed up."""
        place = "disk" if storage == "memory" else storage
        if (found := self._running.get((plan.name, place))) is not None:
            return found
        for key in list(self._running):
            if key[1] != place or self.matrix.alone:
                self._end(key)
        root = self.places.of(place)
        root.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f"ottla-bench-{plan.name}-", dir=root))
        try:
            target = make_target(plan, directory / "data")
            target.start()
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self._running[plan.name, place] = target
        try:
            self.on_start(plan, place, start_figures(target), target.facts())
            if self.matrix.target_warm_up_s > 0:
                warm_up(target, self.matrix.target_warm_up_s)
        except BaseException:
            self._end((plan.name, place))
            raise
        return target

    def other_pids(self, target: RunningTarget) -> tuple[int, ...]:
        """Returns the processes of all running targets but this one."""
        return tuple(pid for other in self._running.values() if other is not target for pid in other.pids())

    def drop(self, target: RunningTarget) -> None:
        """Ends a failed target, so that the next measurement starts a new one."""
        for key, found in list(self._running.items()):
            if found is target:
                self._end(key)

    def _end(self, key: tuple[str, str]) -> None:
        target = self._running.pop(key)
        target.end()
        shutil.rmtree(target.directory.parent, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key in list(self._running):
            self._end(key)


def start_figures(target: RunningTarget) -> dict[str, float]:
    """Measures the time from process start to the first acknowledged write on all replicas, and the idle memory."""
    if target.plan.kind == "bootstrap":
        return {}
    topic = f"bench-first-{time.time_ns()}"
    configuration = DEFAULTS | {"topic.replication": min(target.plan.brokers, REPLICAS_MAX)}
    target.create_topic(topic, configuration)

    async def write() -> None:
        async with Producer(target.bootstrap, acks="all") as producer:
            await producer.send(topic, b"first")

    run_on_uvloop(write())
    figures = {"start_s": time.monotonic() - target.started_at_s, "idle_memory_mb": target.idle_memory_mb()}
    target.delete_topic(topic)
    return figures


def warm_up(target: RunningTarget, seconds: float) -> None:
    """Writes to a new target and reads from it, so that the first measurement finds it warm."""
    replication = min(target.plan.brokers, REPLICAS_MAX)
    configuration = DEFAULTS | {
        "producer.duration_s": seconds,
        "topic.replication": replication,
        "topic.partitions": 3,
        "consumers.clients": 1,
    }
    Measurement(target, configuration, f"bench-warm-up-{time.time_ns()}", 0.0).run()
