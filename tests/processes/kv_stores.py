"""Key-value stores of `examples/kv` as processes that tests kill, and a client that records their acknowledgements."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "kv" / "server.py"
READY_S = 60.0
ANSWER_S = 10.0


class KvProcess:
    """`python examples/kv/server.py`. The port survives restarts."""

    def __init__(self, wal_servers: str, directory: Path, name: str, *arguments: str) -> None:
        self._command = [sys.executable, str(EXAMPLE), "--wal", wal_servers, *arguments]
        self._output = directory / f"{name}.out"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        with self._output.open("ab") as output:
            begin = output.tell()
            command = [*self._command, "--port", str(self.port), *arguments]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            said = self._output.read_bytes()[begin:].decode()
            ready = [line for line in said.splitlines(keepends=True) if line.startswith("kv ready port=")]
            if ready and ready[0].endswith("\n"):
                self.port = int(ready[0].split()[2].removeprefix("port="))
                return
            assert self._process.poll() is None, said
            time.sleep(0.02)
        raise AssertionError(f"no store after {READY_S:g} s: {self.log()}")

    def log(self) -> str:
        return self._output.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


class KvConnection:
    """One connection. Raises OSError if there is no reply."""

    def __init__(self, port: int, timeout_s: float = ANSWER_S) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._file = self._socket.makefile("rwb")

    def ask(self, line: str) -> str:
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        answer = self._file.readline().decode()
        if not answer.endswith("\n"):
            raise ConnectionError("the store has ended")
        return answer.strip()

    def close(self) -> None:
        self._socket.close()


def ask(port: int, line: str) -> str:
    connection = KvConnection(port)
    try:
        return connection.ask(line)
    finally:
        connection.close()


class Writers:
    """Threads that write to the leader. Each key has one writer, whose values increase and are never sent twice."""

    def __init__(self, stores: list[KvProcess], chance: random.Random, threads: int, keys_each: int = 5) -> None:
        self._stores = stores
        self.acknowledged: dict[str, list[int]] = defaultdict(list)
        self.attempted: dict[str, int] = defaultdict(int)
        self._is_over = threading.Event()
        self._threads = []
        for number in range(threads):
            keys = [f"w{number}-{key}" for key in range(keys_each)]
            chance_of_one = random.Random(chance.random())
            thread = threading.Thread(target=self._write, args=(keys, chance_of_one), daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, list(self.acknowledged.values())))

    def wait_for(self, more: int, timeout_s: float = 90.0) -> None:
        wanted, deadline_s = self.count + more, time.monotonic() + timeout_s
        while self.count < wanted:
            logs = "\n".join(store.log() for store in self._stores)
            assert time.monotonic() < deadline_s, f"{self.count} of {wanted} writes acknowledged:\n{logs}"
            time.sleep(0.02)

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _write(self, keys: list[str], chance: random.Random) -> None:
        connection: KvConnection | None = None
        while not self._is_over.is_set():
            key = chance.choice(keys)
            try:
                if connection is None:
                    connection = KvConnection(chance.choice(self._stores).port)
                self.attempted[key] += 1
                number = self.attempted[key]
                answer = connection.ask(f"PUT {key} {number}")
            except OSError:
                answer = "ERROR no answer"
            if answer.startswith("OK "):
                self.acknowledged[key].append(number)
                continue
            if connection is not None:
                connection.close()
                connection = None
            self._is_over.wait(0.05)
