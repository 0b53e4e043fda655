"""Resolves the partition that a call names and its leader, and maps errors to those of the append stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.machines.writers.rules import Fenced, Refusal, UnexpectedEnd
from ottla.protocol.model.acl import CLUSTER_NAME, Operation, ResourceType
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.principals import ANONYMOUS
from ottla.protocol.wire.wal_append import Code, WalFailure
from ottla.protocol.wire.wal_calls import LogName

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.endpoints import Node
    from ottla.broker.partition.partition import Partition

_CODES = {
    ErrorCode.not_leader_or_follower: Code.NOT_LEADER,
    ErrorCode.unknown_topic_or_partition: Code.NOT_FOUND,
    ErrorCode.unknown_topic_id: Code.NOT_FOUND,
    ErrorCode.message_too_large: Code.TOO_LARGE,
    ErrorCode.not_enough_replicas: Code.UNAVAILABLE,
    ErrorCode.not_enough_replicas_after_append: Code.UNAVAILABLE,
    ErrorCode.kafka_storage_error: Code.UNAVAILABLE,
    ErrorCode.request_timed_out: Code.UNAVAILABLE,
    ErrorCode.leader_not_available: Code.UNAVAILABLE,
    ErrorCode.offset_not_available: Code.UNAVAILABLE,
    ErrorCode.unknown_server_error: Code.UNAVAILABLE,
}
_PASSING = frozenset({Code.NOT_LEADER, Code.UNAVAILABLE, Code.NOT_FOUND})
"""Failures for which a retry, here or elsewhere, may succeed: they say nothing about an individual record."""


class Logs:
    """The partitions of one broker, as calls name them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        authorizer = broker.authorizer
        self._acls = None if authorizer is None else authorizer.session(ANONYMOUS, "")

    def refusal(self, topic_name: str, operation: Operation) -> WalFailure | None:
        """Returns the failure of a call without the permission; None if it has it. The append stream does not
        authenticate its clients, so all of them are anonymous."""
        if self._acls is None or self._acls.allows(operation, ResourceType.TOPIC, topic_name):
            return None
        return WalFailure(Code.INVALID, f"{ANONYMOUS} has no permission to {operation.name} the topic {topic_name!r}")

    def refused_creation(self, topic_name: str) -> WalFailure | None:
        """Returns the failure of a call that must not create a topic; None if it may."""
        if self._acls is not None and self._acls.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
            return None
        return self.refusal(topic_name, Operation.CREATE)

    def led(self, log: LogName, operation: Operation) -> Partition | WalFailure:
        """Returns the partition if this broker leads it and the call may perform the operation, else the failure."""
        self.broker.metadata.check_lease()
        refused = self.refusal(log.topic, operation)
        if refused is not None:
            return refused
        topic = self.broker.topics.get(log.topic)
        partition = topic.partition(log.partition) if topic is not None else None
        if topic is None or not topic.has(log.partition):
            return WalFailure(Code.NOT_FOUND, f"there is no log {log.topic}, partition {log.partition}")
        if partition is None or not partition.is_led_here:
            return self.not_led(log)
        return partition

    def not_led(self, log: LogName) -> WalFailure:
        """Returns the NOT_LEADER failure, which names the leader if it is known."""
        leader = self.leader_of(log)
        where = f"{leader} does" if leader else "its leader is unknown"
        return WalFailure(Code.NOT_LEADER, f"this broker does not lead {log.topic}-{log.partition}: {where}", leader)

    def leader_of(self, log: LogName) -> str:
        """Returns the address of the leader's append stream; empty if there is no leader or it has no append stream."""
        topic = self.broker.topics.get(log.topic)
        layouts = topic.layouts if topic is not None else ()
        leader = next((each.leader for each in layouts if each.partition == log.partition), -1)
        return next((address(node) for node in self.broker.metadata.nodes() if node.id == leader and node.wal_port), "")

    def servers(self) -> list[str]:
        """Returns the addresses of all append streams in the cluster."""
        return [address(node) for node in self.broker.metadata.nodes() if node.wal_port]

    def failure(self, log: LogName, error: ErrorCode | Refused) -> WalFailure:
        """Converts a Kafka error to a failure of the append stream."""
        refused = Refused(error) if isinstance(error, ErrorCode) else error
        code = _CODES.get(refused.error, Code.INVALID)
        if code is Code.NOT_LEADER:
            return self.not_led(log)
        return WalFailure(code, refused.message or refused.error.name)


def address(node: Node) -> str:
    """Returns host:port of a node's append stream."""
    host = f"[{node.host}]" if ":" in node.host else node.host
    return f"{host}:{node.wal_port}"


def is_passing(failure: WalFailure) -> bool:
    """Returns whether a retry may succeed."""
    return failure.code in _PASSING


def refusal_failure(refusal: Refusal) -> WalFailure:
    """Converts a rejection by the writer rules to a failure."""
    if isinstance(refusal, Fenced):
        why = f"a writer with epoch {refusal.epoch} has taken this log"
        return WalFailure(Code.FENCED, why, epoch=refusal.epoch)
    if isinstance(refusal, UnexpectedEnd):
        why = f"the log ends at {refusal.end_offset}"
        return WalFailure(Code.UNEXPECTED_END, why, offset=refusal.end_offset)
    return WalFailure(Code.UNKNOWN_WRITER, "the log does not know this writer's epoch: fence it again")
