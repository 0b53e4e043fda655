"""Waits for consumer groups: until every partition has its member, and until everything is read.

They ask as any administrator would, so groups of all clients and of both protocols will do.

    cluster.wait_for_assignment("billing", members=2)
    produce(...)
    cluster.wait_for_lag_zero("billing")

In an async test whose consumers run on the test's own event loop, `await cluster.async_wait_for_lag_zero("billing")`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ottla.client import Admin
from ottla.client.errors import ClientError, UnknownTopicError
from ottla.client.fetched import TopicPartition
from ottla.client.group_admin_descriptions import GroupDescription
from ottla.client.group_lag import GroupLag, PartitionLag

TIMEOUT_S = 30.0
POLL_S = 0.02
STABLE = "Stable"
T = TypeVar("T")


class GroupWaits:
    """For whoever has brokers."""

    @property
    def bootstrap_servers(self) -> str:
        raise NotImplementedError

    def wait_for_assignment(
        self, group: str, members: int | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> GroupDescription:
        """Blocks until the group has so many members (at least one if it is not said) that share out all partitions of
        the topics that they subscribe to. Returns who has what. Raises TimeoutError, which says what is missing.

        That is the coordinator's view: members hear of it with their next poll.
        """
        return _elsewhere(assignment(self.bootstrap_servers, group, members, timeout_s=timeout_s))

    def wait_for_lag_zero(
        self, group: str, topics: Iterable[str] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> GroupLag:
        """Blocks until the group has committed all that is in its partitions: those that it committed or that a member
        has, and all of `topics`. Raises TimeoutError, which says what is not read."""
        return _elsewhere(lag_zero(self.bootstrap_servers, group, topics, timeout_s=timeout_s))

    async def async_wait_for_assignment(
        self, group: str, members: int | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> GroupDescription:
        return await assignment(self.bootstrap_servers, group, members, timeout_s=timeout_s)

    async def async_wait_for_lag_zero(
        self, group: str, topics: Iterable[str] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> GroupLag:
        return await lag_zero(self.bootstrap_servers, group, topics, timeout_s=timeout_s)


async def assignment(
    bootstrap_servers: str, group: str, members: int | None = None, *, timeout_s: float = TIMEOUT_S
) -> GroupDescription:
    async def look(admin: Admin) -> tuple[GroupDescription, str]:
        found = await admin.describe_group(group)
        return found, await _unassigned(admin, found, members)

    return await _until_nothing_missing(bootstrap_servers, group, look, timeout_s)


async def lag_zero(
    bootstrap_servers: str, group: str, topics: Iterable[str] | None = None, *, timeout_s: float = TIMEOUT_S
) -> GroupLag:
    wanted = list(topics or ())

    async def look(admin: Admin) -> tuple[GroupLag, str]:
        await admin.describe_group(group)  # raises if it is not there
        found = (await admin.group_lags([group], in_seconds=False))[group]
        return found, await _unread(admin, found, wanted)

    return await _until_nothing_missing(bootstrap_servers, group, look, timeout_s)


async def _until_nothing_missing(
    bootstrap_servers: str, group: str, look: Callable[[Admin], Awaitable[tuple[T, str]]], timeout_s: float
) -> T:
    """Looks at least once, however short the time is."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    request_timeout_ms = max(1000, int(timeout_s * 1000))
    while True:
        try:
            admin = Admin(bootstrap_servers, client_id="ottla-testing", request_timeout_ms=request_timeout_ms)
            async with admin:
                while True:
                    found, missing = await look(admin)
                    if not missing:
                        return found
                    if loop.time() >= deadline_s:
                        break
                    await asyncio.sleep(POLL_S)
        except ClientError as failure:  # brokers come and go in tests, and groups begin
            missing = str(failure)
        if loop.time() >= deadline_s:
            raise TimeoutError(f'group "{group}", after {timeout_s:g} s: {missing}')
        await asyncio.sleep(POLL_S)


async def _unassigned(admin: Admin, group: GroupDescription, members: int | None) -> str:
    """What stands in the way of an assignment; empty if nothing does."""
    if group.state != STABLE:
        return f"it is {group.state}"
    if members is not None and len(group.members) != members:
        return f"it has {_count(len(group.members), 'member')}, not {members}"
    owners = group.owners()
    wanted = await _partitions_of(admin, {topic for member in group.members for topic in member.topics})
    ownerless = sorted(wanted - set(owners))
    if ownerless:
        return f"nobody has {', '.join(map(str, ownerless))}"
    return "" if owners else "its members have nothing"


async def _unread(admin: Admin, lag: GroupLag, topics: list[str]) -> str:
    known = {each.at: each for each in lag.partitions}
    wanted = await _partitions_of(admin, topics)
    if not known and not wanted:
        return "it has no partitions yet"
    unread = [_unread_text(each) for each in lag.partitions if not _is_read(each)]
    unread += [f"{at}: nothing is committed" for at in sorted(wanted - set(known))]
    return "; ".join(unread)


def _is_read(partition: PartitionLag) -> bool:
    if partition.committed is None:
        return partition.end_offset is not None and partition.first_offset == partition.end_offset
    return partition.lag == 0


def _unread_text(partition: PartitionLag) -> str:
    if partition.problem is not None:
        return f"{partition.at}: {partition.problem}"
    if partition.committed is None:
        return f"{partition.at}: nothing is committed, the end is {partition.end_offset}"
    return f"{partition.at}: {partition.committed} is committed, the end is {partition.end_offset}"


async def _partitions_of(admin: Admin, topics: Iterable[str]) -> set[TopicPartition]:
    """Of those that exist."""
    found: set[TopicPartition] = set()
    for topic in sorted(set(topics)):
        try:
            described = await admin.describe_topic(topic)
        except UnknownTopicError:
            continue
        found |= {TopicPartition(topic, each.index) for each in described.partitions}
    return found


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _elsewhere(work: Coroutine[Any, Any, T]) -> T:
    """On an event loop of its own, so that a test may call it from inside of another one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
