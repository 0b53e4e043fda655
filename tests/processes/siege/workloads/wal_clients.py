"""A process with clients of two write-ahead logs, until SIGTERM. Some compete for the end of one log with conditional
appends; others fence the second one, write until they are fenced, and fence it again.

    python -m tests.processes.siege.workloads.wal_clients SERVERS HISTORY SEED DURABILITY follow|final

`final` reads both logs to their ends, and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from ottla.wal import FencedError, Log, LogSettings, TooLargeError, UnavailableError, UnexpectedEndError, WalError
from ottla.wal.values import Limits
from tests.processes.groups.history import Recorder
from tests.processes.siege.workloads.wal import COMPETED, RULED, key_of

LIMITS = Limits(patience_s=20)
COMPETITORS = 2
RULERS = 2
REPLICAS = 3
PAUSE_S = (0.0, 0.1)
LIFE_MAX = 60
CONDITIONAL_SHARE = 0.5


class Clients:
    def __init__(self, servers: str, path: Path, seed: str) -> None:
        self.servers = servers
        self._name = path.stem
        self._recorder = Recorder(path)
        self._chance = random.Random(seed)
        self._operations = 0
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        competing = [self._live(self._compete, f"{self._name}-competes-{number}") for number in range(COMPETITORS)]
        ruling = [self._live(self._rule, f"{self._name}-rules-{number}") for number in range(RULERS)]
        await asyncio.gather(*competing, *ruling)

    async def _live(self, work: Callable[[str], Awaitable[None]], writer: str) -> None:
        while not self.stopping.is_set():
            try:
                await work(writer)
            except WalError:
                await asyncio.sleep(0.2)

    async def _compete(self, writer: str) -> None:
        """Without fences, any client that knows the end may append there."""
        log = await Log.open(self.servers, COMPETED, limits=LIMITS)
        try:
            for _ in range(self._chance.randint(1, LIFE_MAX)):
                if self.stopping.is_set():
                    return
                end = await self._tail(log, writer)
                burst = range(self._chance.randint(1, 3))
                await asyncio.gather(*(self._append(log, COMPETED, writer, end + place, 0) for place in burst))
                await asyncio.sleep(self._chance.uniform(*PAUSE_S))
        finally:
            await log.close()

    async def _rule(self, writer: str) -> None:
        number = self._asks(RULED, "fence", writer)
        log = await Log.open(self.servers, RULED, fence=True, limits=LIMITS)
        assert log.epoch is not None
        assert log.fence_offset is not None
        self._gets(number, "done", log.fence_offset, log.epoch)
        end: int | None = log.fence_offset + 1
        try:
            for _ in range(self._chance.randint(1, LIFE_MAX)):
                if self.stopping.is_set():
                    return
                expected = end if self._chance.random() < CONDITIONAL_SHARE else None
                outcome, offset = await self._append(log, RULED, writer, expected, log.epoch)
                if outcome == "fenced":
                    return
                end = offset + 1 if outcome == "done" else None
                await asyncio.sleep(self._chance.uniform(*PAUSE_S))
        finally:
            await log.close()

    async def _append(self, log: Log, topic: str, writer: str, expected: int | None, epoch: int) -> tuple[str, int]:
        number = self._asks(topic, "append", writer, expected, epoch)
        try:
            offset = await log.append(key_of(self._name, number).encode(), expected_end=expected)
        except UnexpectedEndError as error:
            return self._gets(number, "unexpected end", error.end)
        except FencedError:
            return self._gets(number, "fenced")
        except (UnavailableError, TooLargeError):
            return self._gets(number, "refused")
        except WalError:
            return "unknown", -1
        return self._gets(number, "done", offset)

    async def _tail(self, log: Log, writer: str) -> int:
        number = self._asks(COMPETED, "tail", writer)
        return self._gets(number, "done", (await log.tail()).end_offset)[1]

    def _asks(self, topic: str, kind: str, writer: str, expected: int | None = None, epoch: int = 0) -> int:
        self._operations += 1
        self._recorder.write("asks", self._operations, topic, kind, writer, -1 if expected is None else expected, epoch)
        return self._operations

    def _gets(self, number: int, outcome: str, offset: int = -1, epoch: int = 0) -> tuple[str, int]:
        self._recorder.write("gets", number, outcome, offset, epoch)
        return outcome, offset

    async def create(self, durability: str) -> None:
        settings = LogSettings(replicas=REPLICAS, durability=durability)
        for topic in (COMPETED, RULED):
            while True:
                with contextlib.suppress(WalError):
                    await (await Log.open(self.servers, topic, create=settings, limits=LIMITS)).close()
                    break
                await asyncio.sleep(0.2)

    async def read(self) -> None:
        """Records all entries of both logs. Retries without a timeout; the parent process applies one."""
        for topic in (COMPETED, RULED):
            first = 0
            while True:
                with contextlib.suppress(WalError):
                    log = await Log.open(self.servers, topic, limits=LIMITS)
                    async for entry in log.read(first):
                        self._recorder.write("entry", topic, entry.offset, entry.data.decode())
                        first = entry.offset + 1
                    await log.close()
                    break
                await asyncio.sleep(0.2)
            self._recorder.write("whole", topic)


async def main(arguments: list[str]) -> None:
    servers, path, seed, durability, kind = arguments
    clients = Clients(servers, Path(path), seed)
    if kind == "final":
        await clients.read()
        return
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, clients.stopping.set)
    await clients.create(durability)
    await clients.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
