"""Kills drivers, executors, tasks and brokers (-9) at random on a real Spark cluster of two workers and three brokers,
until every query has done its micro-batches. Then the output equals the input, in order where it should be.

    python -m tests.spark.cluster_kills --batches 210 --seed 7 [--queries shuffled naive]

Three queries run side by side, under the same kills: one copies, one copies through a shuffle, where a replay has other
rows in its tasks, and one has a naive sink, whose errors must be detected. Choices follow the seed; times do not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ottla.client import Admin, ConsumerRecord
from ottla.testing.cluster_processes import ClusterProcesses
from tests.spark.standalone import ROOT, StandaloneSpark, kill
from tests.spark.topics import produce, read_committed, with_admin

KEYS = 12
PARTITIONS = 3
SOURCE = "source"
BROKER_SETTINGS = {"broker.session.timeout.ms": "3000"}
BATCHES_BETWEEN_KILLS_MAX = 5
QUIET_MAX_S = 600.0
"""Without a batch for that long, the run is considered hung."""
STARTS_PER_BATCH_MAX = 0.5
WEIGHTS = {"driver": 2, "executor": 3, "task": 2, "broker": 3}


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    format: str
    is_shuffled: bool
    options: Mapping[str, str] = field(default_factory=dict)
    keeps_order: bool = False
    """Whether the order of each key is preserved: a key is in one partition, which one task reads and writes."""
    is_exact: bool = True
    batch_rows_factor: int = 1
    """Factor for larger, and so fewer, batches."""


QUERIES = (
    Query("copied", "ottla_dying", is_shuffled=False, keeps_order=True),
    Query("shuffled", "ottla_dying", is_shuffled=True),
    Query("naive", "naive_dying", is_shuffled=True, is_exact=False, batch_rows_factor=4),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The errors of a copy."""

    missing: int
    doubled: int
    strange: int
    out_of_order: int

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.doubled or self.strange)


