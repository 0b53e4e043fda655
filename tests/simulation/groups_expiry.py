"""Two groups without members, whose offsets have a retention of their own, as clients before Kafka 2.1 ask for it.

expiry          offsets with a short retention are removed in the end, those with a long one are not
"""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random

from ottla.machines.groups.replies import CommitReply, FetchOffsetsReply
from ottla.machines.groups.requests import CommitOffsets, FetchOffsets, OffsetToCommit
from ottla.protocol.model.errors import ErrorCode
from ottla.sim.world import SimWorld
from tests.simulation.groups_commits import Commits
from tests.simulation.groups_wire import CoordinatorConnection
from tests.simulation.violations import Violation

BRIEF, LASTING = "brief", "lasting"
RETENTION_MS = {BRIEF: 1000, LASTING: 3_600_000}


class ExpiringOffsets:
    """Commits offsets of one topic for both groups until `is_quiet`, then waits until those of the first have
    expired."""

    def __init__(self, world: SimWorld, servers: list[str], topic: str, partition_count: int, seed: int) -> None:
        self._world = world
        self._topic = topic
        self._count = partition_count
        self._rng = Random(f"{seed}/expiring offsets")
        self._asking = {name: CoordinatorConnection(servers, name, self._rng) for name in RETENTION_MS}
        self._kept = {index: Commits(f"{LASTING}, {topic}-{index}") for index in range(partition_count)}
        self._numbers = count(1)
        self.is_quiet = False
        self.is_over = False

    async def run(self) -> None:
        """Ends when the offsets with a short retention are gone and the others were read once more."""
        while not self.is_quiet:
            for name in RETENTION_MS:
                await self._commit(name)
            await self._check_kept()
            await asyncio.sleep(self._rng.choice((0.2, 1.0, 3.0)))
        is_gone = is_checked = False
        while not (is_gone and is_checked):
            await asyncio.sleep(0.5)
            is_gone = is_gone or await self._read(BRIEF) == {}
            is_checked = await self._check_kept()
        for connection in self._asking.values():
            connection.forget()

    async def _commit(self, name: str) -> None:
        index, number = self._rng.randrange(self._count), next(self._numbers)
        request = CommitOffsets(
            group=name,
            offsets=(OffsetToCommit(topic=self._topic, partition=index, offset=number),),
            retention_ms=RETENTION_MS[name],
        )
        commit = self._kept[index].sent(number, -1, self._world.now_s) if name == LASTING else None
        reply = await self._asking[name].ask(request)
        if reply is None or commit is None:
            return
        assert isinstance(reply, CommitReply)
        if reply.errors == (ErrorCode.none,):
            self._kept[index].taken(commit, self._world.now_s)
        elif reply.errors == (ErrorCode.unknown_topic_or_partition,):
            self._kept[index].refused(commit, self._world.now_s)
        else:
            raise Violation("expiry", f"{request}: {reply}")

    async def _read(self, name: str) -> dict[int, int] | None:
        """Returns the offsets of a group by partition, or None if there was no reply."""
        request = FetchOffsets(group=name, topics=((self._topic, tuple(range(self._count))),))
        reply = await self._asking[name].ask(request)
        if not isinstance(reply, FetchOffsetsReply) or reply.error is not ErrorCode.none:
            return None
        return {each.partition: each.value.offset for each in reply.offsets if each.value is not None}

    async def _check_kept(self) -> bool:
        """Checks that no offset with a long retention has expired. Returns whether a coordinator replied."""
        sent_s = self._world.now_s
        found = await self._read(LASTING)
        if found is not None:
            for index, commits in self._kept.items():
                commits.read(found.get(index), sent_s)
        return found is not None
