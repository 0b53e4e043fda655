"""Groups with every client: a member that reads, commits and resumes; and the operations of administrators."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ottla.protocol.model.errors import ErrorCode
from tests.conformance.clients.group_interface import CLASSIC, CONSUMER, GroupUser
from tests.conformance.clients.group_java import JavaGroupUser
from tests.conformance.clients.group_librdkafka import ConfluentGroupUser, KcatGroupUser, member, read_and_commit
from tests.conformance.clients.group_python import AiokafkaGroupUser, KafkaPythonGroupUser
from tests.conformance.clients.interface import Record, RefusedByBroker
from tests.conformance.clients.java_client import JavaClient
from tests.conformance.conftest import LEADERS_MOVE, ONE_BROKER, ClientOf, TopicOf
from tests.conformance.leaders import wait_until_known

USERS: tuple[type[GroupUser], ...] = (
    ConfluentGroupUser,
    AiokafkaGroupUser,
    KafkaPythonGroupUser,
    KcatGroupUser,
    JavaGroupUser,
)
NAMES = [user.name for user in USERS]
MEMBERS = [(user.name, protocol) for user in USERS for protocol in user.protocols]
ADMINS = [user.name for user in USERS if user.is_admin]
CHANGERS = [user.name for user in USERS if user.is_admin and user.can_change]
REMOVERS = [user.name for user in USERS if user.is_admin and user.can_delete_offsets]

pytestmark = pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)

UserOf = Callable[[str], GroupUser]
WriteMore = Callable[[int], list[bytes]]


@pytest.fixture
def user_of(client_of: ClientOf, bootstrap: str) -> UserOf:
    def user(name: str) -> GroupUser:
        client = client_of(name)
        if isinstance(client, JavaClient):
            return JavaGroupUser(bootstrap, client)
        (kind,) = (kind for kind in USERS if kind.name == name)
        return kind(bootstrap)

    return user


@pytest.fixture
def topic(client_of: ClientOf, fresh_topic: TopicOf, bootstrap: str) -> str:
    name = fresh_topic("read-by-groups")
    client_of("confluent-kafka").create_topic(name, partitions=2)
    wait_until_known(bootstrap, name)
    return name


@pytest.fixture
def group(fresh_topic: TopicOf) -> str:
    return fresh_topic("group")


@pytest.fixture
def write_more(client_of: ClientOf, topic: str) -> WriteMore:
    """Writes that many records to both partitions alternately; returns their values."""
    written = 0

    def write(count: int) -> list[bytes]:
        nonlocal written
        values = [b"record %d" % number for number in range(written, written + count)]
        records = [Record(value, partition=at % 2) for at, value in enumerate(values, written)]
        client_of("confluent-kafka").write(topic, records)
        written += count
        return values

    return write


# -- members ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "protocol"), MEMBERS)
def test_a_member_goes_on_where_it_was(
    user_of: UserOf, write_more: WriteMore, topic: str, group: str, name: str, protocol: str
) -> None:
    user, admin = user_of(name), user_of("confluent-kafka")
    first = write_more(20)
    assert sorted(user.consume(group, topic, 20, protocol)) == sorted(first)
    assert admin.offsets(group) == {(topic, 0): 10, (topic, 1): 10}
    more = write_more(10)
    assert sorted(user.consume(group, topic, 10, protocol)) == sorted(more)
    assert admin.offsets(group) == {(topic, 0): 15, (topic, 1): 15}


def test_a_group_goes_from_client_to_client(user_of: UserOf, write_more: WriteMore, topic: str, group: str) -> None:
    """Also from one protocol to the other, while the group is empty."""
    for name, protocol in MEMBERS:
        written = write_more(6)
        assert sorted(user_of(name).consume(group, topic, 6, protocol)) == sorted(written), (name, protocol)


# -- administrators --------------------------------------------------------------------------------------------------


@pytest.fixture(params=[CLASSIC, CONSUMER])
def with_member(
    request: pytest.FixtureRequest, bootstrap: str, client_of: ClientOf, topic: str, group: str
) -> Iterator[str]:
    """Yields the group's protocol while it has one member."""
    client_of("confluent-kafka").write(topic, [Record(b"x", partition=at % 2) for at in range(10)])
    with member(bootstrap, group, topic, request.param) as consumer:
        assert len(read_and_commit(consumer, topic, 10)) == 10
        yield str(request.param)


