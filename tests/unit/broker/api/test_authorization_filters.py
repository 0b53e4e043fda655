"""Replies leave out what a client must not see, and report the operations that it may perform."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ottla.broker.api.api import ConnectionState
from ottla.broker.api.dispatch import dispatch, dispatch_run
from ottla.protocol.model.acl import Operation, Permission, ResourceType, bit_set
from ottla.protocol.model.acl_bindings import AclBinding
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.produce import encode_produce_request
from ottla.protocol.wire.schema import request_type
from tests.support.acls import ALICE, acl
from tests.support.handlers_caller import Caller, calling
from tests.support.sim_logs import batch_of
from tests.unit.broker.api.test_authorization_table import SECURED, filled
from tests.unit.broker.api.test_transaction_handlers import until_loaded

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
DESCRIBE, READ, WRITE = Operation.DESCRIBE, Operation.READ, Operation.WRITE


def become_alice(caller: Caller, *acls: AclBinding) -> None:
    assert caller.broker.authorizer is not None
    caller.broker.authorizer.replace(acls)
    caller.connection.principal = ALICE


async def ask(caller: Caller, key: int, version: int, **values: Any) -> Any:
    return await caller.call(key, version, **filled(request_type(key, version), values))


async def test_metadata_of_all_topics_shows_only_those_that_a_client_may_describe() -> None:
    async with calling(**SECURED) as caller:
        for name in ("orders", "secret"):
            await caller.create_topic(name)
        become_alice(caller, acl(READ, TOPIC, "orders"))
        reply = await ask(caller, 3, 9, topics=None)
        assert [topic.name for topic in reply.topics] == ["orders"]
        described = await ask(caller, 75, 0, topics=[], response_partition_limit=10)
        assert [topic.name for topic in described.topics] == ["orders"]


async def test_a_topic_that_a_client_may_not_describe_looks_like_one_that_does_not_exist() -> None:
    async with calling(**SECURED) as caller:
        secret = await caller.create_topic("secret")
        become_alice(caller)
        both = [{"name": "secret", "topic_id": None}, {"name": "no", "topic_id": None}]
        reply = await ask(caller, 3, 10, topics=both)
        assert [(each.error_code, each.topic_id, each.partitions) for each in reply.topics] == [
            (ErrorCode.topic_authorization_failed, None, ())
        ] * 2
        by_id = await ask(caller, 3, 12, topics=[{"name": None, "topic_id": secret.id}])
        assert (by_id.topics[0].error_code, by_id.topics[0].name) == (ErrorCode.topic_authorization_failed, None)
        deleted = await ask(caller, 20, 6, topics=both)
        assert {each.error_code for each in deleted.responses} == {ErrorCode.topic_authorization_failed}
        assert caller.broker.topics.get("secret") is not None


async def test_auto_creation_needs_a_permission_for_the_cluster_or_the_topic() -> None:
    async with calling(**SECURED) as caller:
        become_alice(caller, acl(DESCRIBE, TOPIC, "*"), acl(Operation.CREATE, CLUSTER))
        reply = await ask(caller, 3, 9, topics=[{"name": "new"}], allow_auto_topic_creation=True)
        assert reply.topics[0].error_code is ErrorCode.none
        become_alice(caller, acl(DESCRIBE, TOPIC, "*"))
        reply = await ask(caller, 3, 9, topics=[{"name": "newer"}], allow_auto_topic_creation=True)
        assert reply.topics[0].error_code is ErrorCode.topic_authorization_failed
        assert caller.broker.topics.get("newer") is None


async def test_authorized_operations_are_those_of_the_acls() -> None:
    async with calling(**SECURED) as caller:
        await caller.create_topic("orders")
        denied = acl(DESCRIBE, TOPIC, "orders", permission=Permission.DENY, principal="User:bob")
        become_alice(caller, acl(WRITE, TOPIC, "orders"), denied, acl(Operation.ALTER_CONFIGS, CLUSTER))
        values = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        reply = await ask(caller, 3, 9, topics=[{"name": "orders"}], **values)
        assert reply.topics[0].topic_authorized_operations == bit_set({WRITE, DESCRIBE})
        assert reply.cluster_authorized_operations == 0  # the client may not describe the cluster
        become_alice(caller, acl(Operation.ALTER, CLUSTER))
        described = await ask(caller, 60, 1, endpoint_type=1, include_cluster_authorized_operations=True)
        assert described.cluster_authorized_operations == bit_set({Operation.ALTER, DESCRIBE})
        assert len(described.brokers) == 1


async def test_groups_are_listed_if_a_client_may_describe_them() -> None:
    async with calling(**SECURED) as caller:
        await caller.create_topic("orders")
        for group in ("mine", "other"):
            await caller.call(10, 4, key_type=0, coordinator_keys=[group])
            await until_loaded(caller)
            topics = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
            await ask(caller, 8, 8, group_id=group, generation_id_or_member_epoch=-1, topics=topics)
        become_alice(caller, acl(READ, GROUP, "mine"))
        assert [group.group_id for group in (await ask(caller, 16, 4)).groups] == ["mine"]
        fetched = await ask(caller, 9, 8, groups=[{"group_id": "mine", "topics": None}])
        assert fetched.groups[0].topics == ()  # the topic is not hers to see
        become_alice(caller, acl(DESCRIBE, CLUSTER))
        assert {group.group_id for group in (await ask(caller, 16, 4)).groups} == {"mine", "other"}


async def test_transactions_are_listed_if_a_client_may_describe_them() -> None:
    async with calling(**SECURED) as caller:
        second = timedelta(seconds=1)
        for name in ("mine", "other"):
            await caller.call(10, 4, key_type=1, coordinator_keys=[name])
            await until_loaded(caller)
            values = {"transaction_timeout": second, "producer_id": -1, "producer_epoch": -1}
            reply = await ask(caller, 22, 4, transactional_id=name, **values)
            assert reply.error_code is ErrorCode.none
        become_alice(caller, acl(DESCRIBE, ResourceType.TRANSACTIONAL_ID, "mine"))
        listed = await ask(caller, 66, 0)
        assert [each.transactional_id for each in listed.transaction_states] == ["mine"]


async def test_a_run_of_produce_requests_is_authorized() -> None:
    async with calling(**SECURED) as caller:
        topic = await caller.create_topic("orders")
        await caller.produce("orders")  # the first batch of a log takes the general path
        records = batch_of([b"value"], timestamps_ms=[caller.broker.clock.now_ms()])
        body = b"".join(encode_produce_request(9, None, -1, 5000, [("orders", [(0, records)])]))
        frames = [memoryview(bytearray(request_header(0, 9, number, "test") + body)) for number in range(3)]
        become_alice(caller, acl(WRITE, TOPIC, "orders"))
        reply, count = dispatch_run(caller.broker, caller.connection, frames, 0, 1000)
        assert count == 3
        assert reply is not None
        become_alice(caller)
        assert dispatch_run(caller.broker, caller.connection, frames, 0, 1000) == (None, 0)
        assert topic.partitions[0].log.end_offset == 4


async def test_the_requests_of_brokers_have_no_effect_without_a_permission() -> None:
    async with calling(**SECURED) as caller:
        become_alice(caller)

        class Waiting:
            expired = False

            @property
            def ended(self) -> bool:
                return self.expired

            def expire(self) -> None:
                self.expired = True

        waiting = caller.connection.waiting_fetch = Waiting()
        frame = memoryview(bytearray(request_header(20001, 0, 1, "test")))
        assert dispatch(caller.broker, caller.connection, frame) is None
        assert not waiting.expired
        become_alice(caller, acl(Operation.CLUSTER_ACTION, CLUSTER))
        dispatch(caller.broker, caller.connection, frame)
        assert waiting.expired


async def test_a_session_belongs_to_the_principal_of_the_connection() -> None:
    async with calling(**SECURED) as caller:
        await caller.create_topic("orders")
        caller.connection = ConnectionState("10.0.0.7:5000")
        assert (await ask(caller, 3, 9, topics=[{"name": "orders"}])).topics[0].error_code is ErrorCode.none
        become_alice(caller, acl(READ, TOPIC, "orders", host="10.0.0.0/24"))
        assert (await ask(caller, 3, 9, topics=[{"name": "orders"}])).topics[0].error_code is ErrorCode.none
        become_alice(caller, acl(READ, TOPIC, "orders", host="10.0.1.0/24"))
        refused = await ask(caller, 3, 9, topics=[{"name": "orders"}])
        assert refused.topics[0].error_code is ErrorCode.topic_authorization_failed
