"""librdkafka administers ACLs, and is bound by them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from ottla.client import Admin
from ottla.protocol.model.listeners import SecurityProtocol
from tests.conformance.security.test_clients import (
    MODULE,
    PASSWORD,
    ROOT,
    WAIT_S,
    Secured,
    librdkafka,
    librdkafka_round_trip,
)
from tests.unit.broker.security.secured import AUTHORITY, client_security, running, tls_properties

DENIED = confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture
async def authorized(tmp_path: Path) -> AsyncIterator[Secured]:
    """A broker with an authorizer, the topics `topic` and `other`, and a user alice without any permission."""
    properties = {
        **tls_properties(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ROOT.username}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
            f'{MODULE}.scram.ScramLoginModule required username="{ROOT.username}" password="{ROOT.password}";'
        ),
    }
    (tmp_path / "ca.pem").write_text(AUTHORITY.certificate)
    async with running(tmp_path / "data", "SASL_SSL://127.0.0.1:0", properties) as broker:
        root = client_security(SecurityProtocol.SASL_SSL, login=ROOT)
        async with Admin(broker.bootstrap, security=root) as admin:
            await admin.set_scram_password("alice", PASSWORD)
            await admin.create_topic("topic")
            await admin.create_topic("other")
        yield Secured(broker.bootstrap, str(tmp_path / "ca.pem"))


def allow(kind: ResourceType, name: str, operation: AclOperation, *, deny: bool = False) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if name.endswith("-") else ResourcePatternType.LITERAL
    permission = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
    return AclBinding(kind, name, pattern, "User:alice", "*", operation, permission)


def produce_error(settings: dict[str, Any]) -> int | None:
    """Produces a record and returns the code of its error, or None."""
    errors: list[Any] = []
    producer = confluent_kafka.Producer(settings)
    producer.produce("topic", b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    (error,) = errors
    return None if error is None else error.code()


async def test_librdkafka_administers_acls(authorized: Secured) -> None:
    alice = librdkafka(authorized, "SCRAM-SHA-512")
    root = librdkafka(authorized, "SCRAM-SHA-512", ROOT.username, ROOT.password)

    def work() -> None:
        admin: Any = AdminClient(root)
        assert produce_error(alice) == DENIED
        assert AdminClient(alice).list_topics(timeout=WAIT_S).topics == {}, "topics are not revealed"
        bindings = [
            allow(ResourceType.TOPIC, "topic", AclOperation.WRITE),
            allow(ResourceType.TOPIC, "topic", AclOperation.READ),
            allow(ResourceType.GROUP, "g-", AclOperation.READ),
        ]
        for created in admin.create_acls(bindings).values():
            created.result(WAIT_S)
        anything: Any = None  # its stubs demand names
        everything = AclBindingFilter(
            *(ResourceType.ANY, anything, ResourcePatternType.ANY, anything, anything),
            *(AclOperation.ANY, AclPermissionType.ANY),
        )
        assert set(admin.describe_acls(everything).result(WAIT_S)) == set(bindings)
        assert set(AdminClient(alice).list_topics(timeout=WAIT_S).topics) == {"topic"}
        assert librdkafka_round_trip(alice, "g-1") == b"value"
        denial = allow(ResourceType.TOPIC, "topic", AclOperation.WRITE, deny=True)
        admin.create_acls([denial])[denial].result(WAIT_S)
        assert produce_error(alice) == DENIED, "a denial wins"
        found = AclBindingFilter(
            *(ResourceType.TOPIC, "topic", ResourcePatternType.LITERAL, "User:alice", "*"),
            *(AclOperation.WRITE, AclPermissionType.DENY),
        )
        assert admin.delete_acls([found])[found].result(WAIT_S) == [denial]
        assert produce_error(alice) is None
        intruder: Any = AdminClient(alice)
        with pytest.raises(confluent_kafka.KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
            intruder.create_acls([denial])[denial].result(WAIT_S)

    await asyncio.to_thread(work)