@pytest.mark.parametrize("name", ADMINS)
def test_a_group_with_a_member(user_of: UserOf, topic: str, group: str, name: str, with_member: str) -> None:
    admin = user_of(name)
    assert admin.groups()[group] in ("Stable", None)
    if with_member == CONSUMER and name in ("aiokafka", "kafka-python"):
        pytest.skip("this library does not know how to describe a group of the consumer protocol")
    found = admin.describe(group)
    assert found.state == "Stable"
    everything = frozenset({(topic, 0), (topic, 1)})
    assert [(client_id, host.lstrip("/"), assigned) for client_id, host, assigned in found.members] == [
        ("ottla-group", "127.0.0.1", everything)
    ]
    assert admin.offsets(group) == {(topic, 0): 5, (topic, 1): 5}


@pytest.mark.parametrize("name", CHANGERS)
def test_what_a_group_with_a_member_refuses(
    user_of: UserOf, topic: str, group: str, name: str, with_member: str
) -> None:
    admin = user_of(name)
    assert refusal_of(lambda: admin.delete_group(group)) is ErrorCode.non_empty_group
    assert refusal_of(lambda: admin.alter_offsets(group, {(topic, 0): 1})) is ErrorCode.unknown_member_id
    if admin.can_delete_offsets:
        assert refusal_of(lambda: admin.delete_offsets(group, topic, 0)) is ErrorCode.group_subscribed_to_topic
    assert admin.offsets(group) == {(topic, 0): 5, (topic, 1): 5}


@pytest.mark.parametrize("name", CHANGERS)
def test_the_life_of_a_group(user_of: UserOf, write_more: WriteMore, topic: str, group: str, name: str) -> None:
    """Offsets of a group that never had a member; then a member that resumes from them; then its deletion."""
    admin = user_of(name)
    written = write_more(10)
    admin.alter_offsets(group, {(topic, 0): 3, (topic, 1): 4})
    assert admin.groups()[group] in ("Empty", None)
    assert admin.offsets(group) == {(topic, 0): 3, (topic, 1): 4}
    expected = [*written[0::2][3:], *written[1::2][4:]]
    assert sorted(user_of("confluent-kafka").consume(group, topic, len(expected))) == sorted(expected)
    assert admin.describe(group).state == "Empty"
    assert admin.offsets(group) == {(topic, 0): 5, (topic, 1): 5}
    if admin.can_delete_offsets:
        admin.delete_offsets(group, topic, 1)
        assert admin.offsets(group) == {(topic, 0): 5}
    admin.delete_group(group)
    assert group not in admin.groups()
    assert refusal_of(lambda: admin.delete_group(group)) is ErrorCode.group_id_not_found


@pytest.mark.parametrize("name", REMOVERS)
def test_offsets_of_a_group_that_is_not_there(user_of: UserOf, topic: str, group: str, name: str) -> None:
    assert refusal_of(lambda: user_of(name).delete_offsets(group, topic, 0)) is ErrorCode.group_id_not_found


@pytest.mark.parametrize("name", CHANGERS)
def test_offsets_of_a_topic_that_is_not_there(user_of: UserOf, topic: str, group: str, name: str) -> None:
    refusal = refusal_of(lambda: user_of(name).alter_offsets(group, {(f"{topic}-not", 0): 1}))
    assert refusal is ErrorCode.unknown_topic_or_partition


def refusal_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(RefusedByBroker) as caught:
        call()
    return caught.value.error
