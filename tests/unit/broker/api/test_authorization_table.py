"""Every rule of the authorization table, through the protocol: allowed, allowed by a prefix, denied, and deny wins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from types import NoneType
from typing import Any, get_args, get_origin

import pytest

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.authorization_table import RULES, WITHOUT_PERMISSION, AuthorizationRule
from ottla.broker.api.registry import BETWEEN_BROKERS, MODULES
from ottla.protocol.model.acl import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from ottla.protocol.model.acl_bindings import AclBinding
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.schema import request_type
from tests.support.acls import ALICE, AUTHORIZER, acl
from tests.support.handlers_caller import Caller, batch, calling
from tests.unit.broker.api.test_transaction_handlers import until_loaded

SECURED = {name.replace(".", "_"): value for name, value in AUTHORIZER.items()} | {
    "offsets_topic_num_partitions": "1",
    "transaction_state_log_num_partitions": "1",
}
TOPIC, GROUP, TRANSACTIONAL_ID = "orders", "readers", "transfers"
NAMES = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.CLUSTER: CLUSTER_NAME,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONAL_ID,
}
FAILURES = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
}
ALTERNATIVES = {
    rules.METADATA_CREATE: [rules.METADATA_CREATE_ANY],
    rules.CREATE_TOPIC: [rules.CREATE_ANY_TOPIC],
    rules.DELETE_TOPIC: [rules.DELETE_ANY_TOPIC],
    rules.DELETE_TOPIC_REVEALED: [rules.DELETE_ANY_TOPIC],
    rules.INIT_IDEMPOTENT: [rules.INIT_IDEMPOTENT_ANY],
    rules.LEADER_EPOCH: [rules.LEADER_EPOCH_OF_ANY],
    rules.WRITE_MARKERS: [rules.WRITE_MARKERS_AS_ADMIN],
}
"""Rules that suffice instead of another one."""
_SECOND = timedelta(seconds=1)
_PARTITION = {"partition_index": 0}
_BATCH = batch(1, 1_700_000_000_000)
_TRANSACTIONAL = bytearray(_BATCH)
_TRANSACTIONAL[22] |= 0x10  # it is refused before its checksum is verified
_MARKER = {"producer_id": 1, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
_PARTITIONS_OF_TOPIC = {"name": TOPIC, "partitions": [0]}


def _produced(records: bytes) -> list[dict[str, Any]]:
    return [{"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}]


def _fetch(replica_id: int) -> dict[str, Any]:
    partition = {"partition": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1, "fetch_offset": 0}
    return {"replica_id": replica_id, "topics": [{"topic": TOPIC, "partitions": [partition]}], "session_epoch": -1}


def _config(resource_type: int, name: str) -> list[dict[str, Any]]:
    return [{"resource_type": resource_type, "resource_name": name}]


_ACL_FILTER = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
REQUESTS: dict[AuthorizationRule, tuple[int, dict[str, Any]]] = {
    rules.PRODUCE: (9, {"acks": -1, "timeout": _SECOND, "topic_data": _produced(_BATCH)}),
    rules.PRODUCE_IN_TRANSACTION: (
        9,
        {"acks": -1, "transactional_id": TRANSACTIONAL_ID, "topic_data": _produced(bytes(_TRANSACTIONAL))},
    ),
    rules.FETCH: (11, _fetch(-1)),
    rules.FETCH_AS_FOLLOWER: (11, _fetch(2)),
    rules.LIST_OFFSETS: (
        7,
        {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [{**_PARTITION, "timestamp": -1}]}]},
    ),
    rules.METADATA: (9, {"topics": [{"name": TOPIC}]}),
    rules.METADATA_CREATE: (9, {"topics": [{"name": "orders-new"}], "allow_auto_topic_creation": True}),
    rules.OFFSET_COMMIT: (8, {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [_PARTITION]}]}),
    rules.OFFSET_COMMIT_TOPIC: (8, {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [_PARTITION]}]}),
    rules.OFFSET_FETCH: (8, {"groups": [{"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}]}),
    rules.OFFSET_FETCH_TOPIC: (
        8,
        {"groups": [{"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}]},
    ),
    rules.FIND_GROUP_COORDINATOR: (4, {"key_type": 0, "coordinator_keys": [GROUP]}),
    rules.FIND_TRANSACTION_COORDINATOR: (4, {"key_type": 1, "coordinator_keys": [TRANSACTIONAL_ID]}),
    rules.JOIN_GROUP: (9, {"group_id": GROUP, "session_timeout": _SECOND, "rebalance_timeout": _SECOND}),
    rules.HEARTBEAT: (4, {"group_id": GROUP}),
    rules.LEAVE_GROUP: (5, {"group_id": GROUP}),
    rules.SYNC_GROUP: (4, {"group_id": GROUP}),
    rules.DESCRIBE_GROUPS: (5, {"groups": [GROUP]}),
    rules.CREATE_TOPIC: (7, {"topics": [{"name": "orders-new", "num_partitions": 1, "replication_factor": 1}]}),
    rules.CREATE_TOPIC_CONFIGS: (7, {"topics": [{"name": "orders-new", "num_partitions": 1, "replication_factor": 1}]}),
    rules.DELETE_TOPIC: (6, {"topics": [{"name": TOPIC}]}),
    rules.DELETE_TOPIC_REVEALED: (6, {"topics": [{"name": TOPIC}]}),
    rules.DELETE_RECORDS: (2, {"topics": [{"name": TOPIC, "partitions": [{**_PARTITION, "offset": 0}]}]}),
    rules.INIT_TRANSACTION: (
        4,
        {
            "transactional_id": TRANSACTIONAL_ID,
            "transaction_timeout": _SECOND,
            "producer_id": -1,
            "producer_epoch": -1,
        },
    ),
    rules.INIT_IDEMPOTENT: (4, {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}),
    rules.LEADER_EPOCH: (4, {"topics": [{"topic": TOPIC, "partitions": [{"partition": 0}]}]}),
    rules.ADD_PARTITIONS: (
        3,
        {"v3_and_below_transactional_id": TRANSACTIONAL_ID, "v3_and_below_topics": [_PARTITIONS_OF_TOPIC]},
    ),
    rules.ADD_PARTITIONS_TOPIC: (
        3,
        {"v3_and_below_transactional_id": TRANSACTIONAL_ID, "v3_and_below_topics": [_PARTITIONS_OF_TOPIC]},
    ),
    rules.ADD_PARTITIONS_AS_BROKER: (
        5,
        {"transactions": [{"transactional_id": TRANSACTIONAL_ID, "topics": [_PARTITIONS_OF_TOPIC]}]},
    ),
    rules.ADD_OFFSETS: (3, {"transactional_id": TRANSACTIONAL_ID, "group_id": GROUP}),
    rules.ADD_OFFSETS_GROUP: (3, {"transactional_id": TRANSACTIONAL_ID, "group_id": GROUP}),
    rules.END_TXN: (3, {"transactional_id": TRANSACTIONAL_ID}),
    rules.WRITE_MARKERS: (1, {"markers": [_MARKER]}),
    **dict.fromkeys(
        (rules.TXN_OFFSET_COMMIT, rules.TXN_OFFSET_COMMIT_GROUP, rules.TXN_OFFSET_COMMIT_TOPIC),
        (
            3,
            {
                "transactional_id": TRANSACTIONAL_ID,
                "group_id": GROUP,
                "topics": [{"name": TOPIC, "partitions": [_PARTITION]}],
            },
        ),
    ),
    rules.DESCRIBE_ACLS: (3, _ACL_FILTER),
    rules.CREATE_ACLS: (
        3,
        {
            "creations": [
                {
                    "resource_type": 2,
                    "resource_name": "t",
                    "principal": "User:x",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
            ]
        },
    ),
    rules.DELETE_ACLS: (3, {"filters": [{**_ACL_FILTER, "principal_filter": "User:x"}]}),
    rules.DESCRIBE_TOPIC_CONFIGS: (4, {"resources": _config(2, TOPIC)}),
    rules.DESCRIBE_BROKER_CONFIGS: (4, {"resources": _config(4, "1")}),
    rules.ALTER_TOPIC_CONFIGS: (2, {"resources": _config(2, TOPIC)}),
    rules.ALTER_BROKER_CONFIGS: (2, {"resources": _config(4, "1")}),
    rules.DESCRIBE_LOG_DIRS: (4, {"topics": None}),
    rules.CREATE_PARTITIONS: (3, {"topics": [{"name": TOPIC, "count": 2, "assignments": None}]}),
    rules.DELETE_GROUPS: (2, {"groups_names": [GROUP]}),
    rules.ELECT_LEADERS: (2, {"topic_partitions": None}),
    rules.ALTER_TOPIC_CONFIGS_BY_KEY: (1, {"resources": _config(2, TOPIC)}),
    rules.ALTER_BROKER_CONFIGS_BY_KEY: (1, {"resources": _config(4, "1")}),
    rules.REASSIGN: (0, {"topics": []}),
    rules.LIST_REASSIGNMENTS: (0, {"topics": None}),
    rules.OFFSET_DELETE: (0, {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [_PARTITION]}]}),
    rules.OFFSET_DELETE_TOPIC: (0, {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [_PARTITION]}]}),
    rules.DESCRIBE_USERS: (0, {"users": None}),
    rules.ALTER_USERS: (0, {"deletions": [{"name": "u", "mechanism": 1}]}),
    rules.DESCRIBE_PRODUCERS: (0, {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}),
    rules.DESCRIBE_TRANSACTIONS: (0, {"transactional_ids": [TRANSACTIONAL_ID]}),
    rules.CONSUMER_HEARTBEAT: (1, {"group_id": GROUP, "member_id": "m", "subscribed_topic_names": [TOPIC]}),
    rules.CONSUMER_HEARTBEAT_TOPIC: (1, {"group_id": GROUP, "member_id": "m", "subscribed_topic_names": [TOPIC]}),
    rules.DESCRIBE_CONSUMER_GROUP: (1, {"group_ids": [GROUP]}),
    rules.DESCRIBE_TOPIC_PARTITIONS: (0, {"topics": [{"name": TOPIC}], "response_partition_limit": 10}),
}
"""A request for each rule with an error. The rules that leave something out of a reply have tests of their own."""
ELSEWHERE = {rules.DESCRIBE_CONSUMER_GROUP_TOPIC, *(rule for rule in RULES if rule.error is None)}
"""Rules that `test_authorization_filters.py` tests."""


def filled(type_: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Completes the values of a request with empty ones."""
    out: dict[str, Any] = {}
    for field in fields(type_):
        if field.name in values:
            out[field.name] = _filled_value(field.type, values[field.name])
        elif field.default is MISSING and field.default_factory is MISSING:
            out[field.name] = _empty(field.type, field.metadata.get("kafka_type", ""))
    return out


