"""What the admin client tells of consumer groups: values, ready for `dataclasses.asdict` and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.client.fetched import TopicPartition
from ottla.client.group_protocol import decode_assignment, decode_subscription
from ottla.wire.primitives import MalformedRequest

CLASSIC, CONSUMER = "classic", "consumer"
CONSUMER_PROTOCOL_TYPE = "consumer"
"""Of the classic groups whose members read topics. Others use groups for purposes of their own, as Connect does."""
DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupListing:
    name: str
    state: str
    """Kafka's words: Empty, Stable, PreparingRebalance, CompletingRebalance, Assigning, Reconciling."""
    type: str | None
    """`classic` or `consumer`, the protocol of KIP-848; None if the broker is too old to say."""
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: list[str]
    """What it subscribes to."""
    assigned: list[TopicPartition]
    epoch: int | None = None
    """The consumer protocol has one for each member."""
    topic_regex: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    name: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    """Who divides the partitions; empty if nobody does."""
    coordinator: int
    epoch: int | None = None
    """Rises with each new division; only the consumer protocol tells it."""
    members: list[GroupMember] = field(default_factory=list)

    def owners(self) -> dict[TopicPartition, GroupMember]:
        return {at: member for member in self.members for at in member.assigned}


class GroupOffset(NamedTuple):
    """A committed offset: the next record to be read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def classic_description(entry: Any, coordinator: int) -> GroupDescription:
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
    """What a member subscribes to: clients write that, and brokers pass it on. Empty if it cannot be read."""
    try:
        return sorted(decode_subscription(metadata).topics) if metadata else []
    except MalformedRequest:
        return []


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    try:
        return sorted(decode_assignment(assignment))
    except MalformedRequest:
        return []
