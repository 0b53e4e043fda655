"""Members and administrators of groups that send frames of any version to a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from ottla.broker.api.api import ConnectionState
from ottla.machines.groups.consumer_protocol import Subscription, write_subscription
from ottla.machines.groups.coordinator import GroupCoordinator
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.wire.schema import request_type
from tests.support.handlers_caller import Caller, calling

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST = 8, 9, 10, 11, 12, 13, 14, 15, 16
DELETE, DELETE_OFFSETS, BEAT, DESCRIBE_CONSUMER = 42, 47, 68, 69

SESSION = timedelta(seconds=10)
REBALANCE = timedelta(seconds=30)
SUBSCRIPTION = write_subscription(Subscription(0, ("t",)))


@asynccontextmanager
async def grouping(**properties: str) -> AsyncIterator[Caller]:
    """Starts a broker whose groups do not wait for further members (no initial rebalance delay)."""
    properties = {"group_initial_rebalance_delay_ms": "0", "offsets_topic_num_partitions": "3", **properties}
    async with calling(**properties) as caller:
        caller.connection = ConnectionState("127.0.0.1:54321")
        await until_loaded(caller)
        yield caller


async def until_loaded(caller: Caller) -> None:
    """Waits until the coordinators are loaded, as a client waits that looks for its coordinator."""
    await ask(caller, FIND, 6, key_type=0, coordinator_keys=["g"])
    error = ErrorCode.coordinator_load_in_progress
    while error is ErrorCode.coordinator_load_in_progress:
        await asyncio.sleep(0)
        error = (await ask(caller, LIST, 5)).error_code


def machine_of(caller: Caller, group: str = "g") -> GroupCoordinator:
    """Returns the state machine of the group's coordinator, for state that no reply contains."""
    shard = caller.broker.groups._shard_of(group)
    assert not isinstance(shard, Refused), shard
    return shard.machine


async def ask(caller: Caller, key: int, version: int, /, **values: Any) -> Any:
    """Sends a request; fields that this version does not have are left out."""
    names = {field.name for field in fields(request_type(key, version))}
    return await caller.call(key, version, **{name: value for name, value in values.items() if name in names})


Protocols = Sequence[str | tuple[str, bytes]]
"""Protocol names, with metadata unless it is a subscription to topic t."""


def _protocol(each: str | tuple[str, bytes]) -> dict[str, Any]:
    name, metadata = (each, SUBSCRIPTION) if isinstance(each, str) else each
    return {"name": name, "metadata": metadata}


@dataclass
class ClassicMember:
    """A member of a classic group, with the last replies it received."""

    caller: Caller
    group: str = "g"
    version: int = 9
    """The version of JoinGroup."""
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    is_leader: bool = False

    async def join(self, *, protocols: Protocols = ("range",), **values: Any) -> Any:
        """Joins, and repeats the request with its member id if the coordinator requires it."""
        joined = await self.ask_to_join(protocols=protocols, **values)
        if joined.error_code is ErrorCode.member_id_required:
            self.member_id = joined.member_id
            joined = await self.ask_to_join(protocols=protocols, **values)
        if joined.error_code is ErrorCode.none:
            self.member_id, self.generation = joined.member_id, joined.generation_id
            self.is_leader = joined.leader == joined.member_id
        return joined

    async def ask_to_join(self, *, protocols: Protocols = ("range",), **values: Any) -> Any:
        request: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout": SESSION,
            "rebalance_timeout": REBALANCE,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocols": [_protocol(each) for each in protocols],
            "reason": "because",
        }
        return await ask(self.caller, JOIN, self.version, **{**request, **values})

    async def sync(self, assignments: dict[str, bytes] | None = None, *, version: int = 5, **values: Any) -> Any:
        request: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [
                {"member_id": member_id, "assignment": assignment}
                for member_id, assignment in (assignments or {}).items()
            ],
        }
        return await ask(self.caller, SYNC, version, **{**request, **values})

    async def heartbeat(self, *, version: int = 4, **values: Any) -> ErrorCode:
        request: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }
        reply = await ask(self.caller, HEARTBEAT, version, **{**request, **values})
        return ErrorCode(reply.error_code)

    async def until_rebalance(self) -> None:
        """Sends heartbeats until the coordinator reports a rebalance."""
        while await self.heartbeat() is not ErrorCode.rebalance_in_progress:  # noqa: ASYNC110 - polls, as a member does
            await asyncio.sleep(0.001)

    async def enter(self) -> None:
        """Joins an empty group and assigns the partitions to itself."""
        joined = await self.join()
        assert joined.error_code is ErrorCode.none, joined
        synced = await self.sync({self.member_id: b"all"})
        assert synced.error_code is ErrorCode.none, synced


async def commit(
    caller: Caller, *, group: str = "g", version: int = 9, offsets: dict[tuple[Any, int], int], **values: Any
) -> dict[tuple[Any, int], ErrorCode]:
    """Commits offsets for topics by name, or by id from version 10 on. Returns the errors by partition."""
    name = "topic_id" if version >= 10 else "name"
    topics: dict[Any, list[dict[str, Any]]] = {}
    for (topic, index), offset in offsets.items():
        partition = {"partition_index": index, "committed_offset": offset, "committed_metadata": f"at {offset}"}
        if version >= 6:
            partition["committed_leader_epoch"] = 3
        topics.setdefault(topic, []).append(partition)
    request: dict[str, Any] = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": timedelta(milliseconds=-1),
        "topics": [{name: topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
    reply = await ask(caller, COMMIT, version, **{**request, **values})
    return {
        (getattr(topic, name), partition.partition_index): partition.error_code
        for topic in reply.topics
        for partition in topic.partitions
    }


async def fetch(
    caller: Caller,
    *,
    group: str = "g",
    version: int = 9,
    topics: dict[Any, list[int]] | None,
    **values: Any,
) -> Any:
    """Returns the group's part of the reply, which is the whole reply up to version 7."""
    name = "topic_id" if version >= 10 else "name"
    asked = None if topics is None else [{name: key, "partition_indexes": indexes} for key, indexes in topics.items()]
    if version < 8:
        return await ask(caller, FETCH, version, group_id=group, topics=asked, require_stable=True, **values)
    of_group: dict[str, Any] = {"group_id": group, "topics": asked}
    if version >= 9:
        of_group |= {"member_id": None, "member_epoch": -1, **values}
    reply = await ask(caller, FETCH, version, groups=[of_group], require_stable=True)
    (found,) = reply.groups
    return found


def offsets_of(found: Any, version: int = 9) -> dict[tuple[Any, int], int]:
    name = "topic_id" if version >= 10 else "name"
    return {
        (getattr(topic, name), partition.partition_index): partition.committed_offset
        for topic in found.topics
        for partition in topic.partitions
    }