def _filled_value(type_: Any, value: Any) -> Any:
    args = [arg for arg in get_args(type_) if arg is not NoneType]
    element = type_ if not args else args[0]
    if get_origin(element) is tuple:
        element = get_args(element)[0]
    if not is_dataclass(element):
        return value
    if isinstance(value, list):
        return [filled(element, each) for each in value]
    return filled(element, value) if isinstance(value, dict) else value


def _empty(type_: Any, kafka_type: str) -> Any:
    if NoneType in get_args(type_):
        return None
    if get_origin(type_) is tuple:
        return []
    if kafka_type.startswith("timedelta"):
        return timedelta(0)
    return {"string": "", "bytes": b"", "bool": False, "uuid": None}.get(kafka_type, 0)


def error_codes(found: Any) -> Iterator[ErrorCode]:
    """Iterates over all error codes in a reply."""
    if isinstance(found, ErrorCode):
        yield found
    elif isinstance(found, tuple):
        for each in found:
            yield from error_codes(each)
    elif is_dataclass(found):
        for field in fields(found):
            value = getattr(found, field.name)
            is_code = field.name.endswith("error_code")
            yield from error_codes(ErrorCode(value) if is_code else value)


def binding(rule: AuthorizationRule, pattern: PatternType, permission: Permission) -> AclBinding:
    name = NAMES[rule.resource]
    if pattern is PatternType.PREFIXED and rule.resource is not ResourceType.CLUSTER:
        name = name[:3]
    elif rule is rules.INIT_IDEMPOTENT and permission is Permission.DENY:
        name = "*"  # it is about some topic, whatever its name
    elif rule in (rules.METADATA_CREATE, rules.CREATE_TOPIC, rules.CREATE_TOPIC_CONFIGS):
        name = "orders-new"
    return acl(rule.operation, rule.resource, name, pattern=pattern, permission=permission)


