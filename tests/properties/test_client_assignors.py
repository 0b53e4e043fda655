"""The client's assignors: every partition is assigned once, evenly, and cooperative ones never create two owners."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.client.consumer.types import TopicPartition
from ottla.client.groups.assignors import ASSIGNORS, COOPERATIVE_STICKY, Assignments, assign
from ottla.client.groups.classic_formats import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.machines.groups.consumer_protocol import read_assignment, read_subscription

TOPICS = ("a", "b", "c")
ROUNDS_MAX = 6

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7))
partitions = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 7))
members = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(6)]),
    st.builds(
        MemberSubscription,
        st.frozensets(st.sampled_from(TOPICS)),
        st.frozensets(partitions, max_size=6),
        st.integers(-1, 3),
        st.sampled_from([None, "x", "y"]),
    ),
    min_size=1,
)
Members = dict[str, MemberSubscription]


def assignable(group: Members, sizes: dict[str, int]) -> set[TopicPartition]:
    topics = {topic for each in group.values() for topic in each.topics}
    return {TopicPartition(topic, index) for topic in topics for index in range(sizes.get(topic, 0))}


def check_once(given_out: Assignments, group: Members, wanted: set[TopicPartition]) -> None:
    everything = [at for each in given_out.values() for at in each]
    assert sorted(everything) == sorted(wanted)
    assert all(at.topic in group[member].topics for member, each in given_out.items() for at in each)
    assert set(given_out) == set(group)


@given(st.sampled_from([name for name in ASSIGNORS if name != COOPERATIVE_STICKY]), members, counts)
def test_everything_is_given_out_once(assignor: str, group: Members, sizes: dict[str, int]) -> None:
    check_once(assign(assignor, group, sizes), group, assignable(group, sizes))


@given(members, counts)
def test_cooperative_members_come_to_rest_without_two_owners(group: Members, sizes: dict[str, int]) -> None:
    """In each round, members own what they were assigned in the new generation."""
    generation = 4
    for _ in range(ROUNDS_MAX):
        given_out = assign(COOPERATIVE_STICKY, group, sizes)
        for member, each in given_out.items():
            had_by_others = {at for other, its in group.items() if other != member for at in its.owned}
            assert not (each - group[member].owned) & had_by_others
        at_rest = all(group[member].owned == each for member, each in given_out.items())
        group = {
            member: MemberSubscription(its.topics, frozenset(given_out[member]), generation, its.instance_id)
            for member, its in group.items()
        }
        generation += 1
        if at_rest:
            break
    check_once({member: set(each.owned) for member, each in group.items()}, group, assignable(group, sizes))
    assert {member: frozenset(each) for member, each in assign(COOPERATIVE_STICKY, group, sizes).items()} == {
        member: each.owned for member, each in group.items()
    }, "it does not stay as it is"


@given(st.integers(1, 6), st.integers(0, 20), st.integers(1, 6))
def test_a_new_member_gets_its_share_and_nothing_else_moves(before: int, size: int, joining: int) -> None:
    group = {f"m{number}": MemberSubscription(frozenset("a")) for number in range(before)}
    first = assign(COOPERATIVE_STICKY, group, {"a": size})
    later = {
        **{member: MemberSubscription(frozenset("a"), frozenset(each), 1) for member, each in first.items()},
        **{f"n{number}": MemberSubscription(frozenset("a")) for number in range(joining)},
    }
    second = assign(COOPERATIVE_STICKY, later, {"a": size})
    kept = sum(len(each) for each in second.values())
    least, extra = divmod(size, len(later))
    shares = sorted((len(each) for each in first.values()), reverse=True)
    may_keep = sum(min(share, least + (place < extra)) for place, share in enumerate(shares))
    assert kept == may_keep
    assert all(second[member] <= first[member] for member in first)


@given(st.frozensets(st.sampled_from(TOPICS)), st.frozensets(partitions), st.integers(-1, 2**31 - 1))
def test_what_members_write_is_read_by_coordinators_and_members(
    topics: frozenset[str], owned: frozenset[TopicPartition], generation: int
) -> None:
    mine = MemberSubscription(topics, owned, generation)
    data = encode_subscription(mine, rack="r1")
    assert decode_subscription(data) == mine
    theirs = read_subscription(data)
    assert theirs is not None
    assert (frozenset(theirs.topics), theirs.owned) == (topics, owned)
    assert (theirs.generation, theirs.rack_id) == (generation, "r1")
    assert decode_assignment(encode_assignment(owned)) == owned == read_assignment(encode_assignment(owned))
