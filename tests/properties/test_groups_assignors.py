"""Assignors and their guarantees: every partition once, to subscribers, balanced, with the fewest possible moves."""

from __future__ import annotations

from itertools import product
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.machines.groups.assignors import AssignorInput, Target, assign_range, assign_uniform
from ottla.machines.groups.records import Assignment
from ottla.protocol.model.ids import TopicId

TOPICS = [TopicId(UUID(int=number)) for number in range(1, 4)]
MEMBERS = ["a", "b", "c", "d"]


@st.composite
def assignables(draw: st.DrawFn, *, alike: bool = False, partitions_max: int = 6) -> AssignorInput:
    counts = {topic: draw(st.integers(0, partitions_max)) for topic in TOPICS}
    members = draw(st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True))
    topics = st.frozensets(st.sampled_from(TOPICS))
    same = draw(topics)
    subscriptions = {member: same if alike else draw(topics) for member in members}
    # Also former members, topics without subscribers, and partitions that do not exist.
    owners = st.none() | st.sampled_from(MEMBERS)
    previous: dict[str, set[tuple[TopicId, int]]] = {}
    for topic, index in product(TOPICS, range(partitions_max + 1)):
        owner = draw(owners)
        if owner is not None:
            previous.setdefault(owner, set()).add((topic, index))
    return AssignorInput(subscriptions, counts, {member: frozenset(each) for member, each in previous.items()})


def check(what: AssignorInput, target: Target) -> None:
    assert target.keys() == what.subscriptions.keys()
    given_out = [each for assigned in target.values() for each in assigned]
    assert len(given_out) == len(set(given_out)), "each once"
    assert set(given_out) == set(what.partitions()), "and all of them"
    assert all(topic in what.subscriptions[member] for member, assigned in target.items() for topic, _ in assigned)


def retained(what: AssignorInput, target: Target) -> int:
    return sum(len(assigned & what.previous.get(member, frozenset())) for member, assigned in target.items())


@given(assignables())
def test_range(what: AssignorInput) -> None:
    target = assign_range(what)
    check(what, target)
    for member, assigned in target.items():
        for topic in TOPICS:
            row = sorted(index for each, index in assigned if each == topic)
            assert row == list(range(row[0], row[-1] + 1)) if row else True, (member, row)


@given(assignables(alike=True))
def test_uniform_for_equal_subscriptions(what: AssignorInput) -> None:
    target = assign_uniform(what)
    check(what, target)
    sizes = sorted(map(len, target.values()))
    assert sizes[-1] - sizes[0] <= 1
    valid = frozenset(what.partitions())
    least, extra = divmod(len(valid), len(target))
    had = [len(what.previous.get(member, frozenset()) & valid) for member in target]
    most = sum(min(size, least) for size in had) + min(extra, sum(size > least for size in had))
    assert retained(what, target) == most, "nothing moves that need not"
    again = AssignorInput(what.subscriptions, what.partition_counts, target)
    assert assign_uniform(again) == target


@settings(max_examples=60)
@given(assignables(partitions_max=2))
def test_uniform_for_different_subscriptions_is_as_balanced_as_can_be(what: AssignorInput) -> None:
    target = assign_uniform(what)
    check(what, target)
    assert unevenness(target) == least_unevenness(what)
    again = AssignorInput(what.subscriptions, what.partition_counts, target)
    assert assign_uniform(again) == target


def unevenness(target: Target) -> int:
    return sum(len(assigned) ** 2 for assigned in target.values())


def least_unevenness(what: AssignorInput) -> int:
    """Found by exhaustive search over the number of partitions of each member."""
    members = sorted(what.subscriptions)
    sizes = {(0,) * len(members)}
    for topic, _ in what.partitions():
        takers = [place for place, member in enumerate(members) if topic in what.subscriptions[member]]
        sizes = {tuple(size + (at == place) for at, size in enumerate(each)) for each in sizes for place in takers}
    return min(sum(size**2 for size in each) for each in sizes)


def test_the_brute_force_knows_the_answer() -> None:
    nobody: dict[str, Assignment] = {}
    what = AssignorInput({"a": frozenset(TOPICS[:1]), "b": frozenset(TOPICS[:2])}, {TOPICS[0]: 3, TOPICS[1]: 1}, nobody)
    assert least_unevenness(what) == 8
