"""A process with one transaction after the other, until SIGTERM. Each appends unique values to several partitions and
reads committed ones; some are aborted, and some are left open and fenced by the next producer.

python -m tests.processes.siege.workloads.transactor CLIENT BOOTSTRAP TRANSACTIONAL_ID HISTORY SEED
    TOPIC TOPIC_READ PARTITIONS
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections import Counter
from pathlib import Path

from tests.processes.groups.history import Recorder, now_us
from tests.processes.siege.workloads.transacting import (
    TRANSACTORS,
    AbortNeededError,
    ProducerOverError,
    Transactor,
    Where,
)

PAUSE_S = 0.1
STEPS_MAX = 5
READ_SHARE = 0.3
ABORTED_SHARE = 0.2
LEFT_OPEN_SHARE = 0.03
BACK_SHARE = 0.1
BACK_MAX = 100


class Process:
    def __init__(self, path: Path, seed: str, topics: tuple[str, str], partitions: int) -> None:
        self._name = path.stem
        self._recorder = Recorder(path)
        self._chance = random.Random(seed)
        self._writes, self._reads = topics
        self._partitions = partitions
        self._positions: Counter[Where] = Counter()
        self._number = 0
        self.stopping = asyncio.Event()

    async def run(self, client: str, bootstrap: str, transactional_id: str) -> None:
        while not self.stopping.is_set():
            transactor = TRANSACTORS[client](bootstrap, transactional_id)
            try:
                await transactor.start()
                await self._live(transactor)
            except ProducerOverError:
                await asyncio.sleep(0.2)
            finally:
                with contextlib.suppress(Exception):
                    await transactor.close()

    async def _live(self, transactor: Transactor) -> None:
        while not self.stopping.is_set():
            if self._chance.random() < LEFT_OPEN_SHARE:
                await self._steps(transactor, self._begun())
                return
            await self._transaction(transactor)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), PAUSE_S)

    def _begun(self) -> str:
        self._number += 1
        name = f"{self._name}:{self._number}"
        self._recorder.write("began", name)
        return name

    async def _transaction(self, transactor: Transactor) -> None:
        name = self._begun()
        try:
            await self._steps(transactor, name)
            if self._chance.random() < ABORTED_SHARE:
                await transactor.abort()
                self._recorder.write("aborted", name)
                return
            self._recorder.write("commits", name)
            await transactor.commit()
            self._recorder.write("committed", name)
        except AbortNeededError:
            await transactor.abort()
            self._recorder.write("aborted", name)
        except ProducerOverError as problem:
            if problem.is_aborted:
                self._recorder.write("aborted", name)
            raise

    async def _steps(self, transactor: Transactor, name: str) -> None:
        await transactor.begin()
        for step in range(self._chance.randint(1, STEPS_MAX)):
            if step and self._chance.random() < READ_SHARE:
                await self._read(transactor, name)
                continue
            where = self._writes, self._chance.randrange(self._partitions)
            value = f"{name}.{step}"
            self._recorder.write("sends", name, _key(where), value)
            offset = await transactor.append(where, value)
            self._recorder.write("acked", name, value, offset)

    async def _read(self, transactor: Transactor, name: str) -> None:
        where = self._chance.choice((self._writes, self._reads)), self._chance.randrange(self._partitions)
        first = self._positions[where]
        if self._chance.random() < BACK_SHARE:
            first = max(0, first - self._chance.randint(1, BACK_MAX))
        began_us = now_us()
        found = await transactor.read(where, first)
        self._positions[where] = found.end
        texts = (f"{offset}={value}" for offset, value in found.records)
        self._recorder.write("read", name, _key(where), first, found.end, began_us, int(found.is_to_the_end), *texts)


def _key(where: Where) -> str:
    return f"{where[0]}-{where[1]}"


async def main(arguments: list[str]) -> None:
    client, bootstrap, transactional_id, path, seed, topic, read_topic, partitions = arguments
    process = Process(Path(path), seed, (topic, read_topic), int(partitions))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, process.stopping.set)
    await process.run(client, bootstrap, transactional_id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
