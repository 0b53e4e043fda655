"""The second part of the demo: a key-value store in memory whose only durability is a log (`examples/kv`).

Two stores run on one log, each as a process. Values are written to the leader, which is killed with SIGKILL in the
middle; the other store takes over. Every acknowledged value must still exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import ottla
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.ports import reserve_port

SERVER = Path(ottla.__file__).parents[2] / "examples" / "kv" / "server.py"
WRITERS = 8
KILL_AT = 300
WRITES = 1000
TAKE_OVER_S = 1.5
READY_S = 60.0
GIVE_UP_S = 120.0

Say = Callable[[str], None]


@dataclass(slots=True)
class KvResults:
    """The results of this part."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    """The last acknowledged value of each key."""
    count: int = 0
    silence_s: float = 0.0
    """Time from the kill to the next acknowledgement."""
    lost: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Store:
    """One key-value store process."""

    process: asyncio.subprocess.Process
    port: int

    async def ask(self, line: str) -> str:
        """Sends one command and returns the answer. Raises OSError if the store does not answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(line.encode() + b"\n")
            answer = (await reader.readline()).decode()
        finally:
            writer.close()
        if not answer.endswith("\n"):
            raise ConnectionError("the store has ended")
        return answer.strip()


async def run_kv(directory: Path, say: Say) -> KvResults:
    """Runs this part with a broker of its own, which ends with it."""
    wal_port = reserve_port()
    broker = BrokerProcess(directory / "kv-broker", config={"ottla.wal.port": str(wal_port)})
    with await asyncio.to_thread(broker.start):
        async with AsyncExitStack() as stack:
            servers = f"127.0.0.1:{wal_port}"
            stores = [await stack.enter_async_context(_store(servers, *role)) for role in ((), ("--follow",))]
            say("two key-value stores in memory, one leads and one follows; they share only a log")
            writing = _KvWriters(stores)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GIVE_UP_S):
                    await writing.run(say)
            return writing.story


class _KvWriters:
    """Writes to the current leader. Each writer has its own key, whose values count up."""

    def __init__(self, stores: list[Store]) -> None:
        self.story = KvResults()
        self._stores = stores
        self._killed_s = 0.0
        self._kill_is_due = asyncio.Event()

    async def run(self, say: Say) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(WRITERS):
                tasks.create_task(self._write(f"k{number}"))
            await self._kill_is_due.wait()
            leader = await self._leader()
            leader.process.kill()
            await leader.process.wait()
            self._stores.remove(leader)
            self._killed_s = time.monotonic()
            say(f"after {self.story.count:,} acknowledged values the one that leads is killed with -9")
        for key, value in self.story.acknowledged.items():
            found = (await self._stores[0].ask(f"GET {key}")).removeprefix("VALUE ")
            if not found.isdigit() or int(found) < value:  # a higher value was sent but not acknowledged
                self.story.lost.append(key)

    async def _write(self, key: str) -> None:
        value, store = 0, self._stores[0]
        while self.story.count < WRITES:
            value += 1
            sent_s = time.monotonic()
            try:
                answer = await store.ask(f"PUT {key} {value}")
            except OSError:
                answer = ""
            if answer.startswith("OK "):
                self._acknowledged(key, value, sent_s)
                continue
            store = self._stores[value % len(self._stores)]
            await asyncio.sleep(0.02)

    def _acknowledged(self, key: str, value: int, sent_s: float) -> None:
        story = self.story
        story.acknowledged[key] = value
        story.count += 1
        if story.count == KILL_AT:
            self._kill_is_due.set()
        if self._killed_s and not story.silence_s and sent_s > self._killed_s:
            story.silence_s = time.monotonic() - self._killed_s

    async def _leader(self) -> Store:
        while True:
            for store in self._stores:
                if (await store.ask("POSITION")).endswith(" leads"):
                    return store
            await asyncio.sleep(0.02)


@asynccontextmanager
async def _store(wal_servers: str, *arguments: str) -> AsyncIterator[Store]:
    command = [sys.executable, str(SERVER), "--wal", wal_servers, "--take-over-after", str(TAKE_OVER_S), *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(READY_S):
            ready = (await process.stdout.readline()).decode()
        if not ready.startswith("kv ready port="):
            raise RuntimeError(f"the key-value store did not start: {ready!r}")
        yield Store(process, int(ready.split()[2].removeprefix("port=")))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
