"""The authorizer decides as a naive reading of Kafka's rules does, for any ACLs, and after any changes of them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from ottla.machines.authorization import AclAuthorizer
from ottla.protocol.model.acl import Operation, PatternType, Permission, ResourceType
from ottla.protocol.model.acl_bindings import AclBinding
from ottla.protocol.model.principals import Principal

_OP = Operation
OPERATIONS = [_OP.ALL, _OP.READ, _OP.CREATE, _OP.DESCRIBE, _OP.ALTER_CONFIGS]
ASKED = [_OP.READ, _OP.DESCRIBE, _OP.DESCRIBE_CONFIGS]
NAMES = st.sampled_from(["*", "a", "ab", "abc"])
HOSTS = ["10.0.0.1", "10.9.0.1"]
WHO = [Principal("User", "u"), Principal("Robot", "u")]
QUESTIONS = list(product(WHO, HOSTS, ASKED, ["a", "b", "ab", "abcd"]))
BINDINGS = st.builds(
    AclBinding,
    st.sampled_from([ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP]),
    NAMES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["User:*", "User:u", "Robot:u"]),
    st.sampled_from(["*", "10.0.0.0/24", "10.9.0.1"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
IMPLIES_DESCRIBE = {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
IMPLIES_DESCRIBE_CONFIGS = {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}


def applies(acl: AclBinding, name: str) -> bool:
    if acl.pattern is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in ("*", name)


def concerns(acl: AclBinding, principal: Principal, host: str, operation: Operation) -> bool:
    if acl.principal not in ("User:*", f"{principal.kind}:{principal.name}"):
        return False
    if acl.host != "*" and acl.host != host and not ("/" in acl.host and ip_address(host) in ip_network(acl.host)):
        return False
    if acl.operation is Operation.ALL:
        return True
    if acl.permission is Permission.ALLOW and operation is Operation.DESCRIBE:
        return acl.operation in IMPLIES_DESCRIBE
    if acl.permission is Permission.ALLOW and operation is Operation.DESCRIBE_CONFIGS:
        return acl.operation in IMPLIES_DESCRIBE_CONFIGS
    return acl.operation is operation


def reference(acls: set[AclBinding], is_open: bool, who: Principal, host: str, asked: Operation, name: str) -> bool:
    applying = [acl for acl in acls if acl.resource_type is ResourceType.TOPIC and applies(acl, name)]
    if not applying:
        return is_open
    found = {acl.permission for acl in applying if concerns(acl, who, host, asked)}
    return found == {Permission.ALLOW}


@given(
    st.lists(st.tuples(st.sampled_from([True, True, True, False]), BINDINGS), min_size=3, max_size=12), st.booleans()
)
def test_decisions_are_those_of_the_reference(changes: list[tuple[bool, AclBinding]], is_open: bool) -> None:
    made = AclAuthorizer(allow_everyone_if_no_acl_found=is_open)
    sessions = {(who, host): made.session(who, host) for who, host, _, _ in QUESTIONS}
    acls: set[AclBinding] = set()
    for is_added, binding in changes:
        if is_added:
            acls.add(binding)
            made.change(added=[binding])
        else:
            acls.discard(binding)
            made.change(removed=[binding])
        for who, host, asked, name in QUESTIONS:
            expected = reference(acls, is_open, who, host, asked, name)
            assert sessions[who, host].allows(asked, ResourceType.TOPIC, name) is expected
    assert set(made.acls()) == acls
    rebuilt = AclAuthorizer(allow_everyone_if_no_acl_found=is_open)
    rebuilt.replace(acls)
    for who, host, asked, name in QUESTIONS:
        expected = reference(acls, is_open, who, host, asked, name)
        assert rebuilt.authorize(who, host, asked, ResourceType.TOPIC, name) is expected


@given(st.lists(BINDINGS, max_size=8), st.sampled_from(WHO), st.sampled_from(HOSTS))
def test_whoever_may_write_to_a_named_topic_may_write_to_some(
    bindings: list[AclBinding], who: Principal, host: str
) -> None:
    made = AclAuthorizer()
    made.replace(bindings)
    is_permitted = any(
        made.authorize(who, host, Operation.WRITE, ResourceType.TOPIC, acl.name)
        for acl in bindings
        if acl.pattern is PatternType.LITERAL and acl.name != "*"
    )
    if is_permitted:
        assert made.authorize_some(who, host, Operation.WRITE, ResourceType.TOPIC)
