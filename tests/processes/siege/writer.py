"""A producer process: sends bursts of records to all partitions until SIGTERM, and records every outcome.

python -m tests.processes.siege.writer CLIENT BOOTSTRAP NUMBER HISTORY SEED TOPIC:INDEX...
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections import Counter
from pathlib import Path

from tests.processes.siege.history import Recorder, now_us
from tests.processes.siege.senders import SENDERS, Outcome, Sender, SenderFailedError
from tests.processes.siege.values import payload

PAUSE_S = 0.06
BURST_MAX = 15
OPEN_MAX = 400
"""Maximum of records without an outcome, so that an unavailable cluster does not accumulate a backlog."""
LIFE_S = (20.0, 60.0)
SOURCES_A_WRITER = 10_000

Where = tuple[str, int]


class Source:
    """One life of a producer."""

    def __init__(self, number: int, client: str, sender: Sender, recorder: Recorder) -> None:
        self.number = number
        self.sender = sender
        self.has_failed = False
        self._recorder = recorder
        self._sequences: Counter[Where] = Counter()
        self._open: set[tuple[Where, int]] = set()
        recorder.write("source", "-", number, client, int(sender.in_order))

    @property
    def open_count(self) -> int:
        return len(self._open)

    async def burst(self, where: Where, count: int) -> None:
        for _ in range(count):
            sequence = self._sequences[where]
            name, sent_us = f"{where[0]}-{where[1]}", now_us()
            self._recorder.write("send", name, self.number, sequence, 1, at_us=sent_us)
            self._sequences[where] += 1
            self._open.add((where, sequence))

            def done(outcome: Outcome, sequence: int = sequence, sent_us: int = sent_us) -> None:
                self._on_outcome(where, sequence, sent_us, outcome)

            try:
                await self.sender.send(where[0], where[1], payload(self.number, sequence), done)
            except SenderFailedError as problem:
                self.has_failed = True
                self._on_outcome(where, sequence, sent_us, Outcome(None, str(problem).split("\n")[0]))
                return

    def _on_outcome(self, where: Where, sequence: int, sent_us: int, outcome: Outcome) -> None:
        """Called for each value; only the first outcome counts."""
        if (where, sequence) not in self._open:
            return
        self._open.discard((where, sequence))
        name = f"{where[0]}-{where[1]}"
        if outcome.offset is not None:
            now = now_us()
            self._recorder.write("ok", name, self.number, sequence, outcome.offset, now - sent_us, at_us=now)
            return
        kind = "fail" if outcome.is_certain else "unknown"
        self._recorder.write(kind, name, self.number, sequence, outcome.error.replace("\t", " ") or "?")
        if "fatal" in outcome.error.lower() or outcome.error in FATAL:
            self.has_failed = True

    async def end(self) -> None:
        """Waits for pending records; those without an outcome afterwards never get one."""
        with contextlib.suppress(Exception):
            await self.sender.flush()
        with contextlib.suppress(Exception):
            await self.sender.close()
        for where, sequence in sorted(self._open):
            self._on_outcome(where, sequence, 0, Outcome(None, "left open", is_certain=False))


FATAL = {
    "_FATAL",
    "ProducerFencedError",
    "SequenceLostError",
    "ProducerFenced",
    "OutOfOrderSequenceNumber",
    "UnknownProducerId",
    "ClientClosedError",
}


class Writer:
    def __init__(self, client: str, bootstrap: str, number: int, recorder: Recorder, chance: random.Random) -> None:
        self._client = client
        self._bootstrap = bootstrap
        self._next = number * SOURCES_A_WRITER
        self._recorder = recorder
        self._chance = chance
        self._ending: set[asyncio.Task[None]] = set()
        self.stopping = asyncio.Event()

    async def run(self, places: list[Where]) -> None:
        while not self.stopping.is_set():
            source = await self._new_source()
            if source is None:
                await asyncio.sleep(0.2)
                continue
            await self._live(source, places)
            task = asyncio.ensure_future(source.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if self._ending:
            await asyncio.wait(self._ending)

    async def _new_source(self) -> Source | None:
        sender = SENDERS[self._client](self._bootstrap)
        try:
            await asyncio.wait_for(sender.start(), 10)
        except Exception:  # whatever a library raises while no broker answers: the next one retries
            with contextlib.suppress(Exception):
                await sender.close()
            return None
        self._next += 1
        return Source(self._next, self._client, sender, self._recorder)

    async def _live(self, source: Source, places: list[Where]) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._chance.uniform(*LIFE_S)
        while loop.time() < until_s and not source.has_failed and not self.stopping.is_set():
            if source.open_count < OPEN_MAX:
                await source.burst(self._chance.choice(places), self._chance.randint(1, BURST_MAX))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), PAUSE_S)


async def main(arguments: list[str]) -> None:
    client, bootstrap, number, path, seed, *names = arguments
    places = [(topic, int(index)) for topic, _, index in (name.rpartition(":") for name in names)]
    recorder = Recorder(Path(path))
    writer = Writer(client, bootstrap, int(number), recorder, random.Random(seed))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, writer.stopping.set)
    await writer.run(places)
    recorder.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