async def failures(rule: AuthorizationRule, acls: Iterable[AclBinding]) -> set[ErrorCode]:
    """Sends the request of a rule to a fresh broker with these ACLs. Returns the refusals in the reply."""
    version, values = REQUESTS[rule]
    async with calling(**SECURED) as caller:
        await caller.create_topic(TOPIC)
        await prepare(caller)
        assert caller.broker.authorizer is not None
        caller.broker.authorizer.replace(acls)
        caller.connection.principal = ALICE
        reply = await caller.call(rule.api_key, version, **filled(request_type(rule.api_key, version), values))
        return set(error_codes(reply)) & FAILURES


async def prepare(caller: Caller) -> None:
    """Creates the internal topics, and a group, with the permissions of a super user."""
    await caller.broker.transactions.ensure_topic()
    await caller.call(10, 4, key_type=0, coordinator_keys=[GROUP])
    await until_loaded(caller)
    version, values = REQUESTS[rules.OFFSET_COMMIT]
    values = {**values, "generation_id_or_member_epoch": -1}
    reply = await caller.call(8, version, **filled(request_type(8, version), values))
    assert set(error_codes(reply)) == {ErrorCode.none}


def rules_of(rule: AuthorizationRule) -> list[AuthorizationRule]:
    """Returns the rules of the API without those that suffice instead of this one."""
    return [each for each in RULES if each.api_key == rule.api_key and each not in ALTERNATIVES.get(rule, [])]


