"""Results of the admin client about consumer groups: plain values, ready for `dataclasses.asdict` and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.client.consumer.types import TopicPartition
from ottla.client.groups.classic_formats import decode_assignment, decode_subscription
from ottla.protocol.wire.primitives import MalformedRequest

CLASSIC, CONSUMER = "classic", "consumer"
CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of classic groups whose members consume topics. Connect, for one, uses groups differently."""
DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One entry of a list of groups."""

    name: str
    state: str
    """Kafka's names: Empty, Stable, PreparingRebalance, CompletingRebalance, Assigning, Reconciling."""
    type: str | None
    """`classic` or `consumer` (KIP-848), or None if the broker is too old to tell."""
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group and its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: list[str]
    """The subscribed topics."""
    assigned: list[TopicPartition]
    epoch: int | None = None
    """The member epoch; only the consumer protocol has one."""
    topic_regex: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members."""

    name: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    """The assignor in use, or empty if there is none."""
    coordinator: int
    epoch: int | None = None
    """Increases with each new assignment. Only the consumer protocol reports it."""
    members: list[GroupMember] = field(default_factory=list)

    def owners(self) -> dict[TopicPartition, GroupMember]:
        """Returns the owner of each assigned partition."""
        return {at: member for member in self.members for at in member.assigned}


class GroupOffset(NamedTuple):
    """A committed offset, which is that of the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def classic_description(entry: Any, coordinator: int) -> GroupDescription:
    """Builds the description from a DescribeGroups reply."""
    is_consumer = entry.protocol_type == CONSUMER_PROTOCOL_TYPE
    return GroupDescription(
        name=entry.group_id,
        state=entry.group_state,
        type=CLASSIC,
        protocol_type=entry.protocol_type,
        assignor=entry.protocol_data,
        coordinator=coordinator,
        members=[
            GroupMember(
                member_id=each.member_id,
                instance_id=each.group_instance_id,
                client_id=each.client_id,
                host=each.client_host.lstrip("/"),
                topics=subscribed_topics(each.member_metadata) if is_consumer else [],
                assigned=assigned_partitions(each.member_assignment) if is_consumer else [],
            )
            for each in entry.members
        ],
    )


def consumer_description(entry: Any, coordinator: int) -> GroupDescription:
    """Builds the description from a ConsumerGroupDescribe reply."""
    return GroupDescription(
        name=entry.group_id,
        state=entry.group_state,
        type=CONSUMER,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        assignor=entry.assignor_name,
        coordinator=coordinator,
        epoch=int(entry.group_epoch),
        members=[
            GroupMember(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                host=each.client_host.lstrip("/"),
                topics=sorted(each.subscribed_topic_names),
                assigned=sorted(
                    TopicPartition(topic.topic_name, int(index))
                    for topic in each.assignment.topic_partitions
                    for index in topic.partitions
                ),
                epoch=int(each.member_epoch),
                topic_regex=each.subscribed_topic_regex or None,
                rack=each.rack_id,
            )
            for each in entry.members
        ],
    )


def subscribed_topics(metadata: bytes) -> list[str]:
    """Decodes a member's subscribed topics, which clients write and brokers pass on. Empty if it is not readable."""
    try:
        return sorted(decode_subscription(metadata).topics) if metadata else []
    except MalformedRequest:
        return []


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """Decodes a member's partitions. Empty if they are not readable."""
    try:
        return sorted(decode_assignment(assignment))
    except MalformedRequest:
        return []
