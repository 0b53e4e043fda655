"""The group coordinator of one partition of `__consumer_offsets`: requests in, records and replies out (ADR 10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from ottla.machines.coordinators import Instant, Ticket
from ottla.machines.groups import (
    classic_join,
    classic_membership,
    classic_rebalance,
    consumer_heartbeat,
    consumer_members,
    encoding,
    listing,
    migration,
    offset_requests,
)
from ottla.machines.groups.classic_group import ClassicGroup
from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.consumer_rules import subscribed_regexes
from ottla.machines.groups.records import TopicFacts, Unknown, Unreadable
from ottla.machines.groups.requests import (
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DescribeConsumerGroup,
    DescribeGroup,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    Request,
    SyncGroup,
    TopicsChanged,
)
from ottla.machines.groups.shard import Shard, Step
from ottla.machines.groups.tables import Tables
from ottla.machines.groups.timers import TimerKind, TimerName

UNREADABLE_KEPT = 10
"""Maximum number of messages about unreadable records that are kept for the report."""

_HANDLERS: dict[type[Request], Callable[[Shard, Ticket, Any], None]] = {
    JoinGroup: classic_join.join_group,
    SyncGroup: classic_membership.sync_group,
    Heartbeat: classic_membership.heartbeat,
    LeaveGroup: classic_membership.leave_group,
    CommitOffsets: offset_requests.commit_offsets,
    FetchOffsets: offset_requests.fetch_offsets,
    DeleteOffsets: offset_requests.delete_offsets,
    DeleteGroup: listing.delete_group,
    ListGroups: listing.list_groups,
    DescribeGroup: listing.describe_group,
    DescribeConsumerGroup: listing.describe_consumer_group,
    ConsumerHeartbeat: consumer_heartbeat.heartbeat,
}


class GroupCoordinator:
    """The coordinator of one partition. Call `replay` for the whole log, then `loaded`, then send requests.

    After a failed append or an exception, drop the coordinator and load another one, because this one may know more
    than its log.
    """

    def __init__(self, config: GroupConfig) -> None:
        self.tables = Tables()
        self._shard = Shard(config, self.tables)
        self.skipped: Counter[int] = Counter()
        """Number of records of unknown kinds, by kind."""
        self.unreadable: list[str] = []

    # -- loading ---------------------------------------------------------------------------------------------------

    def replay(self, key: bytes | None, value: bytes | None, producer_id: int | None = None) -> None:
        """Applies one record of the log. Call it for every record, from the beginning of the log. `producer_id` is set
        if the record is part of a transaction."""
        record = Unreadable("a record without a key") if key is None else encoding.decode(key, value)
        if isinstance(record, Unknown):
            self.skipped[record.key_version] += 1
        elif isinstance(record, Unreadable):
            if len(self.unreadable) < UNREADABLE_KEPT:
                self.unreadable.append(record.why)
        else:
            self.tables.apply(record, producer_id)

    def replay_marker(self, producer_id: int, *, is_committed: bool) -> None:
        """Applies the end of a transaction, found in the log."""
        self.tables.offsets.complete(producer_id, is_committed=is_committed)

    def loaded(self, topics: TopicsChanged, now: Instant) -> Step:
        """Finishes loading. All members in the log are assumed to be alive: each gets a whole session to show up."""
        shard = self._shard
        shard.begin(now)
        for name, generation in sorted(self.tables.classic.items()):
            group = shard.classic[name] = ClassicGroup.of(name, generation)
            for member in group.members.values():
                classic_rebalance.keep_session(shard, group, member)
            is_unassigned = generation.leader is None
            if group.members and (is_unassigned or len(group.members) > shard.config.size_max):
                classic_rebalance.prepare(shard, group)
        consumer_heartbeat.on_loaded(shard)
        shard.start_timer(TimerKind.RETENTION, "", shard.config.offsets_retention_check_interval_ms)
        self._see_topics(topics)
        return shard.end()

    # -- running ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of tickets that have no reply yet."""
        return self._shard.waiting

    def handle(self, ticket: Ticket, request: Request, now: Instant) -> Step:
        """Handles one request. The reply may be part of this step or of a later one."""
        self._shard.begin(now)
        self._shard.waiting += 1
        _HANDLERS[type(request)](self._shard, ticket, request)
        return self._shard.end()

    def tick(self, now: Instant) -> Step:
        """Runs the timers that are due."""
        self._shard.begin(now)
        while (name := self._shard.timers.pop_due(now.elapsed_ms)) is not None:
            self._on_timeout(name)
        return self._shard.end()

    def topics_changed(self, topics: TopicsChanged, now: Instant) -> Step:
        """Takes a new set of topics, which may start new group epochs."""
        self._shard.begin(now)
        self._see_topics(topics)
        return self._shard.end()

    def regexes(self) -> set[str]:
        """Returns the regular expressions in use. `TopicsChanged` lists the topics that each matches."""
        return {regex for group in self.tables.consumer.values() for regex in subscribed_regexes(group)}

    @property
    def has_unresolved_regexes(self) -> bool:
        """True if a subscribed regular expression still has to be matched with the topic names."""
        return bool(self._shard.unresolved)

    def unresolved_regexes(self) -> set[str]:
        """Returns the regular expressions that `regexes_resolved` should resolve soon, because members wait
        for them."""
        groups = (self.tables.consumer.get(name) for name in self._shard.unresolved)
        return {regex for group in groups if group is not None for regex in subscribed_regexes(group)}

    def regexes_resolved(self, regexes: dict[str, tuple[str, ...]], now: Instant) -> Step:
        """Takes the topics that each expression matches. Members get them with their next heartbeats."""
        self._shard.begin(now)
        consumer_members.on_regexes_resolved(self._shard, regexes)
        return self._shard.end()

    def states(self) -> list[str]:
        """Returns the state of each group."""
        return listing.states(self._shard)

    def complete_transaction(self, producer_id: int, *, is_committed: bool, now: Instant) -> Step:
        """Completes a transaction whose marker is appended with this step: its offsets take effect, or are
        discarded."""
        self._shard.begin(now)
        self.replay_marker(producer_id, is_committed=is_committed)
        return self._shard.end()

    def _see_topics(self, topics: TopicsChanged) -> None:
        shard = self._shard
        shard.topics = {name: TopicFacts(*facts) for name, facts in topics.topics.items()}
        shard.topic_names = {facts.id: name for name, facts in shard.topics.items()}
        offset_requests.remove_of_topics(shard, topics.deleted)
        consumer_members.on_topics_changed(shard, topics.regexes)

    def _on_timeout(self, name: TimerName) -> None:
        shard = self._shard
        if name.kind is not TimerKind.RETENTION and name.group in self.tables.consumer:
            self._on_consumer_timeout(name)
            return
        match name.kind:
            case TimerKind.SESSION:
                classic_rebalance.on_session_timeout(shard, name.group, name.member_id)
            case TimerKind.JOIN:
                classic_rebalance.on_join_timeout(shard, name.group)
            case TimerKind.SYNC:
                classic_rebalance.on_sync_timeout(shard, name.group)
            case TimerKind.RETENTION:
                listing.clean_up(shard)
                shard.start_timer(TimerKind.RETENTION, "", shard.config.offsets_retention_check_interval_ms)

    def _on_consumer_timeout(self, name: TimerName) -> None:
        if name.kind is TimerKind.REVOCATION:
            consumer_heartbeat.on_revocation_timeout(self._shard, name.group, name.member_id)
        elif name.member_id in self.tables.consumer[name.group].members:
            migration.fence_member(self._shard, name.group, name.member_id)
