"""The processes: three brokers, the connector, two writers; and the killing of them."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from ottla.connect.sqlite import NotShippedError, wait_shipped
from ottla.protocol.model.group_keys import DEVELOPMENT_DEFAULTS, OFFSETS_REPLICATION_FACTOR
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.ports import reserve_ports
from tests.connect.sqlite.content import Records
from tests.connect.sqlite.writer import create

LOG = "shop"
WRITERS = 2
EXPECTED_ENDS = ("is not in WAL mode", "another connector has taken over the log")
"""Reasons for the end of a connector that was not killed: a writer left WAL mode, or the previous one still ran."""


def start_brokers(directory: Path, count: int) -> tuple[list[BrokerProcess], str]:
    """Starts brokers; returns them and the addresses of their append streams."""
    ports = reserve_ports(count)
    brokers = [
        BrokerProcess(
            directory / f"broker-{number}",
            config={
                "default.replication.factor": str(count),
                OFFSETS_REPLICATION_FACTOR: str(count),
                **DEVELOPMENT_DEFAULTS,
                "node.id": str(number),
                "ottla.coordination": f"sqlite:{directory / 'coordination'}",
                "ottla.host.shared": "true",
                "broker.session.timeout.ms": "2000",
                "ottla.wal.port": str(port),
            },
            ready_timeout_s=120,
        )
        for number, port in enumerate(ports, 1)
    ]
    for broker in brokers:
        broker.start()
    return brokers, ",".join(f"127.0.0.1:{port}" for port in ports)


class World:
    def __init__(self, directory: Path, seed: int, transactions: int, broker_count: int) -> None:
        self._random = random.Random(seed)
        self._until = transactions
        self.directory = directory
        self.database = directory / "shop.db"
        self.records = Records(directory / "records.txt")
        page_bytes, auto_vacuum = self._random.choice((512, 1024, 4096, 4096, 16384, 65536)), self._random.randrange(3)
        create(self.database, page_bytes, auto_vacuum)
        self.setting = f"pages of {page_bytes} bytes, auto_vacuum {auto_vacuum}"
        self.kills = dict.fromkeys(("writer", "connector", "worker", "broker"), 0)
        self.connector_starts = 0
        self._output = open(directory / "connector.log", "ab")  # noqa: SIM115 - for all connectors; closed in `end`
        self.brokers, self.wal_servers = start_brokers(directory, broker_count)
        self._back_at: dict[int, float] = {}
        self.connector = self._start_connector()
        self._await_log()
        self.writers = [self._start_writer() for _ in range(WRITERS)]

    def _start_connector(self) -> subprocess.Popen[bytes]:
        self.connector_starts += 1
        self._follows_before = self.log().count("follows")
        command = [sys.executable, "-m", "ottla", "connect", "sqlite", str(self.database), "--log", LOG]
        command += ["--wal", self.wal_servers, "--checkpoint-mb", "1", "--bootstrap", self.bootstrap]
        command += ["--snapshot-every", self._random.choice(("5s", "1d"))]
        return subprocess.Popen(command, stdout=self._output, stderr=self._output)

    def _await_log(self) -> None:
        """Waits, since a log with three replicas can be created only while there are three brokers."""
        while "following" not in self.log():
            assert self.connector.poll() is None, self.log()
            time.sleep(0.05)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def _start_writer(self) -> subprocess.Popen[bytes]:
        seed = str(self._random.randrange(1 << 30))
        command = [sys.executable, "-m", "tests.connect.sqlite.writer", str(self.database), str(self.records.path)]
        return subprocess.Popen([*command, seed, str(self._until)])

    # -- faults -------------------------------------------------------------------------------------------------------

    def torment(self) -> None:
        """Injects faults until the writers have finished."""
        while any(writer.poll() is None for writer in self.writers):
            time.sleep(self._random.uniform(0.05, 1.0))
            victim = self._random.random()
            if victim < 0.4:
                self._kill_writer()
            elif victim < 0.7:
                self._kill_connector()
            elif victim < 0.85 and len(self.brokers) > 1:
                self._kill_broker()
            self._put_right()

    def _kill_writer(self) -> None:
        place = self._random.randrange(WRITERS)
        if self.writers[place].poll() is None:
            self.writers[place].kill()
            self.writers[place].wait()
            self.kills["writer"] += 1
            self.writers[place] = self._start_writer()

    def _kill_connector(self) -> None:
        """Kills a connector only once it works: it takes a while to start."""
        number = self._random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        is_worker = self._random.random() < 0.4
        if self.log().count("follows") == self._follows_before:
            return
        if is_worker:
            self._kill_worker()
            return
        if self.connector.poll() is None:
            self.connector.send_signal(number)
            self.connector.wait(60)
            self.kills["connector"] += 1
        time.sleep(self._random.choice((0, 0, 0.5)))
        self.connector = self._start_connector()

    def _kill_worker(self) -> None:
        """Kills the worker; its supervisor starts another one."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for worker in psutil.Process(self.connector.pid).children():
                self._follows_before = self.log().count("follows")
                worker.kill()
                self.kills["worker"] += 1

    def _kill_broker(self) -> None:
        """Kills one broker at a time."""
        if not self._back_at:
            place = self._random.randrange(len(self.brokers))
            self.brokers[place].kill()
            self.kills["broker"] += 1
            self._back_at[place] = time.monotonic() + self._random.uniform(0, 4)

    def _put_right(self) -> None:
        for place in [place for place, at in self._back_at.items() if time.monotonic() > at]:
            self.brokers[place].start()
            del self._back_at[place]
        for writer in self.writers:
            if writer.poll() not in (None, 0):
                raise AssertionError(f"a writer ended with {writer.returncode}")
        if self.connector.poll() is not None:
            assert any(sentence in self.log()[-600:] for sentence in EXPECTED_ENDS), self.log()[-3000:]
            self.connector = self._start_connector()

    def log(self) -> str:
        return (self.directory / "connector.log").read_text(errors="replace")

    # -- the end ------------------------------------------------------------------------------------------------------

    def settle(self, timeout_s: float = 90) -> int:
        """Waits until everything committed is in the log; returns the number of the last transaction there."""
        for place in list(self._back_at):
            self.brokers[place].start()
        self._back_at.clear()
        deadline = time.monotonic() + timeout_s
        while True:
            self._put_right()
            try:
                transaction = wait_shipped(self.database, timeout_s=2)
                break
            except NotShippedError:
                assert time.monotonic() < deadline, self.log()[-3000:]
        self.connector.send_signal(signal.SIGTERM)
        assert self.connector.wait(60) == 0, self.log()[-3000:]
        return transaction

    def end(self) -> None:
        for process in (*self.writers, self.connector):
            if process.poll() is None:
                process.kill()
                process.wait()
        for broker in self.brokers:
            if broker.running:
                broker.kill()
        self._output.close()
