"""The chain under test: records flow from topic a to b to c, each step by a group of transactional workers."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients.java_client import CACHE
from tests.processes.transactions.checker import ChainHistory
from tests.processes.transactions.history import SUFFIX, read_transactions
from tests.processes.transactions.reading import LiveReader, read_all, unstable

PARTITIONS = 3
KEYS = 9
REPLICAS = 3
STAGES = ("first", "second")
WAIT_S = 120.0
POLL_S = 0.1
FLUSH_S = 60.0
WRITE_PAUSE_S = 0.05
AHEAD_MAX = 300
SAME_ID_SHARE = 0.7
"""How often a successor has the worker's transactional id, which aborts the open transaction instead of a timeout."""
JAVA_FLAGS = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1")
CLIENTS = ("confluent-kafka", "java", "ottla")
MODULES = {"confluent-kafka": "worker", "ottla": "own_worker"}
PROTOCOLS = ("eager", "consumer")


def why_no_java() -> str | None:
    if shutil.which("java") is None or not (CACHE / "classes" / "ChainWorker.class").exists():
        return "the Java client is not there (make test fetches it where it can)"
    return None


@dataclass(frozen=True, slots=True)
class Timeouts:
    session_ms: int = 3000
    transaction_ms: int = 8000


@dataclass(slots=True)
class Slot:
    """A slot for a worker. When one ends, its successor takes the slot."""

    stage: int
    client: str
    transactional_id: str
    process: subprocess.Popen[bytes] | None = None
    is_paused: bool = False


