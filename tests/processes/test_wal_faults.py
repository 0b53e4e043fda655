"""Streams into write-ahead logs while leaders are killed and paused, links are cut and clients start again.

No acknowledged record is missing, doubled or out of order; what a client was told is refused is nowhere. A handle that
is closed with records on their way does not know where they end: in a log that nobody fences they may come after what
its successor wrote, so there the order is that of each life of a writer; in a fenced log it is that of all its lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.testing.cluster_processes import ClusterProcesses
from ottla.testing.ledger import Ledger
from ottla.wal import FencedError, Log, LogSettings, UnknownOutcomeError, WalError
from ottla.wal.values import Limits
from tests.processes.link import Link

SESSION_MS = 2000
LIVES_MAX = 1000
LIMITS = Limits(patience_s=120)


class Stream:
    """One writer. Its records say who wrote them, in which life, and how many before."""

    def __init__(self, number: int, servers: str, topic: str, chance: random.Random, *, fences: bool) -> None:
        self.number = number
        self.topic = topic
        self.fences = fences
        self._servers = servers
        self._chance = chance
        self._sequence = 0
        self._life = 0
        """The next one begins when the last one left records on their way, unless the log is fenced."""
        self.acknowledged: list[tuple[int, int, int]] = []
        """Offset, who and sequence."""
        self.restarts = 0
        self.unknown = 0
        self.is_ending = False

    async def run(self) -> None:
        while not self.is_ending:
            log = await Log.open(self._servers, self.topic, fence=self.fences, limits=LIMITS)
            await self._write(log, self._chance.uniform(1.0, 6.0))
            self.restarts += 1

    async def _write(self, log: Log, for_s: float) -> None:
        """Then the client ends as in a crash, or in peace."""
        loop = asyncio.get_running_loop()
        until = loop.time() + for_s
        futures: list[asyncio.Future[int]] = []
        while loop.time() < until and not self.is_ending:
            futures += [self._append(log) for _ in range(self._chance.randrange(1, 20))]
            await asyncio.sleep(self._chance.uniform(0, 0.03))
            if self._chance.random() < 0.02:
                log._leaders.close()  # its link is cut under it
            await log.ready()
        if self.is_ending or self._chance.random() < 0.5:
            await log.flush()
        await log.close()
        unknown = 0
        for outcome in await asyncio.gather(*futures, return_exceptions=True):
            if isinstance(outcome, UnknownOutcomeError):
                unknown += 1
            elif isinstance(outcome, BaseException) and not isinstance(outcome, WalError):
                raise outcome
        self.unknown += unknown
        if unknown and not self.fences:
            self._life += 1

    def _append(self, log: Log) -> asyncio.Future[int]:
        sequence, self._sequence = self._sequence, self._sequence + 1
        who = self.number * LIVES_MAX + self._life
        future = log.append(b"%d %d" % (who, sequence))

        def note(done: asyncio.Future[int]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.acknowledged.append((done.result(), who, sequence))

        future.add_done_callback(note)
        return future


@contextlib.asynccontextmanager
async def brokers(directory: Path) -> AsyncIterator[tuple[ClusterProcesses, list[Link]]]:
    """Three, each with a link in front of its append stream."""
    links = [Link() for _ in range(3)]
    for link in links:
        await link.open()
    cluster = ClusterProcesses(
        directory, config={"ottla.wal.port": "0", "broker.session.timeout.ms": str(SESSION_MS)}, ready_timeout_s=120
    )
    for broker, link in zip(cluster.brokers, links, strict=True):
        broker._config["ottla.wal.advertised.port"] = str(link.port)
    try:
        await asyncio.to_thread(cluster.start)
        for broker, link in zip(cluster.brokers, links, strict=True):
            link.target = (broker.host, int(broker.wal_server.rpartition(":")[2]))
        yield cluster, links
    finally:
        await asyncio.to_thread(cluster.kill)
        for link in links:
            await link.close()


async def trouble(cluster: ClusterProcesses, links: list[Link], chance: random.Random, rounds: int) -> list[str]:
    done: list[str] = []
    for _ in range(rounds):
        await asyncio.sleep(chance.uniform(0.5, 1.5))
        number = chance.randrange(3)
        broker = cluster.brokers[number]
        what = chance.choice(["kill", "kill", "cut", "hang", "pause"])
        done.append(what)
        if what == "kill":
            broker.kill()
            await asyncio.sleep(chance.uniform(0.2, 2.0))
            await asyncio.to_thread(broker.start)
        elif what == "cut":
            for link in links:
                link.cut()
        elif what == "hang":
            links[number].hang(chance.uniform(0.5, 3.0))
        else:
            os.kill(broker.pid, signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(0.5, 1.5) * SESSION_MS / 1000)
            os.kill(broker.pid, signal.SIGCONT)
    return done


@pytest.mark.parametrize(("streams", "durability"), [(1, "disk"), (8, "cache"), (64, "disk")])
async def test_streams_keep_order_and_lose_nothing(tmp_path: Path, seed: int, streams: int, durability: str) -> None:
    chance = random.Random(f"{seed} {streams}")
    async with brokers(tmp_path) as (cluster, links):
        servers = ",".join(f"127.0.0.1:{link.port}" for link in links)
        shared, own = "shared", [f"own-{number}" for number in range(min(streams, 4))]
        for topic in [shared, *own]:
            created = await Log.open(servers, topic, create=LogSettings(replicas=3, durability=durability))
            await created.close()
        # Most share one log; the first few have one of their own, which they take anew at each start.
        writers = [
            Stream(number, servers, own[number], chance, fences=True)
            if number < len(own)
            else Stream(number, servers, shared, chance, fences=False)
            for number in range(streams)
        ]
        running = [asyncio.ensure_future(writer.run()) for writer in writers]
        done = await trouble(cluster, links, chance, rounds=4)
        for writer in writers:
            writer.is_ending = True
        await asyncio.wait_for(asyncio.gather(*running), timeout=150)
        unknown, restarts = sum(each.unknown for each in writers), sum(each.restarts for each in writers)
        acknowledged = 0
        for topic in [shared, *own]:
            acknowledged += await check(servers, topic, [each for each in writers if each.topic == topic])
    counts = f"{acknowledged} acknowledged, {unknown} unknown, {restarts} restarts"
    print(f" ({streams} streams: {counts}; {', '.join(done)})", end="")
    assert acknowledged > 0


async def check(servers: str, topic: str, writers: list[Stream]) -> int:
    ledger = Ledger()
    for writer in writers:
        for offset, who, sequence in writer.acknowledged:
            ledger.acknowledged(topic, offset, who, sequence)
    log = await Log.open(servers, topic, limits=LIMITS)
    found = []
    async for entry in log.read(0):
        who, sequence = map(int, entry.data.split())
        found.append((entry.offset, who, sequence))
    await log.close()
    findings = ledger.compare(topic, found)
    assert findings.ok, findings
    return ledger.count()


async def test_an_old_writer_fails_also_with_what_is_in_flight(tmp_path: Path) -> None:
    """Its leader hangs with the records on their way; another writer takes the log meanwhile."""
    async with brokers(tmp_path) as (_, links):
        servers = ",".join(f"127.0.0.1:{link.port}" for link in links)
        old = await Log.open(servers, "taken", create=LogSettings(replicas=3), fence=True, limits=LIMITS)
        first = await old.append(b"old 0")
        for link in links:
            link.hang(3.0, only=link.connections())
        late = [old.append(b"old %d" % number) for number in range(1, 200)]
        await asyncio.sleep(0.1)
        new = await Log.open(servers, "taken", fence=True, limits=LIMITS)
        assert new.epoch is not None
        assert old.epoch is not None
        assert new.epoch > old.epoch
        mine = await new.append(b"new")
        outcomes = await asyncio.gather(*late, return_exceptions=True)
        assert all(isinstance(each, FencedError) for each in outcomes), {type(each) for each in outcomes}
        with pytest.raises(FencedError):
            old.append(b"never")
        found = [(entry.offset, entry.data) async for entry in new.read(0)]
        assert found == [(first, b"old 0"), (mine, b"new")]
        await old.close()
        await new.close()


@pytest.mark.parametrize("fence", [False, True])
async def test_only_a_fence_holds_back_what_a_closed_handle_had_on_its_way(tmp_path: Path, fence: bool) -> None:
    """The network keeps it until after the next handle has written."""
    async with brokers(tmp_path) as (_, links):
        servers = ",".join(f"127.0.0.1:{link.port}" for link in links)
        old = await Log.open(servers, "late", create=LogSettings(replicas=3), fence=fence, limits=LIMITS)
        await old.append(b"before")
        for link in links:
            link.hang(3.0, only=link.connections())
        late = old.append(b"late")
        await asyncio.sleep(0.1)
        await old.close()
        with pytest.raises(UnknownOutcomeError):
            await late
        new = await Log.open(servers, "late", fence=fence, limits=LIMITS)
        await new.append(b"after")
        await asyncio.sleep(4.0)
        await new.append(b"at last")
        found = [entry.data async for entry in new.read(0)]
        assert found == ([b"before", b"after", b"at last"] if fence else [b"before", b"after", b"late", b"at last"])
        await new.close()
