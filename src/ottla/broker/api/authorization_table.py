"""The permissions that each API needs: the one table that the handlers, docs/reference/authorization.md and the tests
use.

A handler asks for a rule by name (`ottla.broker.api.authorization.permits`). The rules are Kafka's: what needs a
permission, and with which error it is refused.

python -m ottla.broker.api.authorization_table > docs/reference/authorization.md
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.protocol.model.acl import Operation, ResourceType
from ottla.protocol.model.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """A permission that an API needs."""

    api_key: int
    api: str
    resource: ResourceType
    operation: Operation
    error: ErrorCode | None
    """The error of a request, or of a part of it, without the permission. None: the part is left out of the reply."""
    purpose: str


RULES: list[AuthorizationRule] = []
"""All rules, in the order of the keys of their APIs."""

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
_READ, _WRITE, _CREATE, _DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
_ALTER, _DESCRIBE, _CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS

_ERRORS = {
    _TOPIC: ErrorCode.topic_authorization_failed,
    _GROUP: ErrorCode.group_authorization_failed,
    _CLUSTER: ErrorCode.cluster_authorization_failed,
    _TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
_OF_RESOURCE = ErrorCode.none
"""Stands for the error of the resource type."""


def _rule(
    key: int,
    api: str,
    operation: Operation,
    resource: ResourceType,
    purpose: str,
    error: ErrorCode | None = _OF_RESOURCE,
) -> AuthorizationRule:
    error = _ERRORS[resource] if error is _OF_RESOURCE else error
    rule = AuthorizationRule(key, api, resource, operation, error, purpose)
    RULES.append(rule)
    return rule


PRODUCE = _rule(0, "Produce", _WRITE, _TOPIC, "each topic")
PRODUCE_IN_TRANSACTION = _rule(0, "Produce", _WRITE, _TRANSACTIONAL_ID, "a request with transactional batches")
FETCH = _rule(1, "Fetch", _READ, _TOPIC, "each topic")
FETCH_AS_FOLLOWER = _rule(
    1,
    "Fetch",
    _CLUSTER_ACTION,
    _CLUSTER,
    "a request of a follower",
    ErrorCode.topic_authorization_failed,
)
LIST_OFFSETS = _rule(2, "ListOffsets", _DESCRIBE, _TOPIC, "each topic")
METADATA = _rule(3, "Metadata", _DESCRIBE, _TOPIC, "each named topic")
METADATA_OF_ALL = _rule(3, "Metadata", _DESCRIBE, _TOPIC, "each topic, if all topics are requested", None)
METADATA_CREATE_ANY = _rule(3, "Metadata", _CREATE, _CLUSTER, "auto-creation of any topic", None)
METADATA_CREATE = _rule(3, "Metadata", _CREATE, _TOPIC, "auto-creation of this topic")
METADATA_CLUSTER_OPERATIONS = _rule(3, "Metadata", _DESCRIBE, _CLUSTER, "the cluster's authorized operations", None)
OFFSET_COMMIT = _rule(8, "OffsetCommit", _READ, _GROUP, "the group")
OFFSET_COMMIT_TOPIC = _rule(8, "OffsetCommit", _READ, _TOPIC, "each topic")
OFFSET_FETCH = _rule(9, "OffsetFetch", _DESCRIBE, _GROUP, "each group")
OFFSET_FETCH_TOPIC = _rule(9, "OffsetFetch", _DESCRIBE, _TOPIC, "each named topic")
OFFSET_FETCH_OF_ALL = _rule(9, "OffsetFetch", _DESCRIBE, _TOPIC, "each topic, if all topics are requested", None)
FIND_GROUP_COORDINATOR = _rule(10, "FindCoordinator", _DESCRIBE, _GROUP, "each group")
FIND_TRANSACTION_COORDINATOR = _rule(10, "FindCoordinator", _DESCRIBE, _TRANSACTIONAL_ID, "each transactional id")
JOIN_GROUP = _rule(11, "JoinGroup", _READ, _GROUP, "the group")
HEARTBEAT = _rule(12, "Heartbeat", _READ, _GROUP, "the group")
LEAVE_GROUP = _rule(13, "LeaveGroup", _READ, _GROUP, "the group")
SYNC_GROUP = _rule(14, "SyncGroup", _READ, _GROUP, "the group")
DESCRIBE_GROUPS = _rule(15, "DescribeGroups", _DESCRIBE, _GROUP, "each group")
LIST_ALL_GROUPS = _rule(16, "ListGroups", _DESCRIBE, _CLUSTER, "all groups", None)
LIST_GROUPS = _rule(16, "ListGroups", _DESCRIBE, _GROUP, "each group", None)
CREATE_ANY_TOPIC = _rule(19, "CreateTopics", _CREATE, _CLUSTER, "any topic", None)
CREATE_TOPIC = _rule(19, "CreateTopics", _CREATE, _TOPIC, "each topic")
CREATE_TOPIC_CONFIGS = _rule(19, "CreateTopics", _DESCRIBE_CONFIGS, _TOPIC, "the topic's configuration in the reply")
DELETE_ANY_TOPIC = _rule(20, "DeleteTopics", _DELETE, _CLUSTER, "any topic", None)
DELETE_TOPIC = _rule(20, "DeleteTopics", _DELETE, _TOPIC, "each topic")
DELETE_TOPIC_REVEALED = _rule(
    20, "DeleteTopics", _DESCRIBE, _TOPIC, "whether the topic exists, and its name if it was requested by id"
)
DELETE_RECORDS = _rule(21, "DeleteRecords", _DELETE, _TOPIC, "each topic")
INIT_TRANSACTION = _rule(22, "InitProducerId", _WRITE, _TRANSACTIONAL_ID, "a request with a transactional id")
INIT_IDEMPOTENT_ANY = _rule(
    22, "InitProducerId", Operation.IDEMPOTENT_WRITE, _CLUSTER, "a request without a transactional id", None
)
INIT_IDEMPOTENT = _rule(
    22,
    "InitProducerId",
    _WRITE,
    _TOPIC,
    "a request without a transactional id: some topic",
    ErrorCode.cluster_authorization_failed,
)
LEADER_EPOCH_OF_ANY = _rule(23, "OffsetForLeaderEpoch", _CLUSTER_ACTION, _CLUSTER, "any topic", None)
LEADER_EPOCH = _rule(23, "OffsetForLeaderEpoch", _DESCRIBE, _TOPIC, "each topic")
ADD_PARTITIONS = _rule(24, "AddPartitionsToTxn", _WRITE, _TRANSACTIONAL_ID, "v0-3: the transactional id")
ADD_PARTITIONS_TOPIC = _rule(24, "AddPartitionsToTxn", _WRITE, _TOPIC, "v0-3: each topic")
ADD_PARTITIONS_AS_BROKER = _rule(24, "AddPartitionsToTxn", _CLUSTER_ACTION, _CLUSTER, "from v4 on, which brokers send")
ADD_OFFSETS = _rule(25, "AddOffsetsToTxn", _WRITE, _TRANSACTIONAL_ID, "the transactional id")
ADD_OFFSETS_GROUP = _rule(25, "AddOffsetsToTxn", _READ, _GROUP, "the group")
END_TXN = _rule(26, "EndTxn", _WRITE, _TRANSACTIONAL_ID, "the transactional id")
WRITE_MARKERS_AS_ADMIN = _rule(27, "WriteTxnMarkers", _ALTER, _CLUSTER, "an administrator's request", None)
WRITE_MARKERS = _rule(27, "WriteTxnMarkers", _CLUSTER_ACTION, _CLUSTER, "a broker's request")
TXN_OFFSET_COMMIT = _rule(28, "TxnOffsetCommit", _WRITE, _TRANSACTIONAL_ID, "the transactional id")
TXN_OFFSET_COMMIT_GROUP = _rule(28, "TxnOffsetCommit", _READ, _GROUP, "the group")
TXN_OFFSET_COMMIT_TOPIC = _rule(28, "TxnOffsetCommit", _READ, _TOPIC, "each topic")
DESCRIBE_ACLS = _rule(29, "DescribeAcls", _DESCRIBE, _CLUSTER, "the request")
CREATE_ACLS = _rule(30, "CreateAcls", _ALTER, _CLUSTER, "the request")
DELETE_ACLS = _rule(31, "DeleteAcls", _ALTER, _CLUSTER, "the request")
DESCRIBE_TOPIC_CONFIGS = _rule(32, "DescribeConfigs", _DESCRIBE_CONFIGS, _TOPIC, "each topic")
DESCRIBE_BROKER_CONFIGS = _rule(32, "DescribeConfigs", _DESCRIBE_CONFIGS, _CLUSTER, "each broker")
ALTER_TOPIC_CONFIGS = _rule(33, "AlterConfigs", _ALTER_CONFIGS, _TOPIC, "each topic")
ALTER_BROKER_CONFIGS = _rule(33, "AlterConfigs", _ALTER_CONFIGS, _CLUSTER, "each broker")
DESCRIBE_LOG_DIRS = _rule(35, "DescribeLogDirs", _DESCRIBE, _CLUSTER, "the request")
CREATE_PARTITIONS = _rule(37, "CreatePartitions", _ALTER, _TOPIC, "each topic")
DELETE_GROUPS = _rule(42, "DeleteGroups", _DELETE, _GROUP, "each group")
ELECT_LEADERS = _rule(43, "ElectLeaders", _ALTER, _CLUSTER, "the request")
ALTER_TOPIC_CONFIGS_BY_KEY = _rule(44, "IncrementalAlterConfigs", _ALTER_CONFIGS, _TOPIC, "each topic")
ALTER_BROKER_CONFIGS_BY_KEY = _rule(44, "IncrementalAlterConfigs", _ALTER_CONFIGS, _CLUSTER, "each broker")
REASSIGN = _rule(45, "AlterPartitionReassignments", _ALTER, _CLUSTER, "the request")
LIST_REASSIGNMENTS = _rule(46, "ListPartitionReassignments", _DESCRIBE, _CLUSTER, "the request")
OFFSET_DELETE = _rule(47, "OffsetDelete", _DELETE, _GROUP, "the group")
OFFSET_DELETE_TOPIC = _rule(47, "OffsetDelete", _READ, _TOPIC, "each topic")
DESCRIBE_USERS = _rule(50, "DescribeUserScramCredentials", _DESCRIBE, _CLUSTER, "the request")
ALTER_USERS = _rule(51, "AlterUserScramCredentials", _ALTER, _CLUSTER, "the request")
DESCRIBE_CLUSTER_OPERATIONS = _rule(
    60, "DescribeCluster", _DESCRIBE, _CLUSTER, "the cluster's authorized operations", None
)
DESCRIBE_PRODUCERS = _rule(61, "DescribeProducers", _READ, _TOPIC, "each topic")
DESCRIBE_TRANSACTIONS = _rule(65, "DescribeTransactions", _DESCRIBE, _TRANSACTIONAL_ID, "each transactional id")
DESCRIBE_TRANSACTIONS_TOPIC = _rule(65, "DescribeTransactions", _DESCRIBE, _TOPIC, "each topic of a transaction", None)
LIST_TRANSACTIONS = _rule(66, "ListTransactions", _DESCRIBE, _TRANSACTIONAL_ID, "each transactional id", None)
CONSUMER_HEARTBEAT = _rule(68, "ConsumerGroupHeartbeat", _READ, _GROUP, "the group")
CONSUMER_HEARTBEAT_TOPIC = _rule(
    68, "ConsumerGroupHeartbeat", _DESCRIBE, _TOPIC, "each topic that the member subscribes to by name"
)
DESCRIBE_CONSUMER_GROUP = _rule(69, "ConsumerGroupDescribe", _DESCRIBE, _GROUP, "each group")
DESCRIBE_CONSUMER_GROUP_TOPIC = _rule(
    69, "ConsumerGroupDescribe", _DESCRIBE, _TOPIC, "each topic of the members, otherwise the group is not shown"
)
DESCRIBE_TOPIC_PARTITIONS = _rule(75, "DescribeTopicPartitions", _DESCRIBE, _TOPIC, "each named topic")
DESCRIBE_ALL_TOPIC_PARTITIONS = _rule(
    75, "DescribeTopicPartitions", _DESCRIBE, _TOPIC, "each topic, if all topics are requested", None
)
REPLICA_ACKNOWLEDGED = _rule(
    20000, "ReplicaAcknowledged", _CLUSTER_ACTION, _CLUSTER, "the request, which is ignored otherwise", None
)
REPLICA_WAIT_OVER = _rule(
    20001, "ReplicaWaitOver", _CLUSTER_ACTION, _CLUSTER, "the request, which is ignored otherwise", None
)

WITHOUT_PERMISSION = {17: "SaslHandshake", 18: "ApiVersions", 36: "SaslAuthenticate"}
"""APIs that need no permission."""


def render_table() -> str:
    """Renders `docs/reference/authorization.md`."""
    lines = [
        "# Permissions of the Kafka APIs",
        "",
        "Generated from `src/ottla/broker/api/authorization_table.py`; do not edit.",
        "",
        "With an [authorizer](../guides/authorization.md), a request needs these permissions, as in Kafka.",
        "Where the last column has no error, a part of the reply without the permission is left out, or",
        "another permission of the same API suffices instead. Replies that report *authorized operations*",
        "have those that the ACLs permit.",
        "",
        "| API | key | operation | resource | for | error without it |",
        "|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        error = "" if rule.error is None else f"`{rule.error.name.upper()}`"
        what = f"{rule.operation.name} | {rule.resource.name}"
        lines.append(f"| {rule.api} | {rule.api_key} | {what} | {rule.purpose} | {error} |")
    open_apis = ", ".join(f"{name} ({key})" for key, name in WITHOUT_PERMISSION.items())
    lines += ["", f"These APIs need no permission: {open_apis}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_table(), end="")
