"""The parts that all measurements share: a broker, the floor and a driver, each in its own process, and a directory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.bench.calls import Caller
from ottla.bench.floor import FloorProcess
from ottla.bench.processes import Worker
from ottla.bench.targets import OneBroker, ThreeBrokers
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.cluster_processes import ClusterProcesses

CLASSES = ("memory", "cache", "disk")
TIMESTAMP_AHEAD_MS = 1_800_000
READY_S = 120.0

Advance = Callable[[float, str], None]
"""Called with the seconds of work that are done, and the name of the next step."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each measurement takes."""

    warm_up_s: float
    seconds: float
    repetitions: int

    @property
    def measurement_s(self) -> float:
        """The duration of a measurement, with connecting and checking."""
        return self.warm_up_s + self.seconds + 0.1


FULL = Pace(warm_up_s=0.5, seconds=1.0, repetitions=3)
QUICK = Pace(warm_up_s=0.2, seconds=0.4, repetitions=1)


class Workbench:
    """The processes and the data of a benchmark, which end with it."""

    def __init__(self, directory: Path, pace: Pace, advance: Advance) -> None:
        self.pace = pace
        self.advance = advance
        directory.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=directory, prefix="data-")))
        self._brokers = 0

    @cached_property
    def broker(self) -> BrokerProcess:
        """A broker with the default configuration, shared by the rows that do not need their own."""
        return self.new_broker()

    @cached_property
    def one(self) -> OneBroker:
        """The shared broker as a target."""
        return OneBroker(lambda: self.broker)

    @cached_property
    def three(self) -> ThreeBrokers:
        """Three brokers, started for the first row that needs them."""
        quiet = ["--log-level", "warning"]
        cluster = ClusterProcesses(self.directory / "cluster", arguments=quiet, ready_timeout_s=READY_S)
        return ThreeBrokers(self._stack.enter_context(cluster))

    @cached_property
    def floor(self) -> FloorProcess:
        """The floor, started when first used."""
        return self._stack.enter_context(FloorProcess(str(self.directory)))

    @cached_property
    def driver(self) -> Worker:
        """The process that generates load, started when first used."""
        return self._stack.enter_context(Worker())

    @property
    def timestamp_ms(self) -> int:
        """The timestamp of prepared batches: ahead of the clock, so that retention by time does not delete them."""
        return int(time.time() * 1000) + TIMESTAMP_AHEAD_MS

    def new_broker(self, config: Mapping[str, str] | None = None) -> BrokerProcess:
        """Starts a broker with an empty data directory, which ends with the workbench at the latest."""
        self._brokers += 1
        broker = BrokerProcess(
            self.directory / f"broker-{self._brokers}",
            arguments=["--log-level", "warning"],
            config=config,
            ready_timeout_s=READY_S,
        )
        self._stack.callback(_end, broker)
        return broker.start()

    def caller(self, broker: BrokerProcess | None = None) -> Caller:
        """Opens a connection to this broker, or to the shared one."""
        return Caller((broker or self.broker).port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _end(broker: BrokerProcess) -> None:
    """Kills the broker. Nothing needs to be flushed, because the data is removed next."""
    if broker.running:
        broker.kill()
