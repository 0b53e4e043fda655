"""Runs of sieges: the shapes of clusters, and one siege in a process of its own with its verdict."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.coordination.servers import why_no_etcd, why_no_zookeeper
from tests.processes.siege.campaign import Only, Verdict, judge, lay_siege_aloud
from tests.processes.siege.cluster import KEPT, MEMORY, POWER, Shape

SHAPES = (
    Shape(3, "sqlite"),
    Shape(3, "etcd"),
    Shape(3, "zookeeper"),
    Shape(5, "sqlite"),
    Shape(5, "etcd"),
    Shape(5, "zookeeper"),
    Shape(3, "sqlite", MEMORY),
    Shape(3, "etcd", MEMORY),
    Shape(3, "zookeeper", MEMORY),
    Shape(3, "sqlite", POWER),
    Shape(3, "etcd", POWER),
    Shape(3, "zookeeper", POWER),
    Shape(5, "sqlite", POWER),
    Shape(5, "etcd", POWER),
)
"""All combinations with three brokers, and most with five. In a third of them, all machines lose the power at once."""
STORES = ("sqlite", "etcd", "zookeeper")


def parse_shape(text: str) -> Shape:
    """Parses `3,etcd` or `3,etcd,memory`."""
    brokers, *rest = text.split(",")
    store, classes = (*rest, KEPT)[:2] if rest else ("", "")
    if not brokers.isdigit() or int(brokers) < 3 or store not in STORES or classes not in (KEPT, MEMORY, POWER):
        raise ValueError(f"{text} is not a shape: write 3,etcd or 5,sqlite,memory or 3,zookeeper,power")
    return Shape(int(brokers), store, classes)


def chosen_shapes(texts: Sequence[str] | None, say: Callable[[str], None] = print) -> list[Shape]:
    """Returns the shapes that were named, or all whose coordination store is on this machine."""
    if texts:
        return [parse_shape(text) for text in texts]
    missing = {"etcd": why_no_etcd(), "zookeeper": why_no_zookeeper()}
    for sentence in filter(None, missing.values()):
        say(f"left out: {sentence}")
    return [shape for shape in SHAPES if not missing.get(shape.store)]


@dataclass(frozen=True, slots=True)
class Result:
    verdict: Verdict
    exit_code: int | None
    minutes: float

    @property
    def ok(self) -> bool:
        return self.verdict.findings.ok and self.exit_code == 0


def run_siege(directory: Path, shape: Shape, seconds: float, seed: int, only: Only = None) -> Result:
    """Runs one siege in a process with its own network namespace, and checks its histories. The process prints."""
    process = multiprocessing.get_context("spawn").Process(
        target=lay_siege_aloud, args=(directory, shape, seconds, seed, only)
    )
    began_s = time.monotonic()
    process.start()
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        process.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    minutes = (time.monotonic() - began_s) / 60
    verdict = judge(directory, f"{shape}: {minutes:.1f} minutes, seed {seed}")
    return Result(verdict, process.exitcode, minutes)
