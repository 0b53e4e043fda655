"""Waits for consumer groups: until every partition is assigned, or until everything is read.

The waits use the admin API, so they work for groups of every client and of both protocols.

    cluster.wait_for_assignment("billing", members=2)
    produce(...)
    cluster.wait_for_lag_zero("billing")

In an async test whose consumers run on the test's event loop, use `await cluster.async_wait_for_lag_zero("billing")`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ottla.client import Admin
from ottla.client.admin.group_descriptions import GroupDescription
from ottla.client.admin.group_lag import GroupLag, PartitionLag
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import ClientError, UnknownTopicError

TIMEOUT_S = 30.0
POLL_S = 0.02
STABLE = "Stable"
T = TypeVar("T")


class GroupWaits:
    """A mixin that adds the waits to a class with `bootstrap_servers`."""

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers."""
        raise NotImplementedError

    def wait_for_assignment(
        self, group: str, members: int | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> GroupDescription:
        """Blocks until the group's members have all partitions of their subscribed topics. Returns the assignment.

        Without `members`, at least one member is required; otherwise exactly that many. Raises TimeoutError, which says
        what is missing. This is the coordinator's view: members learn of it at their next poll.
        """
        return _elsewhere(assignment(self.bootstrap_servers, group, members, timeout_s=timeout_s))

    def wait_for_lag_zero(
        self, group: str, topics: Iterable[str] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> GroupLag:
        """Blocks until the group has committed everything in its partitions.

        These are the partitions that it committed or that a member has, and all partitions of `topics`. Raises
        TimeoutError, which says what is not read.
        """
        return _elsewhere(lag_zero(self.bootstrap_servers, group, topics, timeout_s=timeout_s))

    async def async_wait_for_assignment(
        self, group: str, members: int | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> GroupDescription:
        """The async twin of `wait_for_assignment`."""
        return await assignment(self.bootstrap_servers, group, members, timeout_s=timeout_s)

    async def async_wait_for_lag_zero(
        self, group: str, topics: Iterable[str] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> GroupLag:
        """The async twin of `wait_for_lag_zero`."""
        return await lag_zero(self.bootstrap_servers, group, topics, timeout_s=timeout_s)


async def assignment(
    bootstrap_servers: str, group: str, members: int | None = None, *, timeout_s: float = TIMEOUT_S
) -> GroupDescription:
    """Waits as `GroupWaits.wait_for_assignment` does."""

    async def look(admin: Admin) -> tuple[GroupDescription, str]:
        found = await admin.describe_group(group)
        return found, await _unassigned(admin, found, members)

    return await _until_nothing_missing(bootstrap_servers, group, look, timeout_s)


async def lag_zero(
    bootstrap_servers: str, group: str, topics: Iterable[str] | None = None, *, timeout_s: float = TIMEOUT_S
) -> GroupLag:
    """Waits as `GroupWaits.wait_for_lag_zero` does."""
    wanted = list(topics or ())

    async def look(admin: Admin) -> tuple[GroupLag, str]:
        await admin.describe_group(group)  # raises if the group does not exist
        found = (await admin.group_lags([group], in_seconds=False))[group]
        return found, await _unread(admin, found, wanted)

    return await _until_nothing_missing(bootstrap_servers, group, look, timeout_s)


async def _until_nothing_missing(
    bootstrap_servers: str, group: str, look: Callable[[Admin], Awaitable[tuple[T, str]]], timeout_s: float
) -> T:
    """Polls until nothing is missing or the time is up, at least once."""
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
        except ClientError as failure:  # in tests, brokers come and go, and groups may not exist yet
            missing = str(failure)
        if loop.time() >= deadline_s:
            raise TimeoutError(f'group "{group}", after {timeout_s:g} s: {missing}')
        await asyncio.sleep(POLL_S)


async def _unassigned(admin: Admin, group: GroupDescription, members: int | None) -> str:
    """Returns the reason why the assignment is incomplete, or an empty string."""
    if group.state != STABLE:
        return f"it is {group.state}"
    if members is not None and len(group.members) != members:
        return f"it has {_count(len(group.members), 'member')}, not {members}"
    owners = group.owners()
    wanted = await _partitions_of(admin, {topic for member in group.members for topic in member.topics})
    ownerless = sorted(wanted - set(owners))
    if ownerless:
        return f"no member owns {', '.join(map(str, ownerless))}"
    return "" if owners else "its members own no partitions"


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
    """Returns the partitions of those topics that exist."""
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
    """Runs a coroutine on its own event loop, so that a test may call it from inside another loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
