"""Workers that consume, transform and produce exactly once, as processes that are killed, paused and replaced."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.processes.siege.workloads.transactions import GROUP, SOURCE, TARGET
from tests.processes.transactions.history import SUFFIX as WORKER_SUFFIX

SESSION_MS = 6000
TRANSACTION_TIMEOUT_MS = 15_000
MODULES = ("worker", "own_worker")
PROTOCOLS = ("eager", "consumer")


@dataclass(slots=True)
class _Slot:
    module: str
    transactional_id: str
    process: subprocess.Popen[bytes] | None = None


class Workers:
    """One worker of each library in one group."""

    def __init__(self, directory: Path, bootstrap: str, chance: Random) -> None:
        self._directory = directory
        self._bootstrap = bootstrap
        self._chance = chance
        self._protocol = chance.choice(PROTOCOLS)
        self._numbers = itertools.count(1)
        self._paused: _Slot | None = None
        self._slots = [_Slot(module, f"exactly-once-{module}") for module in MODULES]

    def start(self) -> None:
        for slot in self._slots:
            self._start(slot)

    def _start(self, slot: _Slot) -> None:
        path = self._directory / f"worker-{next(self._numbers)}{WORKER_SUFFIX}"
        settings = (SESSION_MS, TRANSACTION_TIMEOUT_MS)
        arguments = (self._protocol, self._bootstrap, GROUP, SOURCE, TARGET, slot.transactional_id, path)
        words = [*arguments, self._chance.randrange(1 << 31), *settings]
        command = [sys.executable, "-m", f"tests.processes.transactions.{slot.module}", *map(str, words)]
        with path.with_suffix(".log").open("wb") as log:
            slot.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def tend(self) -> None:
        """Replaces workers that ended because they were fenced or could not continue."""
        for slot in self._slots:
            if slot.process is not None and slot.process.poll() is not None:
                self._start(slot)

    def act(self) -> None:
        """Kills or pauses a worker. A paused one continues at the next call, and may be a zombie by then."""
        self.resume()
        slot = self._chance.choice(self._slots)
        if self._chance.random() < 0.5:
            _kill(slot)
            self._start(slot)
        elif slot.process is not None and slot.process.poll() is None:
            slot.process.send_signal(signal.SIGSTOP)
            self._paused = slot

    def resume(self) -> None:
        slot, self._paused = self._paused, None
        if slot is not None and slot.process is not None and slot.process.poll() is None:
            slot.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for slot in self._slots:
            _kill(slot)


def _kill(slot: _Slot) -> None:
    if slot.process is not None:
        slot.process.kill()
        slot.process.wait()
