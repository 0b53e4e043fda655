"""ACLs through the protocol: creating, describing and deleting them on a single broker."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.standalone.metadata import StandaloneMetadata
from ottla.protocol.model.acl import Operation, PatternType, Permission, ResourceType
from ottla.protocol.model.acl_bindings import AclBinding, AclFilter
from ottla.protocol.model.errors import ErrorCode
from tests.support.acls import ALICE, AUTHORIZER, ROOT, acl, creation, filter_values
from tests.support.handlers_caller import Caller, calling

DESCRIBE, CREATE, DELETE = 29, 30, 31
READ = acl(Operation.READ, ResourceType.TOPIC, "orders")
PREFIXED = acl(Operation.WRITE, ResourceType.TOPIC, "or", pattern=PatternType.PREFIXED, host="10.0.0.0/8")
GROUP = acl(Operation.READ, ResourceType.GROUP, "*", permission=Permission.DENY, principal="User:bob")
SECURED = {name.replace(".", "_"): value for name, value in AUTHORIZER.items()}


async def create(caller: Caller, *bindings: AclBinding, version: int = 3) -> list[ErrorCode]:
    reply = await caller.call(CREATE, version, creations=[creation(binding) for binding in bindings])
    return [result.error_code for result in reply.results]


async def described(caller: Caller, wanted: AclFilter | None = None, version: int = 3) -> list[AclBinding]:
    reply = await caller.call(DESCRIBE, version, **filter_values(wanted or AclFilter()))
    assert reply.error_code is ErrorCode.none
    return [_binding(resource, entry) for resource in reply.resources for entry in resource.acls]


def _binding(resource: Any, entry: Any) -> AclBinding:
    return AclBinding(
        ResourceType(resource.resource_type),
        resource.resource_name,
        PatternType(resource.pattern_type),
        entry.principal,
        entry.host,
        Operation(entry.operation),
        Permission(entry.permission_type),
    )


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_acls_are_created_described_and_deleted(version: int) -> None:
    async with calling(**SECURED) as caller:
        assert await create(caller, READ, PREFIXED, GROUP, READ, version=version) == [ErrorCode.none] * 4
        assert await described(caller, version=version) == sorted([READ, PREFIXED, GROUP])
        match = AclFilter(ResourceType.TOPIC, "orders", PatternType.MATCH)
        assert await described(caller, match, version) == sorted([READ, PREFIXED])
        filters = [filter_values(match), filter_values(AclFilter(principal="User:nobody"))]
        reply = await caller.call(DELETE, version, filters=filters)
        deleted, nothing = reply.filter_results
        assert [_binding(each, each) for each in deleted.matching_acls] == sorted([READ, PREFIXED])
        assert nothing.matching_acls == ()
        assert await described(caller, version=version) == [GROUP]


async def test_an_invalid_acl_does_not_affect_the_others() -> None:
    async with calling(**SECURED) as caller:
        invalid = [acl(Operation.READ, name=""), acl(Operation.ANY), acl(Operation.READ, principal="alice")]
        outcomes = await create(caller, invalid[0], READ, *invalid[1:])
        assert outcomes == [ErrorCode.invalid_request, ErrorCode.none, *[ErrorCode.invalid_request] * 2]
        assert await described(caller) == [READ]


async def test_unknown_codes_are_refused() -> None:
    async with calling(**SECURED) as caller:
        unknown = {**creation(READ), "operation": 99}
        reply = await caller.call(CREATE, 3, creations=[unknown])
        assert reply.results[0].error_code is ErrorCode.invalid_request
        values = {**filter_values(AclFilter()), "resource_type_filter": 99}
        assert (await caller.call(DESCRIBE, 3, **values)).error_code is ErrorCode.invalid_request
        reply = await caller.call(DELETE, 3, filters=[values, filter_values(AclFilter())])
        assert [each.error_code for each in reply.filter_results] == [ErrorCode.invalid_request, ErrorCode.none]


async def test_without_an_authorizer_there_are_no_acls() -> None:
    async with calling() as caller:
        assert await create(caller, READ) == [ErrorCode.security_disabled]
        reply = await caller.call(DESCRIBE, 3, **filter_values(AclFilter()))
        assert reply.error_code is ErrorCode.security_disabled
        reply = await caller.call(DELETE, 3, filters=[filter_values(AclFilter())])
        assert reply.filter_results[0].error_code is ErrorCode.security_disabled


async def test_acls_are_those_of_administrators() -> None:
    async with calling(**SECURED) as caller:
        caller.connection.principal = ALICE
        assert await create(caller, READ, GROUP) == [ErrorCode.cluster_authorization_failed] * 2
        reply = await caller.call(DESCRIBE, 3, **filter_values(AclFilter()))
        assert reply.error_code is ErrorCode.cluster_authorization_failed
        reply = await caller.call(DELETE, 3, filters=[filter_values(AclFilter())])
        assert reply.filter_results[0].error_code is ErrorCode.cluster_authorization_failed
        caller.connection.principal = ROOT
        assert await create(caller, acl(Operation.ALTER, ResourceType.CLUSTER)) == [ErrorCode.none]
        caller.connection.principal = ALICE
        assert await create(caller, READ) == [ErrorCode.none]
        assert len(await described(caller)) == 2  # ALTER implies DESCRIBE


async def test_a_broker_that_cannot_store_acls_does_not_decide_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with calling(**SECURED) as caller:
        metadata = caller.broker.metadata
        assert isinstance(metadata, StandaloneMetadata)

        def fail(*_: object) -> None:
            raise OSError(28, "No space left")

        monkeypatch.setattr(metadata.catalog.blocking, "change_entries", fail)
        assert await create(caller, READ) == [ErrorCode.kafka_storage_error]
        assert await described(caller) == []


async def test_stored_acls_are_loaded_and_an_unreadable_one_closes_the_broker() -> None:
    async with calling(**SECURED) as caller:
        await create(caller, READ)
        metadata = caller.broker.metadata
        assert isinstance(metadata, StandaloneMetadata)
        entries = metadata.catalog.blocking.load().entries
        authorizer = caller.broker.authorizer
        assert authorizer is not None
        authorizer.replace([])
        metadata.acl_admin.load(entries)
        assert list(authorizer.acls()) == [READ]
        assert authorizer.is_complete
        metadata.acl_admin.load({**entries, "acls/from-the-future": b'{"format": 2}', "other": b""})
        assert not authorizer.is_complete
        assert not authorizer.authorize(ALICE, "10.0.0.1", Operation.READ, ResourceType.TOPIC, "orders")