@pytest.mark.parametrize("rule", REQUESTS, ids=lambda rule: f"{rule.api}-{rule.operation.name}-{rule.resource.name}")
@pytest.mark.parametrize("pattern", [PatternType.LITERAL, PatternType.PREFIXED], ids=lambda pattern: pattern.name)
async def test_the_permissions_of_the_table_suffice(rule: AuthorizationRule, pattern: PatternType) -> None:
    literal = [binding(each, pattern, Permission.ALLOW) for each in rules_of(rule)]
    if pattern is PatternType.LITERAL and binding(rule, pattern, Permission.ALLOW).name == "orders-new":
        new = [each for each in literal if each.resource_type is ResourceType.TOPIC]
        literal += [acl(each.operation, each.resource_type, "orders-new") for each in new]
    assert await failures(rule, literal) == set()


@pytest.mark.parametrize("rule", REQUESTS, ids=lambda rule: f"{rule.api}-{rule.operation.name}-{rule.resource.name}")
async def test_nothing_is_permitted_without_acls(rule: AuthorizationRule) -> None:
    assert await failures(rule, []) != set()


@pytest.mark.parametrize("rule", REQUESTS, ids=lambda rule: f"{rule.api}-{rule.operation.name}-{rule.resource.name}")
async def test_each_permission_is_necessary_and_a_deny_wins(rule: AuthorizationRule) -> None:
    everything = [
        acl(Operation.ALL, each, CLUSTER_NAME if each is ResourceType.CLUSTER else "*")
        for each in ResourceType
        if each is not ResourceType.ANY
    ]
    denied = [binding(each, PatternType.LITERAL, Permission.DENY) for each in (rule, *ALTERNATIVES.get(rule, []))]
    assert await failures(rule, everything) == set()
    assert await failures(rule, [*everything, *denied]) == {rule.error}


def test_every_api_has_rules() -> None:
    known = {rule.api_key: rule.api for rule in RULES} | WITHOUT_PERMISSION
    assert known == {module.API.key: module.API.name for module in [*MODULES, *BETWEEN_BROKERS]}
    assert sorted(RULES, key=lambda rule: rule.api_key) == RULES


def test_every_rule_is_tested() -> None:
    assert set(RULES) == set(REQUESTS) | ELSEWHERE
