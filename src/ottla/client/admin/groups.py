"""Administration of consumer groups: list, describe, delete, and compute lag."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from ottla.client.admin.calls import check
from ottla.client.admin.group_calls import MOVING, Answer, group_text
from ottla.client.admin.group_descriptions import (
    DEAD,
    GroupDescription,
    GroupListing,
    classic_description,
    consumer_description,
)
from ottla.client.admin.group_lag import GroupLag, Unread, group_lag_of, timestamps_at
from ottla.client.admin.group_offsets import GroupOffsetAdmin
from ottla.client.consumer.types import READ_COMMITTED
from ottla.client.errors import (
    BrokerRefusedError,
    ClientError,
    ConnectionLostError,
    RequestTimedOutError,
    UnsupportedByBrokerError,
    refused,
)
from ottla.client.metadata import PASSING_FAILURES
from ottla.net.apis import CONSUMER_GROUP_DESCRIBE, DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS, call
from ottla.net.connection import Connection
from ottla.protocol.model.errors import ErrorCode

TYPES_FROM = 5
"""The first version of ListGroups with group types."""
_NOT_THIS_TYPE = frozenset({ErrorCode.group_id_not_found, ErrorCode.unsupported_version})


class GroupAdmin(GroupOffsetAdmin):
    """The group calls of the admin client."""

    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """Lists the groups of every broker by name, optionally only those in some states or of some types."""
        body = {"states_filter": list(states), "types_filter": list(types)}
        found: dict[str, GroupListing] = {}

        async def attempt() -> ClientError | None:
            """Asks all brokers again: if one goes away meanwhile, its groups move to others."""
            found.clear()
            try:
                await self._metadata.refresh()
                for node_id in sorted(self._metadata.view.nodes):
                    found.update((each.name, each) for each in await self._list_groups_of(node_id, body))
            except (*PASSING_FAILURES, BrokerRefusedError) as failure:
                if isinstance(failure, BrokerRefusedError) and failure.error not in MOVING:
                    raise
                return failure
            return None

        await self._until_complete(attempt)
        return sorted(found.values(), key=lambda each: each.name)

    async def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        """Returns members and assignments of groups of either protocol. Groups that do not exist are left out."""
        named = list(groups)
        found: dict[str, GroupDescription] = {}
        for name, answer in (await self._ask_coordinators(named, _describe_consumer_groups)).items():
            if answer.error not in _NOT_THIS_TYPE:
                found[name] = consumer_description(answer.checked(name), answer.coordinator)
        others = [name for name in named if name not in found]
        for name, answer in (await self._ask_coordinators(others, _describe_classic_groups)).items():
            if answer.error is not ErrorCode.group_id_not_found and answer.checked(name).group_state != DEAD:
                found[name] = classic_description(answer.entry, answer.coordinator)
        return {name: found[name] for name in named if name in found}

    async def describe_group(self, group: str) -> GroupDescription:
        """Describes one group. Raises UnknownGroupError if it does not exist."""
        found = await self.describe_groups([group])
        if group not in found:
            raise refused(ErrorCode.group_id_not_found, group_text(group))
        return found[group]

    async def delete_groups(self, groups: Iterable[str]) -> dict[str, BrokerRefusedError]:
        """Deletes groups with all their offsets. Returns the refusals by group; a group with members is refused."""
        may_be_gone: set[str] = set()

        async def question(connection: Connection, part: list[str]) -> dict[str, Answer]:
            try:
                reply = await call(connection, DELETE_GROUPS, {"groups_names": part}, what="deleting groups")
            except (ConnectionLostError, RequestTimedOutError):
                may_be_gone.update(part)
                raise
            return {each.group_id: Answer(each.error_code, each) for each in reply.results}

        failures: dict[str, BrokerRefusedError] = {}
        for name, answer in (await self._ask_coordinators(groups, question)).items():
            is_gone = answer.error is ErrorCode.group_id_not_found and name in may_be_gone
            if answer.error is not ErrorCode.none and not is_gone:
                failures[name] = refused(answer.error, group_text(name))
        return failures

    async def _list_groups_of(self, node_id: int, body: Mapping[str, list[str]]) -> list[GroupListing]:
        connection = await self._brokers.connection(node_id)
        version = connection.version_for(LIST_GROUPS.key, LIST_GROUPS.versions, LIST_GROUPS.name)
        if body["types_filter"] and version < TYPES_FROM:
            raise UnsupportedByBrokerError(f"the broker at {connection.address} does not support group types")
        reply = await call(connection, LIST_GROUPS, body, what="listing the groups")
        check(reply, f"the groups of broker {node_id}")
        return [
            GroupListing(
                name=each.group_id,
                state=each.group_state,
                type=getattr(each, "group_type", "").lower() or None,
                protocol_type=each.protocol_type,
                coordinator=node_id,
            )
            for each in reply.groups
        ]

    async def group_lag(self, group: str, *, isolation_level: int = READ_COMMITTED) -> GroupLag:
        """Returns the group's lag in total and for each partition that it committed or that a member owns.

        `ottla.protocol.model.lag` defines lag. The end is the last stable offset; with READ_UNCOMMITTED it is the high
        watermark. Raises UnknownGroupError if the group does not exist.
        """
        found = await self.group_lags([group], isolation_level=isolation_level)
        if group not in found:
            raise refused(ErrorCode.group_id_not_found, group_text(group))
        return found[group]

    async def group_lags(
        self, groups: Iterable[str], *, in_seconds: bool = True, isolation_level: int = READ_COMMITTED
    ) -> dict[str, GroupLag]:
        """Returns the lags of several groups, without those that do not exist.

        `in_seconds` costs a fetch of the first unread batch of each partition with lag.
        """
        described = await self.describe_groups(groups)
        offsets = await self.all_group_offsets(described)
        places = {at for committed in offsets.values() for at in committed}
        places |= {at for each in described.values() for at in each.owners()}
        ends = await self.log_ends(places, isolation_level=isolation_level)

        def lags(times_ms: Mapping[Unread, int | None]) -> dict[str, GroupLag]:
            now_ms = time.time_ns() // 1_000_000
            return {name: group_lag_of(each, offsets[name], ends, times_ms, now_ms) for name, each in described.items()}

        without_times = lags({})
        if not in_seconds:
            return without_times
        unread = {unread for lag in without_times.values() for unread in lag.first_unread().items()}
        return lags(await timestamps_at(self._brokers, self._metadata, unread))


async def _describe_consumer_groups(connection: Connection, groups: list[str]) -> dict[str, Answer]:
    body = {"group_ids": groups, "include_authorized_operations": False}
    try:
        reply = await call(connection, CONSUMER_GROUP_DESCRIBE, body, what="describing groups")
    except UnsupportedByBrokerError:
        return dict.fromkeys(groups, Answer(ErrorCode.unsupported_version, None))
    return {each.group_id: Answer(each.error_code, each) for each in reply.groups}


async def _describe_classic_groups(connection: Connection, groups: list[str]) -> dict[str, Answer]:
    body = {"groups": groups, "include_authorized_operations": False}
    reply = await call(connection, DESCRIBE_GROUPS, body, what="describing groups")
    return {each.group_id: Answer(each.error_code, each) for each in reply.groups}
