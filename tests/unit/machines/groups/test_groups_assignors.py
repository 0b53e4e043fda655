"""The assignment of partitions to members."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.machines.groups.assignors import AssignorInput, assign_range, assign_uniform
from ottla.machines.groups.records import Assignment
from ottla.protocol.model.ids import TopicId

A, B, C = (TopicId(UUID(int=number)) for number in (1, 2, 3))
NAMES = {"a": A, "b": B, "c": C}


def what(
    subscriptions: dict[str, str],
    counts: dict[TopicId, int],
    previous: dict[str, str] | None = None,
    instances: dict[str, str] | None = None,
) -> AssignorInput:
    return AssignorInput(
        {member: frozenset(NAMES[topic] for topic in topics) for member, topics in subscriptions.items()},
        counts,
        {member: parse(text) for member, text in (previous or {}).items()},
        instances or {},
    )


def parse(text: str) -> Assignment:
    """Parses "a0 a1 b0"."""
    return frozenset((NAMES[each[0]], int(each[1:])) for each in text.split())


def shown(target: dict[str, Assignment]) -> dict[str, str]:
    names = {topic_id: name for name, topic_id in NAMES.items()}
    return {
        member: " ".join(f"{names[topic]}{index}" for topic, index in sorted(assigned))
        for member, assigned in target.items()
    }


class TestRange:
    def test_rows_of_each_topic(self) -> None:
        found = assign_range(what({"x": "ab", "y": "ab"}, {A: 3, B: 4}))
        assert shown(found) == {"x": "a0 a1 b0 b1", "y": "a2 b2 b3"}

    def test_only_to_those_who_subscribe(self) -> None:
        found = assign_range(what({"x": "a", "y": "ab", "z": "b"}, {A: 3, B: 3}))
        assert shown(found) == {"x": "a0 a1", "y": "a2 b0 b1", "z": "b2"}

    def test_more_members_than_partitions(self) -> None:
        found = assign_range(what({"x": "a", "y": "a", "z": "a"}, {A: 2}))
        assert shown(found) == {"x": "a0", "y": "a1", "z": ""}

    def test_a_static_member_keeps_its_place_under_another_id(self) -> None:
        before = assign_range(what({"x": "a", "y": "a"}, {A: 4}, instances={"x": "i", "y": "k"}))
        after = assign_range(what({"z": "a", "y": "a"}, {A: 4}, instances={"z": "i", "y": "k"}))
        assert after["z"] == before["x"]


class TestUniform:
    def test_everybody_gets_as_much(self) -> None:
        found = assign_uniform(what({"x": "ab", "y": "ab", "z": "ab"}, {A: 4, B: 4}))
        assert sorted(map(len, found.values())) == [2, 3, 3]

    def test_each_topic_is_spread(self) -> None:
        found = assign_uniform(what({"x": "ab", "y": "ab"}, {A: 4, B: 4}))
        assert {sum(topic == A for topic, _ in assigned) for assigned in found.values()} == {2}

    def test_nobody_is_nothing(self) -> None:
        assert assign_uniform(what({}, {})) == {}

    def test_nothing_moves_without_a_reason(self) -> None:
        previous = {"x": "a0 a3", "y": "a1 a2"}
        assert shown(assign_uniform(what({"x": "a", "y": "a"}, {A: 4}, previous))) == previous

    def test_a_new_member_gets_no_more_than_its_share(self) -> None:
        previous = {"x": "a0 a1 a2", "y": "a3 a4 a5"}
        found = assign_uniform(what({"x": "a", "y": "a", "z": "a"}, {A: 6}, previous))
        assert all(found[member] <= parse(previous[member]) for member in "xy")
        assert sorted(map(len, found.values())) == [2, 2, 2]

    def test_the_one_more_stays_where_it_was(self) -> None:
        previous = {"x": "a0 a1", "y": "a2 a3 a4"}
        assert shown(assign_uniform(what({"x": "a", "y": "a"}, {A: 5}, previous))) == previous

    def test_whoever_is_gone_is_shared_out(self) -> None:
        previous = {"x": "a0 a1", "y": "a2 a3", "z": "a4 a5"}
        found = assign_uniform(what({"x": "a", "y": "a"}, {A: 6}, previous))
        assert all(parse(previous[member]) < found[member] for member in "xy")

    @pytest.mark.parametrize("counts", [{A: 2}, {B: 4}])
    def test_partitions_that_are_gone_are_nobodys(self, counts: dict[TopicId, int]) -> None:
        topics = "a" if A in counts else "b"
        found = assign_uniform(what({"x": topics, "y": topics}, counts, {"x": "a0 a2", "y": "a1 a3"}))
        assert sum(map(len, found.values())) == sum(counts.values())
        assert len(set().union(*found.values())) == sum(counts.values())

    def test_subscriptions_that_differ(self) -> None:
        found = assign_uniform(what({"x": "a", "y": "ab", "z": "b"}, {A: 3, B: 3}))
        assert sorted(map(len, found.values())) == [2, 2, 2]

    def test_a_chain_of_moves(self) -> None:
        """x can move partitions only to y, which then has too many."""
        previous = {"x": "a0 a1 a2", "y": "b0 b1", "z": ""}
        found = assign_uniform(what({"x": "a", "y": "ab", "z": "b"}, {A: 3, B: 2}, previous))
        assert sorted(map(len, found.values())) == [1, 2, 2]

    def test_nothing_moves_without_a_reason_if_they_differ(self) -> None:
        previous = {"x": "a0 a2", "y": "a1 b1", "z": "b0 b2"}
        assert shown(assign_uniform(what({"x": "a", "y": "ab", "z": "b"}, {A: 3, B: 3}, previous))) == previous
