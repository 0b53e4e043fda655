"""A group of the classic protocol: its last generation, and the members joining the next one.

The members elect a leader, which assigns the partitions. The states:

    Empty                 no members; offsets may be kept
    PreparingRebalance    members join (JoinGroup waits) until all have joined or the timeout expires
    CompletingRebalance   a new generation: the leader knows its members, all wait for its assignment (SyncGroup)
    Stable                every member has its assignment

Each generation is written twice: when it begins, without a leader, and when it is assigned. A new coordinator therefore
knows the members of a generation that is not assigned yet, and never reuses its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ottla.machines.groups.consumer_protocol import subscribed_topics
from ottla.machines.groups.records import CONSUMER_PROTOCOL_TYPE, ClassicGeneration, ClassicMember
from ottla.machines.groups.replies import JoinedMember
from ottla.protocol.model.errors import ErrorCode


class ClassicState(StrEnum):
    """The states of a classic group; the values are the names that Kafka reports."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True, kw_only=True)
class Member:
    """A member of a classic group, with the requests that it waits for."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    join_ticket: Any = None
    sync_ticket: Any = None
    is_new: bool = False
    """The member waits for its first generation and therefore cannot send heartbeats."""

    def metadata(self, protocol: str | None) -> bytes:
        """Returns what the member sent for this protocol; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def is_joining(self) -> bool:
        """True while the member waits for the reply to JoinGroup."""
        return self.join_ticket is not None

    @property
    def may_be_silent(self) -> bool:
        """True while the member waits for others and need not send heartbeats. A new member has a longer timeout
        instead."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)


class ClassicGroup:
    """The state of one classic group, as the coordinator keeps it in memory."""

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.state = ClassicState.EMPTY
        self.since_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        """Member ids of static members by instance id."""
        self.pending: set[str] = set()
        """Member ids that were given out and have not been used to join yet."""
        self.unsynced: set[str] = set()
        """Members that have not sent SyncGroup in this generation."""
        self.is_initial = False
        """Preparing the first generation after the group was empty: waits for more members to join."""
        self.has_new_member = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self._supporters: Counter[str] = Counter()

    @classmethod
    def of(cls, name: str, found: ClassicGeneration) -> ClassicGroup:
        """Restores a group from its record."""
        group = cls(name, found.since_ms)
        group.generation = found.generation
        for member in found.members:
            group.add(_loaded(member, found.protocol), found.protocol_type)
        group.protocol_type = found.protocol_type or None
        group.protocol = found.protocol
        group.leader = found.leader if found.leader in group.members else group.leader
        group.state = ClassicState.STABLE if group.members else ClassicState.EMPTY
        return group

    def record(self, *, is_assigned: bool) -> ClassicGeneration:
        """Returns the record of this generation. Before it is assigned, members have their assignments of the last
        generation."""
        return ClassicGeneration(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader if is_assigned else None,
            self.since_ms,
            tuple(
                ClassicMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol),
                    member.assignment,
                )
                for member in self.members.values()
            ),
        )

    # -- members ---------------------------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str) -> None:
        """Adds a member. The first one becomes the leader and sets the protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        self.pending.discard(member.member_id)
        self.members[member.member_id] = member
        self._supporters.update(_names(member.protocols))
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Removes a member and returns it, or None. The oldest remaining member succeeds a leader."""
        self.pending.discard(member_id)
        self.unsynced.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._supporters.subtract(_names(member.protocols))
        if member.instance_id is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """Gives a static member that rejoined its new id. It keeps its place and, if it has it, the leadership."""
        member = self.members[old_id]
        self.members = {new_id if key == old_id else key: each for key, each in self.members.items()}
        member.member_id = new_id
        assert member.instance_id is not None, "only static members are replaced"
        self.instances[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        self.unsynced.discard(old_id)
        return member

    def update_protocols(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        """Replaces the protocols of a member and the counts of who supports which."""
        self._supporters.subtract(_names(member.protocols))
        member.protocols = protocols
        self._supporters.update(_names(protocols))

    def refusal(self, member_id: str, instance_id: str | None) -> ErrorCode | None:
        """Returns the error if this is not a member, else None."""
        if instance_id is not None:
            known = self.instances.get(instance_id)
            if known is None:
                return ErrorCode.unknown_member_id
            if known != member_id:
                return ErrorCode.fenced_instance_id
        return None if member_id in self.members else ErrorCode.unknown_member_id

    @property
    def is_bare(self) -> bool:
        """True if there are neither members nor reserved member ids."""
        return not self.members and not self.pending

    @property
    def joining_count(self) -> int:
        """The number of members that wait for the reply to JoinGroup."""
        return sum(member.is_joining for member in self.members.values())

    @property
    def have_all_joined(self) -> bool:
        """True if every member, and every reserved member id, has joined the next generation."""
        return not self.pending and all(member.is_joining for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- protocols -------------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Returns whether a member with these protocols may join."""
        if self.state is ClassicState.EMPTY or not self.members:
            return bool(protocol_type) and any(True for _ in names)
        return protocol_type == self.protocol_type and any(map(self._is_supported_by_all, names))

    def choose_protocol(self) -> str:
        """Chooses, among the protocols that all members support, the one preferred by most; ties go to the first one
        voted for."""
        votes = Counter(
            next(name for name in _names(member.protocols) if self._is_supported_by_all(name))
            for member in self.members.values()
        )
        return max(votes, key=votes.__getitem__)

    def _is_supported_by_all(self, name: str) -> bool:
        return self._supporters[name] == len(self.members)

    @property
    def uses_consumer_protocol(self) -> bool:
        """True if the members are consumers, so that their metadata can be parsed."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def subscribed(self) -> frozenset[str] | None:
        """Returns the subscribed topics. Returns None if they are unknown because the members are not consumers, or
        because their subscriptions cannot be read."""
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        found = [subscribed_topics(member.metadata(self.protocol)) for member in self.members.values()]
        known = [topics for topics in found if topics is not None]
        return frozenset().union(*known) if len(known) == len(found) else None

    # -- states ----------------------------------------------------------------------------------------------------

    def turn(self, state: ClassicState, now_ms: int) -> None:
        """Changes the state."""
        self.is_initial = state is ClassicState.PREPARING and self.state is ClassicState.EMPTY
        self.state = state
        self.since_ms = now_ms

    def elect_joined_leader(self) -> bool:
        """Elects a leader among the members that have joined: the old leader if possible. Returns whether
        there is one."""
        if self.leader is not None and self.members[self.leader].is_joining:
            return True
        joined = next((member.member_id for member in self.members.values() if member.is_joining), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def begin_generation(self, now_ms: int) -> None:
        """Starts the next generation; the group becomes empty if it has no members."""
        self.generation += 1
        self.unsynced.clear()
        if self.members:
            self.protocol = self.choose_protocol()
            self.turn(ClassicState.COMPLETING, now_ms)
        else:
            self.protocol = None
            self.turn(ClassicState.EMPTY, now_ms)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Returns the members as the leader gets them, with their metadata for the chosen protocol."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        )


def _names(protocols: Iterable[tuple[str, bytes]]) -> list[str]:
    """Returns the protocol names, each once, in order of preference."""
    return list(dict.fromkeys(name for name, _ in protocols))


def _loaded(member: ClassicMember, protocol: str | None) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
        protocols=((protocol or "", member.subscription),),
        assignment=member.assignment,
    )
