"""All workloads of a siege beside plain writers and readers: their start, the deaths of clients, and the end."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.processes.siege.workloads import members, transactions, wal
from tests.processes.siege.workloads.exactly_once import Workers
from tests.processes.siege.workloads.members import Members
from tests.processes.siege.workloads.transactions import PARTITIONS, SOURCE, TARGET
from tests.processes.transactions.reading import LiveReader, read_all, unstable

PACKAGE = "tests.processes.siege.workloads"
TRANSACTORS = ("librdkafka", "ottla")
BETWEEN_DEATHS_S = (3.0, 9.0)
STOP_S = 120.0
OUTPUT_S = 180.0
FINAL_S = 180.0
POLL_S = 0.3

Broken = Callable[[str], None]


@dataclass(slots=True)
class Client:
    """A process that is started again after its death, with another file for its history."""

    name: str
    module: str
    suffix: str
    arguments: Callable[[str], list[str]]
    """The arguments of the module, given the path of the history."""
    process: subprocess.Popen[bytes] | None = None


class Workloads:
    def __init__(
        self, directory: Path, bootstrap: str, wal_servers: str, plain: tuple[str, int], durability: str, seed: str
    ) -> None:
        """`plain` is a topic of plain writers, with its number of partitions, that groups read."""
        self._bootstrap = bootstrap
        self._wal_servers = wal_servers
        self._chance = Random(f"{seed} workloads")
        self._numbers = itertools.count(1)
        self._folders = {each.FOLDER: directory / each.FOLDER for each in (transactions, wal, members)}
        for folder in self._folders.values():
            folder.mkdir()
        self._durability = durability
        self._clients = [self._transactor(client) for client in TRANSACTORS] + [self._wal_client("follow")]
        self._workers = Workers(self._folders[transactions.FOLDER], bootstrap, self._chance)
        self._members = Members(self._folders[members.FOLDER], bootstrap, *plain, self._chance)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._deaths, name="deaths of clients", daemon=True)
        self._failure: list[str] = []

    def _transactor(self, client: str) -> Client:
        def arguments(path: str) -> list[str]:
            words = [client, self._bootstrap, f"siege-{client}", path, str(self._chance.random())]
            return [*words, SOURCE, TARGET, str(PARTITIONS)]

        return Client(f"{client}", "transactor", transactions.SUFFIX, arguments)

    def _wal_client(self, kind: str) -> Client:
        def arguments(path: str) -> list[str]:
            return [self._wal_servers, path, str(self._chance.random()), self._durability, kind]

        return Client(f"{kind}", "wal_clients", wal.SUFFIX, arguments)

    def start(self) -> None:
        for client in self._clients:
            self._start(client)
        self._workers.start()
        self._members.start()

    def _start(self, client: Client) -> None:
        folder = self._folders[wal.FOLDER if client.suffix == wal.SUFFIX else transactions.FOLDER]
        path = folder / f"{client.name}-{next(self._numbers)}{client.suffix}"
        command = [sys.executable, "-m", f"{PACKAGE}.{client.module}", *client.arguments(str(path))]
        with path.with_suffix(".log").open("wb") as log:
            client.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_until_busy(self, timeout_s: float) -> None:
        """Waits until each workload has had a success, and then begins to kill clients."""
        deadline_s = time.monotonic() + timeout_s
        wanted = {
            (transactions.FOLDER, "*.transactor", "\tcommitted\t"),
            (transactions.FOLDER, "*.transactions", "\tcommitted\t"),
            (wal.FOLDER, "*.wal", "\tdone\t"),
            (members.FOLDER, "*/*.history", "\tacked\t"),
        }
        while wanted and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            self._workers.tend()
            wanted = {each for each in wanted if not self._has(*each)}
        if wanted:
            raise TimeoutError(f"nothing succeeded in {timeout_s:.0f} s: {sorted(wanted)}")
        self._thread.start()

    def _has(self, folder: str, files: str, word: str) -> bool:
        return any(word in path.read_text(encoding="ascii") for path in self._folders[folder].glob(files))

    def _deaths(self) -> None:
        acts = (self._members.act, self._workers.act, self._kill_client)
        try:
            while not self._stopping.wait(self._chance.uniform(*BETWEEN_DEATHS_S)):
                self._workers.tend()
                self._chance.choice(acts)()
        except Exception as problem:  # reported at the end: a thread has nobody to raise it to
            self._failure.append(f"the thread that kills clients ended: {problem!r}")

    def _kill_client(self) -> None:
        client = self._chance.choice(self._clients)
        if client.process is not None:
            client.process.kill()
            client.process.wait()
        self._start(client)

    # The end

    def finish(self, broken: Broken) -> None:
        """Ends all workloads once everything is processed, and records the final contents. All writers have ended."""
        self._stopping.set()
        self._thread.join()
        for sentence in self._failure:
            broken(sentence)
        self._workers.resume()
        self._stop_clients(broken)
        self._finish_transactions(broken)
        self._members.finish()
        self._finish_wal(broken)

    def _stop_clients(self, broken: Broken) -> None:
        for client in self._clients:
            assert client.process is not None
            if client.process.poll() is not None:
                broken(f"the {client.module} {client.name} ended by itself with {client.process.returncode}")
            client.process.send_signal(signal.SIGTERM)
        for client in self._clients:
            assert client.process is not None
            try:
                client.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                broken(f"the {client.module} {client.name} did not end in {STOP_S:.0f} s")
                client.process.kill()
                client.process.wait()

    def _finish_transactions(self, broken: Broken) -> None:
        folder = self._folders[transactions.FOLDER]
        if not self._wait_until_stable([SOURCE], broken):
            return
        source = read_all(self._bootstrap, SOURCE, PARTITIONS, "read_committed")
        reader = LiveReader(self._bootstrap, [TARGET], PARTITIONS)
        count, deadline_s = 0, time.monotonic() + OUTPUT_S
        while (seen := len(reader.seen[TARGET])) < len(source):
            self._workers.tend()
            if seen > count:
                count, deadline_s = seen, time.monotonic() + OUTPUT_S
            if time.monotonic() > deadline_s:
                broken(f"{seen} of {len(source)} records are processed, and nothing came in {OUTPUT_S:.0f} s")
                break
            time.sleep(POLL_S)
        reader.end()
        self._workers.end()
        self._wait_until_stable([SOURCE, TARGET], broken)
        for topic in (SOURCE, TARGET):
            transactions.write_end(folder, topic, read_all(self._bootstrap, topic, PARTITIONS, "read_committed"))

    def _wait_until_stable(self, topics: list[str], broken: Broken) -> bool:
        deadline_s = time.monotonic() + OUTPUT_S
        left: object = "nobody answered"
        while time.monotonic() < deadline_s:
            try:
                left = unstable(self._bootstrap, topics)
            except OSError as problem:
                left = problem
            if not left:
                return True
            time.sleep(POLL_S)
        broken(f"transactions never end: {left}")
        return False

    def _finish_wal(self, broken: Broken) -> None:
        reader = self._wal_client("final")
        self._start(reader)
        assert reader.process is not None
        try:
            if code := reader.process.wait(FINAL_S):
                broken(f"the last reader of the write-ahead logs ended with {code}")
        except subprocess.TimeoutExpired:
            broken("the last reader of the write-ahead logs did not reach the end")
            reader.process.kill()
            reader.process.wait()

    def kill(self) -> None:
        """Ends everything that was started, also after an error."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for client in self._clients:
            if client.process is not None and client.process.poll() is None:
                client.process.kill()
                client.process.wait()
        self._workers.end()
        self._members.end()
