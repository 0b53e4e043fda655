"""ConsumerGroupDescribe (key 69), v0-1.

Behaviour: returns state, epochs and members of groups of the consumer protocol, with the current and the target
assignment of each member. A group that does not exist, or that uses the classic protocol, is GROUP_ID_NOT_FOUND.
Versions: v1 marks members that still speak the classic protocol.
Not implemented: nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import permits
from ottla.broker.api.authorized_operations import NOT_REQUESTED, authorized_operations
from ottla.broker.api.coordinator_calls import ask_permitted, by_topic
from ottla.machines.groups.records import Assignment
from ottla.machines.groups.replies import DescribeConsumerReply, DescribedConsumer
from ottla.machines.groups.requests import DescribeConsumerGroup
from ottla.protocol.model.acl import ResourceType
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1 import ConsumerGroupDescribeRequest

API = Api(69, "ConsumerGroupDescribe", (0, 1))

_CLASSIC, _CONSUMER = 0, 1
"""The types of members."""


async def handle(ctx: Context, request: ConsumerGroupDescribeRequest) -> object:
    """Describes groups of the consumer protocol, each with its own error."""
    asked = [(DescribeConsumerGroup(group=name), str(name)) for name in request.group_ids if name]
    outcomes = iter(await ask_permitted(ctx, rules.DESCRIBE_CONSUMER_GROUP, asked, DescribeConsumerReply))
    no_name = Refused(ErrorCode.invalid_group_id)
    include_operations = request.include_authorized_operations
    groups = [
        _described(ctx, name, next(outcomes) if name else no_name, include_operations) for name in request.group_ids
    ]
    return reply(ctx, groups=tuple(groups))


def _described(ctx: Context, name: str, outcome: DescribeConsumerReply | Refused, include_operations: bool) -> Any:
    message = None
    if isinstance(outcome, Refused):
        message = outcome.message
        outcome = DescribeConsumerReply(error=outcome.error, state="")
    elif outcome.error is ErrorCode.group_id_not_found:
        message = f"Group {name} does not exist or does not use the consumer protocol."
    elif not all(permits(ctx, rules.DESCRIBE_CONSUMER_GROUP_TOPIC, topic) for topic in _topics(ctx, outcome)):
        message = "The group has topics that the client is not authorized to describe."
        outcome = replace(outcome, error=ErrorCode.topic_authorization_failed, members=())
    has_operations = include_operations and outcome.error is ErrorCode.none
    return part(
        ctx,
        "DescribedGroup",
        error_code=outcome.error,
        error_message=message,
        group_id=name,
        group_state=outcome.state,
        group_epoch=outcome.epoch,
        assignment_epoch=outcome.target_epoch,
        assignor_name=outcome.assignor,
        members=tuple(_member(ctx, member) for member in outcome.members),
        authorized_operations=authorized_operations(ctx, ResourceType.GROUP, name) if has_operations else NOT_REQUESTED,
    )


def _topics(ctx: Context, outcome: DescribeConsumerReply) -> set[str]:
    """Returns the names of the topics whose partitions are assigned to members."""
    if ctx.broker.authorizer is None:
        return set()
    assigned = {place[0] for each in outcome.members for place in (*each.current.assigned, *each.target)}
    found = (ctx.broker.topics.by_id(topic_id) for topic_id in assigned)
    return {topic.name for topic in found if topic is not None}


def _member(ctx: Context, described: DescribedConsumer) -> Any:
    member = described.member
    return part(
        ctx,
        "Member",
        member_id=described.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=described.current.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_names,
        subscribed_topic_regex=member.subscribed_regex,
        assignment=_assignment(ctx, described.current.assigned),
        target_assignment=_assignment(ctx, described.target),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _assignment(ctx: Context, assignment: Assignment) -> Any:
    """Encodes an assignment, without partitions of topics that were deleted since."""
    topics = tuple(
        part(ctx, "TopicPartitions", topic_id=topic_id, topic_name=topic.name, partitions=indexes)
        for topic_id, indexes in by_topic(assignment)
        if (topic := ctx.broker.topics.by_id(topic_id)) is not None
    )
    return part(ctx, "Assignment", topic_partitions=topics)
