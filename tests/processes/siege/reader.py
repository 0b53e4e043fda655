"""A consumer process: follows all partitions, and sometimes seeks backwards or to the end.

    python -m tests.processes.siege.reader CLIENT BOOTSTRAP HISTORY SEED follow|final TOPIC:INDEX...

`follow` ends on SIGTERM. `final` reads everything from the beginning to the current end, and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.processes.siege.history import Recorder, now_us, runs_of
from tests.processes.siege.receivers import RECEIVERS, Received, Receiver
from tests.processes.siege.values import Value, identify, sequence_of, source_of

TURN_S = (4.0, 12.0)
"""How long a reader follows before it does something else."""
BACK_MAX = 1500
ASK_SHARE = 0.1
"""The share of polls followed by a request for a log end."""

Where = tuple[str, int]


def name_of(where: Where) -> str:
    return f"{where[0]}-{where[1]}"


class Reader:
    def __init__(self, client: str, bootstrap: str, recorder: Recorder, places: Iterable[Where]) -> None:
        self._client = client
        self._bootstrap = bootstrap
        self._recorder = recorder
        self._receiver: Receiver | None = None
        self.positions: dict[Where, int] = dict.fromkeys(places, 0)

    async def poll(self) -> None:
        """Polls and records the result. A consumer that fails is replaced."""
        try:
            receiver = await self._started()
            received = await receiver.poll()
        except Exception as problem:  # libraries raise different errors; the next consumer continues in the same place
            await self._drop(problem)
            return
        self._record(received)

    def _record(self, received: list[Received]) -> None:
        found: dict[Where, list[tuple[int, Value]]] = defaultdict(list)
        for where, offset, data in received:
            value = identify(data)
            if value is None:
                self._recorder.write("changed", name_of(where), offset)
                continue
            found[where].append((offset, value))
            self.positions[where] = offset + 1
        for where, records in found.items():
            runs = (
                f"{run.offset}:{source_of(run.value)}:{sequence_of(run.value)}:{run.length}" for run in runs_of(records)
            )
            self._recorder.write("poll", name_of(where), *runs)

    async def seek(self, where: Where, offset: int) -> None:
        if self._receiver is None:
            return
        self.positions[where] = offset
        self._recorder.write("assign", name_of(where), offset)
        try:
            await self._receiver.seek(where, offset)
        except Exception as problem:  # as above: the next consumer starts again there
            await self._drop(problem)

    async def end(self, where: Where) -> int | None:
        asked_us = now_us()
        try:
            receiver = await self._started()
            _, offset = await receiver.ends(where)
        except Exception as problem:
            self._recorder.write("refused", "-", _word(problem))
            return None
        self._recorder.write("end", name_of(where), offset, asked_us)
        return offset

    async def _started(self) -> Receiver:
        if self._receiver is None:
            self._receiver = receiver = RECEIVERS[self._client](self._bootstrap)
            await receiver.start()
            for where, offset in self.positions.items():
                # An empty `memory` log starts above all offsets that the previous leader could have assigned.
                first, _ = await receiver.ends(where)
                self.positions[where] = max(offset, first)
                self._recorder.write("assign", name_of(where), self.positions[where])
            await receiver.assign(self.positions)
        return self._receiver

    async def _drop(self, problem: Exception) -> None:
        self._recorder.write("refused", "-", _word(problem))
        await self.close()
        await asyncio.sleep(0.2)

    async def close(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            with contextlib.suppress(Exception, asyncio.CancelledError):  # aiokafka leaks its tasks' cancellations
                await receiver.close()


def _word(problem: Exception) -> str:
    return f"{type(problem).__name__} {str(problem)[:100]}".replace("\t", " ").replace("\n", " ")


async def follow(reader: Reader, chance: random.Random, stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    while not stopping.is_set():
        until_s = loop.time() + chance.uniform(*TURN_S)
        while loop.time() < until_s and not stopping.is_set():
            await reader.poll()
            if chance.random() < ASK_SHARE:
                await reader.end(chance.choice(list(reader.positions)))
        where = chance.choice(list(reader.positions))
        if chance.random() < 0.6:
            end = await reader.end(where)
            if end is not None:
                await reader.seek(where, end)
        else:
            await reader.seek(where, max(0, reader.positions[where] - chance.randint(1, BACK_MAX)))


async def read_to_the_end(reader: Reader, recorder: Recorder) -> None:
    """Waits for a reply without a timeout; the parent process applies one."""
    left: dict[Where, int] = {}
    for where in reader.positions:
        while (end := await reader.end(where)) is None:
            await reader.poll()
        recorder.write("final", name_of(where), end)
        left[where] = end
    while any(reader.positions[where] < end for where, end in left.items()):
        await reader.poll()


async def main(arguments: list[str]) -> None:
    client, bootstrap, path, seed, kind, *names = arguments
    places = [(topic, int(index)) for topic, _, index in (name.rpartition(":") for name in names)]
    recorder = Recorder(Path(path))
    reader = Reader(client, bootstrap, recorder, places)
    if kind == "final":
        await read_to_the_end(reader, recorder)
    else:
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        await follow(reader, random.Random(seed), stopping)
    await reader.close()
    recorder.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
