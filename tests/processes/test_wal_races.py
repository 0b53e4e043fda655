"""Conditional appends, fences and tails of many clients at once, while leaders die: linearizable, by a model.

What each client saw is recorded with its time; at the end the history is checked against the log (`wal_history`).
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from ottla.testing.cluster_processes import ClusterProcesses
from ottla.wal import (
    FencedError,
    Log,
    LogSettings,
    TooLargeError,
    UnavailableError,
    UnexpectedEndError,
    UnknownOutcomeError,
)
from ottla.wal.values import Limits
from tests.processes.wal_history import NEVER, Operation, violations

LIMITS = Limits(patience_s=90)
CLIENTS = 6


class Race:
    def __init__(self, servers: str, chance: random.Random) -> None:
        self.servers = servers
        self.chance = chance
        self.history: list[Operation] = []
        self.is_ending = False

    # -- what clients do ----------------------------------------------------------------------------------------

    async def compete(self, name: str) -> None:
        """Without fences: whoever knows the end may append there."""
        log = await Log.open(self.servers, "race", limits=LIMITS)
        count = 0
        while not self.is_ending:
            end = await self.tail(log, name)
            burst = [
                self.append(log, name, b"%s %d" % (name.encode(), count + place), end + place, 0)
                for place in range(self.chance.randrange(1, 4))
            ]
            count += len(burst)
            await asyncio.gather(*burst)
            await asyncio.sleep(self.chance.uniform(0, 0.05))
        await log.close()

    async def rule(self, name: str) -> None:
        """Takes the log, writes until another one takes it, and takes it again."""
        count = 0
        while not self.is_ending:
            fence = Operation("fence", name, time.monotonic())
            self.history.append(fence)
            log = await Log.open(self.servers, "ruled", fence=True, limits=LIMITS)
            assert log.epoch is not None
            assert log.fence_offset is not None
            fence.ended_s, fence.outcome = time.monotonic(), "done"
            fence.epoch, fence.offset = log.epoch, log.fence_offset
            end: int | None = log.fence_offset + 1
            for _ in range(self.chance.randrange(1, 30)):
                expected = end if self.chance.random() < 0.5 else None
                value = b"%s %d" % (name.encode(), count)
                count += 1
                operation = await self.append(log, name, value, expected, log.epoch)
                if operation.outcome == "fenced":
                    break
                assert operation.outcome != "unexpected end", "nobody else writes behind our fence"
                end = operation.offset + 1 if operation.outcome == "done" else None
                await asyncio.sleep(self.chance.uniform(0, 0.02))
            await log.close()

    async def append(self, log: Log, name: str, value: bytes, expected: int | None, epoch: int) -> Operation:
        operation = Operation("append", name, time.monotonic(), value=value, expected_end=expected, epoch=epoch)
        self.history.append(operation)
        try:
            operation.offset = await log.append(value, expected_end=expected)
            operation.outcome = "done"
        except UnexpectedEndError as error:
            operation.outcome, operation.offset = "unexpected end", error.end
        except FencedError:
            operation.outcome = "fenced"
        except (UnavailableError, TooLargeError):
            operation.outcome = "refused"
        except UnknownOutcomeError:
            return operation
        operation.ended_s = time.monotonic()
        return operation

    async def tail(self, log: Log, name: str) -> int:
        operation = Operation("tail", name, time.monotonic())
        self.history.append(operation)
        operation.offset = (await log.tail()).end_offset
        operation.ended_s, operation.outcome = time.monotonic(), "done"
        return operation.offset

    # -- the check ----------------------------------------------------------------------------------------------

    async def check(self, topic: str, *kinds: str) -> dict[str, int]:
        log = await Log.open(self.servers, topic, limits=LIMITS)
        entries = [(entry.offset, entry.data) async for entry in log.read(0)]
        await log.close()
        history = [each for each in self.history if each.writer.startswith(kinds)]
        found = violations(history, entries)
        assert not found, "\n".join(found[:20])
        counts: dict[str, int] = {}
        for each in history:
            counts[f"{each.kind} {each.outcome}"] = counts.get(f"{each.kind} {each.outcome}", 0) + 1
        return counts


async def test_races_are_linearizable(tmp_path: Path, seed: int) -> None:
    chance = random.Random(f"{seed} races")
    config = {"ottla.wal.port": "0", "broker.session.timeout.ms": "2000"}
    cluster = ClusterProcesses(tmp_path, config=config, ready_timeout_s=120)
    try:
        await asyncio.to_thread(cluster.start)
        race = Race(",".join(broker.wal_server for broker in cluster.brokers), chance)
        for topic in ("race", "ruled"):
            created = await Log.open(race.servers, topic, create=LogSettings(replicas=3, durability="cache"))
            await created.close()
        running = [asyncio.ensure_future(race.compete(f"competes-{number}")) for number in range(CLIENTS)]
        running += [asyncio.ensure_future(race.rule(f"rules-{number}")) for number in range(CLIENTS)]
        for _ in range(4):
            await asyncio.sleep(chance.uniform(1.0, 2.5))
            broker = chance.choice(cluster.brokers)
            broker.kill()
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            await asyncio.to_thread(broker.start)
        race.is_ending = True
        await asyncio.wait_for(asyncio.gather(*running), timeout=150)
        competed = await race.check("race", "competes")
        ruled = await race.check("ruled", "rules")
    finally:
        await asyncio.to_thread(cluster.kill)
    print(f" (competed: {competed}; ruled: {ruled})", end="")
    for counts, needed in ((competed, "append unexpected end"), (ruled, "append fenced"), (ruled, "fence done")):
        assert counts.get(needed, 0) > 0, f"nothing was tried: {counts}"
    assert any(each.ended_s < NEVER for each in race.history)


@pytest.mark.parametrize("durability", ["memory", "disk"])
async def test_one_of_many_conditional_appends_wins(tmp_path: Path, durability: str) -> None:
    cluster = ClusterProcesses(tmp_path, count=1, config={"ottla.wal.port": "0"}, ready_timeout_s=120)
    try:
        await asyncio.to_thread(cluster.start)
        servers = cluster.brokers[0].wal_server
        logs = [
            await Log.open(servers, "one", create=LogSettings(replicas=1, durability=durability)) for _ in range(16)
        ]
        for end in range(20):
            outcomes = await asyncio.gather(
                *(log.append(b"%d" % number, expected_end=end) for number, log in enumerate(logs)),
                return_exceptions=True,
            )
            assert sorted(type(each).__name__ for each in outcomes) == ["UnexpectedEndError"] * 15 + ["int"]
        assert (await logs[0].tail()).end_offset == 20
        for log in logs:
            await log.close()
    finally:
        await asyncio.to_thread(cluster.kill)