class Chain:
    def __init__(self, name: str, bootstrap: str, directory: Path, protocol: str, chance: Random) -> None:
        directory.mkdir(parents=True)
        self.topics = [f"{name}-{letter}" for letter in "abc"]
        self.bootstrap = bootstrap
        self.directory = directory
        self.protocol = protocol
        self.chance = chance
        self._name = name
        self._timeouts = Timeouts()
        self._numbers = itertools.count(1)
        self.slots: list[Slot] = []
        self.broken: list[str] = []
        self.starts = 0
        self._create_topics()
        self._reader = LiveReader(bootstrap, self.topics[1:], PARTITIONS)
        self._writer = Writer(bootstrap, self.topics[0], chance.randrange(1 << 32), lambda: self.output)

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for topic in self.topics:
            asked = NewTopic(topic, PARTITIONS, REPLICAS, config={"min.insync.replicas": "2"})
            deadline_s = time.monotonic() + WAIT_S
            while True:
                try:
                    admin.create_topics([asked])[topic].result()
                    break
                except KafkaException:  # the brokers have not found one another yet
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.5)

    # Workers

    def add_worker(self, stage: int, client: str) -> None:
        slot = Slot(stage, client, f"{self._name}-{len(self.slots)}")
        self.slots.append(slot)
        self._start(slot)

    def _start(self, slot: Slot) -> None:
        name = f"{STAGES[slot.stage]}-{next(self._numbers)}"
        arguments = [
            self.protocol,
            self.bootstrap,
            f"{self._name}-{STAGES[slot.stage]}",
            *self.topics[slot.stage : slot.stage + 2],
            slot.transactional_id,
            str(self.directory / f"{name}{SUFFIX}"),
            str(self.chance.randrange(1 << 31)),
            str(self._timeouts.session_ms),
            str(self._timeouts.transaction_ms),
        ]
        if slot.client == "java":
            classes = f"{CACHE}/classes:{CACHE}/libraries/*"
            log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
            command = ["java", *JAVA_FLAGS, log_level, "-cp", classes, "ChainWorker", *arguments]
        else:
            command = [sys.executable, "-m", f"tests.processes.transactions.{MODULES[slot.client]}", *arguments]
        with (self.directory / f"{name}.log").open("wb") as log:
            slot.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.starts += 1

    def kill_worker(self) -> None:
        """Sends SIGKILL at any point of a transaction. The successor starts at once."""
        slot = self.chance.choice([each for each in self.slots if not each.is_paused])
        _end(slot)
        if self.chance.random() > SAME_ID_SHARE:
            slot.transactional_id += "x"
        self._start(slot)

    def pause_worker(self) -> None:
        awake = [each for each in self.slots if not each.is_paused and each.process and each.process.poll() is None]
        if len(awake) < 2:
            return
        slot = self.chance.choice(awake)
        assert slot.process is not None
        os.kill(slot.process.pid, signal.SIGSTOP)
        slot.is_paused = True

    def resume_workers(self) -> None:
        for slot in self.slots:
            if slot.is_paused and slot.process is not None:
                os.kill(slot.process.pid, signal.SIGCONT)
                slot.is_paused = False

    def tend(self) -> None:
        """Replaces workers that ended because they were fenced or a transaction timed out."""
        for slot in self.slots:
            if slot.process is not None and slot.process.poll() is not None:
                self._start(slot)

    # Waiting

    @property
    def output(self) -> int:
        return len(self._reader.seen[self.topics[-1]])

    def wait_for_output(self, count: int) -> bool:
        """Waits for that many more records."""
        before = self.output
        return self._wait_until(lambda: self.output >= before + count, f"{count} records more")

    def _wait_until(self, holds: Callable[[], bool], what: str) -> bool:
        """Waits. A machine may be slow, so it times out only if there is no progress at all."""
        before, deadline_s = self.output, time.monotonic() + WAIT_S
        while not holds():
            self.tend()
            if self.output > before:
                before, deadline_s = self.output, time.monotonic() + WAIT_S
            elif time.monotonic() > deadline_s:
                self.broken.append(f"not {what}: nothing came in {WAIT_S:.0f} s; {self.output} are in the output")
                return False
            time.sleep(POLL_S)
        return True

    # The end

    def finish(self) -> ChainHistory:
        """Waits until all of the input is in the output and no transaction is open."""
        self.resume_workers()
        self._writer.end()
        written = self._writer.acknowledged
        self._wait_until(lambda: self.output >= written, f"{written} records")
        for slot in self.slots:
            _end(slot)
        self._wait_until_stable()
        source, *views = (read_all(self.bootstrap, topic, PARTITIONS, "read_committed") for topic in self.topics)
        expected = sum(map(len, views))
        self._wait_for_reader(expected)
        self._reader.end()
        stages = zip(self.topics[1:], STAGES, strict=True)
        return ChainHistory(
            source,
            dict(zip(self.topics[1:], views, strict=True)),
            self._reader.seen,
            {topic: read_transactions(self.directory, stage) for topic, stage in stages},
            [*self.broken, *self._writer.failed[:5], *self._reader.errors],
        )

    def _wait_until_stable(self) -> None:
        deadline_s = time.monotonic() + WAIT_S
        left: list[str] = ["not asked"]
        while left and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            try:
                left = unstable(self.bootstrap, self.topics)
            except OSError:
                continue
        if left:
            self.broken.append(f"transactions never end: {left}")

    def _wait_for_reader(self, count: int) -> None:
        """Waits for the live reader. If it skipped a record, the checker reports that."""
        deadline_s = time.monotonic() + WAIT_S / 4
        while sum(map(len, self._reader.seen.values())) < count and time.monotonic() < deadline_s:
            time.sleep(POLL_S)

    def uncommitted(self) -> int:
        """Returns how many records of the chain belong to aborted transactions."""
        both = (
            sum(len(read_all(self.bootstrap, topic, PARTITIONS, isolation)) for topic in self.topics[1:])
            for isolation in ("read_uncommitted", "read_committed")
        )
        everything, committed = both
        return everything - committed

    def abandon(self) -> None:
        """Ends everything that it started, also after an error."""
        for slot in self.slots:
            _end(slot)
        self._writer.end()
        self._reader.end()


def _end(slot: Slot) -> None:
    if slot.process is not None:
        slot.process.kill()
        slot.process.wait()
        slot.is_paused = False


class Writer:
    """Writes the chain's input: numbers by key, continuously, but not far ahead of the output."""

    def __init__(self, bootstrap: str, topic: str, seed: int, output: Callable[[], int]) -> None:
        self._output = output
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "max.in.flight": 1}
        self._producer = Producer({**settings, "reconnect.backoff.max.ms": 500, "log_level": 0})
        self._topic = topic
        self._chance = Random(seed)
        self._ended = threading.Event()
        self.acknowledged = 0
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        counts = [0] * KEYS
        while not self._ended.wait(WRITE_PAUSE_S):
            self._producer.poll(0)
            if sum(counts) > self._output() + AHEAD_MAX:
                continue
            for _ in range(self._chance.randint(1, 6)):
                key = self._chance.randrange(KEYS)
                value = f"{key}:{counts[key]}"
                counts[key] += 1
                self._producer.produce(self._topic, value, partition=key % PARTITIONS, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(f"the input was not written: {error}")

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush(FLUSH_S)