def row(number: int) -> tuple[bytes, bytes]:
    """Returns key and value; the value is the row's number within its key."""
    return b"key-%02d" % (number % KEYS), b"%06d" % (number // KEYS)


def compare(rows: int, records: Iterable[ConsumerRecord]) -> Verdict:
    wanted = Counter(row(number) for number in range(rows))
    found: Counter[tuple[bytes, bytes]] = Counter()
    last: dict[bytes, bytes] = defaultdict(bytes)
    places: dict[bytes, int] = {}
    out_of_order = 0
    for record in records:
        key, value = record.key or b"", record.value or b""
        found[key, value] += 1
        if value < last[key] or places.setdefault(key, record.partition) != record.partition:
            out_of_order += 1
        last[key] = max(last[key], value)
    return Verdict(
        missing=sum((wanted - found).values()),
        doubled=sum(count - 1 for each, count in found.items() if each in wanted),
        strange=sum(count for each, count in found.items() if each not in wanted),
        out_of_order=out_of_order,
    )


class Driver:
    """Successive processes on the same checkpoints. Each has another number of tasks after a shuffle."""

    def __init__(self, directory: Path, plan: Mapping[str, Any], queries: Iterable[Query]) -> None:
        self._directory = directory
        self._plan = plan
        self.queries = list(queries)
        self.log = directory / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        queries = [
            {
                "sink": each.name,
                "format": each.format,
                "checkpoint": str(self._directory / f"checkpoint-{each.name}"),
                "tasks": 2 + self.starts % 3 if each.is_shuffled else 0,
                "options": dict(each.options),
                "batch_rows": self._plan["batch_rows"] * each.batch_rows_factor,
            }
            for each in self.queries
        ]
        self.starts += 1
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "tests.spark.cluster_driver", json.dumps({**self._plan, "queries": queries})]
        with self.log.open("ab") as log:
            log.write(b"--- start %d\n" % self.starts)
            log.flush()
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        assert self._process is not None, "it was started"
        return self._process.poll()

    def wait(self) -> int:
        """Waits until it ends or kills itself."""
        assert self._process is not None, "it was started"
        return self._process.wait(QUIET_MAX_S)

    def kill(self) -> None:
        """Kills it with its JVM and the JVM's Python processes, which are in its process group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def batches(self, query: Query) -> int:
        """The number of batches that Spark knows to be done."""
        commits = self._directory / f"checkpoint-{query.name}" / "commits"
        numbers = [int(each.name) for each in commits.glob("[0-9]*")] if commits.exists() else []
        return max(numbers, default=-1) + 1

    def all_batches(self) -> int:
        return sum(map(self.batches, self.queries))


class Siege:
    """One run. `tell` gets a line for each event."""

    def __init__(
        self,
        brokers: ClusterProcesses,
        spark: StandaloneSpark,
        driver: Driver,
        chance: random.Random,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.brokers, self.spark, self.driver = brokers, spark, driver
        self.chance = chance
        self.kills: Counter[str] = Counter()
        self.tell = tell

    def run(self) -> None:
        """Runs until a driver ends with everything done."""
        self.driver.start()
        seen, wanted, at = 0, self._next(0), time.monotonic()
        while (code := self.driver.poll()) != 0:
            if code is not None:
                self._start_again(f"the driver ended with {code}")
                at = time.monotonic()
            done = self.driver.all_batches()
            if done > seen:
                seen, at = done, time.monotonic()
            if done >= wanted:
                time.sleep(self.chance.uniform(0, 1.0))
                self.strike(self._victim())
                seen = self.driver.all_batches()
                wanted, at = self._next(seen), time.monotonic()
            if time.monotonic() - at > QUIET_MAX_S:
                raise TimeoutError(f"no batch in {QUIET_MAX_S:g} s, after {dict(self.kills)}; {self.driver.log}")
            time.sleep(0.05)

    def finish(self) -> None:
        """Finishes without more kills. A driver that fails is restarted."""
        while self.driver.wait() != 0:
            self._start_again("the driver ended")

    def strike(self, victim: str) -> None:
        self.kills[victim] += 1
        self.tell(f"{self.driver.all_batches()} batches; {victim} killed")
        if victim == "driver":
            self.driver.kill()
            self.driver.start()
        elif victim == "broker":
            broker = self.chance.choice(self.brokers.brokers)
            broker.kill()
            time.sleep(self.chance.uniform(0, 3.0))
            broker.start()
        else:
            found = self.spark.executors() if victim == "executor" else self.spark.task_processes()
            if not found or not kill(self.chance.choice(found)):
                self.kills[victim] -= 1

    def _victim(self) -> str:
        return self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]

    def _next(self, done: int) -> int:
        return done + self.chance.randint(1, BATCHES_BETWEEN_KILLS_MAX * len(self.driver.queries))

    def _start_again(self, why: str) -> None:
        reasons = [line for line in self.driver.log.read_text(errors="replace").splitlines() if "Error: " in line]
        self.tell(f"{self.driver.all_batches()} batches; {why}: {reasons[-1] if reasons else ''}"[:500])
        if self.driver.starts > 10 + STARTS_PER_BATCH_MAX * self.driver.all_batches():
            raise RuntimeError(f"drivers do not get anywhere: {self.driver.log}")
        self.driver.start()


def wait_for_batches(driver: Driver, count: int) -> None:
    """Waits for batches, or until the driver has ended."""
    deadline = time.monotonic() + QUIET_MAX_S
    while driver.all_batches() < count and driver.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no batch in {QUIET_MAX_S:g} s; {driver.log}")
        time.sleep(0.05)


def fill(servers: str, rows: int, queries: Iterable[Query]) -> None:
    for name in (SOURCE, *(each.name for each in queries)):
        with_admin(servers, partial(Admin.create_topic, name=name, partitions=PARTITIONS))
    produce(servers, SOURCE, (row(number)[1] for number in range(rows)), key=lambda number: row(number)[0])


def siege(
    directory: Path,
    *,
    batches: int,
    batch_rows: int,
    seed: int,
    tell: Callable[[str], None],
    queries: Sequence[Query] = QUERIES,
) -> bool:
    """Returns whether the correct queries are exact and the naive one was detected."""
    rows = batches * batch_rows
    with ClusterProcesses(directory / "brokers", config=BROKER_SETTINGS) as brokers:
        fill(brokers.bootstrap, rows, queries)
        with StandaloneSpark(directory / "spark") as spark:
            plan = {"master": spark.master, "servers": brokers.bootstrap, "source": SOURCE, "batch_rows": batch_rows}
            driver = Driver(directory, plan, queries)
            run = Siege(brokers, spark, driver, random.Random(seed), tell)
            try:
                run.run()
            finally:
                driver.kill()
        is_right = compare(rows, read_committed(brokers.bootstrap, SOURCE)).is_exact
        tell(f"killed: {dict(run.kills)}; {driver.starts} starts of the driver")
        for query in queries:
            verdict = compare(rows, read_committed(brokers.bootstrap, query.name))
            tell(f"{query.name}: {driver.batches(query)} batches, {rows} rows: {verdict}")
            is_right &= verdict.is_exact is query.is_exact and not (query.keeps_order and verdict.out_of_order)
    return is_right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--batch-rows", type=int, default=120)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--directory", type=Path, help="keeps logs and data there")
    names = [each.name for each in QUERIES]
    parser.add_argument("--queries", nargs="+", choices=names, default=names, help="fewer of them are faster")
    given = parser.parse_args()
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True)

    tell(f"seed {given.seed}")
    with contextlib.ExitStack() as stack:
        if given.directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-kills-")))
        else:
            directory = given.directory
            directory.mkdir(parents=True)
        is_right = siege(
            directory,
            batches=given.batches,
            batch_rows=given.batch_rows,
            seed=given.seed,
            tell=tell,
            queries=[each for each in QUERIES if each.name in given.queries],
        )
    caught = ", and the naive sink was caught" if "naive" in given.queries else ""
    tell(f"exactly once{caught}" if is_right else "WRONG")
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
