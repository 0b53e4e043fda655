"""Ranges of offsets compared with sets of numbers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ottla.archive.ranges import OffsetRange, gaps, joined, overlaps, without
from ottla.client.consumer.types import TopicPartition
from ottla.spark.jobs.change_plan import plan_changes

AT = TopicPartition("orders", 0)


def ranges(size_max: int = 6) -> st.SearchStrategy[list[OffsetRange]]:
    ends = st.tuples(st.integers(0, 30), st.integers(0, 8))
    return st.lists(ends.map(lambda each: OffsetRange(each[0], each[0] + each[1])), max_size=size_max)


def numbers(many: list[OffsetRange]) -> set[int]:
    return {offset for each in many for offset in range(each.start, each.end)}


@given(ranges())
def test_joined_has_the_same_offsets_once(many: list[OffsetRange]) -> None:
    found = joined(many)
    assert numbers(found) == numbers(many)
    assert all(before.end < after.start for before, after in pairwise(found))


@given(ranges())
def test_gaps_and_overlaps_are_what_sets_say(many: list[OffsetRange]) -> None:
    counts = Counter(offset for each in many for offset in range(each.start, each.end))
    inside = set(range(min(counts), max(counts))) if counts else set()
    assert numbers(gaps(many)) == inside - counts.keys()
    assert numbers(overlaps(many)) == {offset for offset, count in counts.items() if count > 1}


@given(ranges(), ranges(1))
def test_without_is_the_difference(many: list[OffsetRange], whole: list[OffsetRange]) -> None:
    for each in whole:
        assert numbers(without(each, many)) == numbers([each]) - numbers(many)


@given(ranges(1), ranges(), ranges(1))
def test_each_change_is_read_once_or_reported(
    wanted: list[OffsetRange], archived: list[OffsetRange], live: list[OffsetRange]
) -> None:
    plan = plan_changes({AT: wanted[0]} if wanted else {}, {AT: archived}, {AT: live[0]} if live else {})
    from_archive, from_live = numbers(plan.archive.get(AT, [])), numbers(plan.live.get(AT, []))
    missing = numbers(plan.missing.get(AT, []))
    assert from_archive == numbers(wanted) & numbers(archived)
    assert from_live == (numbers(wanted) - numbers(archived)) & numbers(live)
    assert missing == numbers(wanted) - numbers(archived) - numbers(live)
