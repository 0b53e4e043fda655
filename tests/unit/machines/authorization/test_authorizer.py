"""The authorizer: Kafka's rules for ACLs, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.machines.authorization import AclAuthorizer
from ottla.protocol.model.acl import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from ottla.protocol.model.acl_bindings import AclBinding, AclFilter, check_binding
from ottla.protocol.model.principals import ANONYMOUS, Principal

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.1.2.3"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def allow(operation: Operation = READ, name: str = "orders", **values: object) -> AclBinding:
    binding = AclBinding(TOPIC, name, PatternType.LITERAL, "User:alice", "*", operation, Permission.ALLOW)
    return replace(binding, **values)  # type: ignore[arg-type]  # fields of the binding by name


def deny(operation: Operation = READ, name: str = "orders", **values: object) -> AclBinding:
    return allow(operation, name, permission=Permission.DENY, **values)


def authorizer(*bindings: AclBinding, **settings: bool) -> AclAuthorizer:
    made = AclAuthorizer([Principal("User", "root")], **settings)
    made.replace(bindings)
    return made


def may(made: AclAuthorizer, operation: Operation, name: str = "orders", principal: Principal = ALICE) -> bool:
    return made.authorize(principal, HOST, operation, TOPIC, name)


def test_nothing_is_allowed_without_an_acl() -> None:
    assert not may(authorizer(), READ)


def test_an_acl_allows_its_operation_to_its_principal_alone() -> None:
    made = authorizer(allow())
    assert may(made, READ)
    assert not may(made, WRITE)
    assert not may(made, READ, principal=BOB)
    assert not may(made, READ, name="orders-2")
    assert not made.authorize(ALICE, HOST, READ, GROUP, "orders")


def test_a_deny_wins_over_an_allow_of_any_pattern() -> None:
    made = authorizer(allow(Operation.ALL, "*"), deny(name="ord", pattern=PatternType.PREFIXED))
    assert not may(made, READ)
    assert may(made, WRITE)
    assert may(made, READ, name="payments")


@pytest.mark.parametrize("operation", [READ, WRITE, Operation.DELETE, Operation.ALTER])
def test_operations_that_imply_describe(operation: Operation) -> None:
    assert may(authorizer(allow(operation)), DESCRIBE)
    # Only an ACL that allows implies another operation.
    assert may(authorizer(allow(DESCRIBE), deny(operation)), DESCRIBE)


def test_alter_configs_implies_describe_configs_alone() -> None:
    made = authorizer(allow(Operation.ALTER_CONFIGS))
    assert may(made, Operation.DESCRIBE_CONFIGS)
    assert not may(made, DESCRIBE)


def test_create_implies_nothing() -> None:
    assert not may(authorizer(allow(Operation.CREATE)), DESCRIBE)


def test_a_prefix_matches_names_that_begin_with_it() -> None:
    made = authorizer(allow(name="ord", pattern=PatternType.PREFIXED))
    assert may(made, READ, name="ord")
    assert may(made, READ, name="orders")
    assert not may(made, READ, name="or")


def test_a_prefixed_star_is_no_wildcard() -> None:
    made = authorizer(allow(name="*", pattern=PatternType.PREFIXED))
    assert not may(made, READ)


def test_everyone_includes_all_principals() -> None:
    made = authorizer(allow(principal="User:*"))
    assert may(made, READ, principal=BOB)
    assert may(made, READ, principal=ANONYMOUS)


@pytest.mark.parametrize(
    ("host", "client", "expected"),
    [
        ("*", HOST, True),
        (HOST, HOST, True),
        ("10.1.2.4", HOST, False),
        ("10.1.0.0/16", HOST, True),
        ("10.2.0.0/16", HOST, False),
        ("10.1.2.3", "::ffff:10.1.2.3", True),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("fd00::/8", "fd12::1", True),
        ("0.0.0.0/0", "fd12::1", False),
        ("10.0.0.0/8", "no address", False),
        ("no address", "no address", True),
    ],
)
def test_hosts(host: str, client: str, expected: bool) -> None:
    assert authorizer(allow(host=host)).authorize(ALICE, client, READ, TOPIC, "orders") is expected


def test_super_users_may_do_everything_even_if_an_acl_denies() -> None:
    made = authorizer(deny(Operation.ALL, "*", principal="User:*"))
    assert may(made, READ, principal=Principal("User", "root"))


def test_a_resource_without_acls_may_be_open_to_everyone() -> None:
    made = authorizer(allow(name="orders", principal="User:bob"), allow_everyone_if_no_acl_found=True)
    assert may(made, WRITE, name="payments")
    assert not may(made, READ)  # it has an ACL, for somebody else


def test_only_super_users_pass_while_an_acl_is_unknown() -> None:
    made = AclAuthorizer([Principal("User", "root")], allow_everyone_if_no_acl_found=True)
    made.replace([allow()], is_complete=False)
    assert not may(made, READ)
    assert not made.authorize_some(ALICE, HOST, READ, TOPIC)
    assert may(made, READ, principal=Principal("User", "root"))


def test_some_resource() -> None:
    def some(*bindings: AclBinding) -> bool:
        return authorizer(*bindings).authorize_some(ALICE, HOST, WRITE, TOPIC)

    assert not some()
    assert some(allow(WRITE))
    assert some(allow(Operation.ALL))
    assert some(allow(WRITE, "*"), deny(WRITE))
    assert not some(allow(WRITE), deny(WRITE))
    assert not some(allow(WRITE), deny(WRITE, "or", pattern=PatternType.PREFIXED))
    assert not some(allow(WRITE), deny(WRITE, "*"))
    assert not some(allow(WRITE, principal="User:bob"))
    assert some(allow(WRITE, "ord", pattern=PatternType.PREFIXED), deny(WRITE, "ord"))


def test_a_session_follows_changes_of_the_acls() -> None:
    made = authorizer(allow(WRITE))
    session = made.session(ALICE, HOST)
    assert session.allows(WRITE, TOPIC, "orders")
    assert session.allows_some(WRITE, TOPIC)
    made.change(removed=[allow(WRITE)])
    assert not session.allows(WRITE, TOPIC, "orders")
    assert not session.allows_some(WRITE, TOPIC)
    made.change(added=[allow(WRITE)])
    assert session.allows(WRITE, TOPIC, "orders")


def test_a_session_keeps_a_bounded_number_of_decisions() -> None:
    session = authorizer(allow(READ, "t", pattern=PatternType.PREFIXED)).session(ALICE, HOST)
    assert all(session.allows(READ, TOPIC, f"t-{number}") for number in range(5_000))
    assert len(session._decisions) <= 2_000


@pytest.mark.parametrize(
    "binding",
    [
        allow(resource_type=ResourceType.ANY),
        allow(pattern=PatternType.MATCH),
        allow(pattern=PatternType.ANY),
        allow(Operation.ANY),
        allow(permission=Permission.ANY),
        allow(name=""),
        allow(principal="alice"),
        allow(principal="User:"),
        allow(host=""),
        allow(host="10.0.0.1/8"),
        allow(resource_type=ResourceType.CLUSTER, name="other"),
    ],
    ids=str,
)
def test_invalid_acls(binding: AclBinding) -> None:
    assert check_binding(binding) is not None


def test_acls_survive_storage() -> None:
    cluster = allow(Operation.ALL, CLUSTER_NAME, resource_type=ResourceType.CLUSTER, host="10.0.0.0/8")
    for binding in (allow(), deny(name="a", pattern=PatternType.PREFIXED), cluster):
        assert AclBinding.from_fields(dict(binding.to_fields())) == binding
    with pytest.raises(ValueError, match="empty"):
        AclBinding.from_fields({**allow().to_fields(), "name": ""})


def test_filters() -> None:
    literal, prefixed, wildcard = allow(), allow(name="ord", pattern=PatternType.PREFIXED), allow(name="*")
    everything = [literal, prefixed, wildcard]

    def selected(**values: object) -> list[AclBinding]:
        return [each for each in everything if AclFilter(**values).matches(each)]  # type: ignore[arg-type]  # by name

    assert selected() == everything
    assert selected(name="orders") == [literal]
    assert selected(name="orders", pattern=PatternType.MATCH) == everything
    assert selected(name="ord", pattern=PatternType.PREFIXED) == [prefixed]
    assert selected(pattern=PatternType.LITERAL) == [literal, wildcard]
    assert selected(resource_type=GROUP) == []
    assert selected(principal="User:bob") == []
    assert selected(host="10.0.0.1") == []
    assert selected(operation=WRITE) == []
    assert selected(permission=Permission.DENY) == []
