"""Rare branches are counted where they are taken, and a simulation may look on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla import reach


@pytest.fixture
def taken() -> Iterator[reach.Branch]:
    declared = reach.branch("a branch of this test", __name__)
    yield declared
    del reach.BRANCHES[declared.name]


def test_a_branch_is_counted(taken: reach.Branch) -> None:
    taken()
    taken()
    assert reach.counts()[taken.name] == 2
    reach.reset()
    assert reach.counts()[taken.name] == 0


def test_a_name_is_declared_once(taken: reach.Branch) -> None:
    with pytest.raises(ValueError, match="declared in"):
        reach.branch(taken.name, "elsewhere")


def test_an_observer_sees_each_branch_that_is_taken(taken: reach.Branch) -> None:
    seen: list[str] = []
    reach.observe(lambda each: seen.append(each.name))
    taken()
    reach.observe(None)
    taken()
    assert seen == [taken.name]
