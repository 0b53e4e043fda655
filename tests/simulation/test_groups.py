"""Seeds of `GroupsRun`: no fault of a cluster gives a partition two owners or loses a commit.

To repeat one seed: `python -m tests.simulation.campaign --groups --replay SEED`.
"""

from __future__ import annotations

import os
from time import perf_counter

import pytest

from tests.simulation.groups_commits import Commits
from tests.simulation.groups_run import GroupsRun
from tests.simulation.test_networked_broker import Rate, rate
from tests.simulation.violations import Violation

__all__ = ["rate"]

SEEDS = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 60, 4)
PINNED: tuple[int, ...] = ()
"""Each found a bug."""


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in sorted({*range(SEEDS), *PINNED})])
def test_groups_keep_their_members_and_their_offsets(seed: int, rate: Rate) -> None:
    run = GroupsRun(seed)
    begin_s = perf_counter()
    run.execute()
    rate.real_s += perf_counter() - begin_s
    rate.virtual_s += run.world.now_s
    rate.seeds += 1
    rate.records += run.acknowledged
    run.check()


def test_the_same_seed_is_the_same_run() -> None:
    digests = set()
    for _ in range(2):
        run = GroupsRun(1)
        run.world.trace.start()
        run.execute()
        digests.add(run.world.trace.digest)
    assert len(digests) == 1


# -- allowed results of a read ---------------------------------------------------------------------------------------


def three_commits() -> Commits:
    """Two commits acknowledged one after another, and one without a reply between them."""
    commits = Commits("g")
    commits.taken(commits.sent(1, 1, 1.0), 1.5)
    commits.sent(2, 1, 2.0)
    commits.taken(commits.sent(3, 1, 3.0), 3.5)
    return commits


@pytest.mark.parametrize("found", [3, 2])
def test_a_read_may_find_the_last_one_or_one_that_was_on_its_way(found: int) -> None:
    three_commits().read(found, 4.0)


@pytest.mark.parametrize("found", [None, 1, 7])
def test_a_read_never_finds_less(found: int | None) -> None:
    with pytest.raises(Violation, match="commits"):
        three_commits().read(found, 4.0)


def test_a_read_that_was_sent_before_may_find_what_was_there() -> None:
    three_commits().read(1, 3.2)


def test_a_commit_that_was_refused_is_not_there() -> None:
    commits = three_commits()
    commits.refused(commits.sent(4, 1, 5.0), 5.5)
    with pytest.raises(Violation, match="commits"):
        commits.read(4, 6.0)


def test_a_generation_that_is_over_commits_nothing() -> None:
    commits = three_commits()
    commits.taken(commits.sent(4, 2, 5.0), 5.5)
    late = commits.sent(5, 1, 6.0)
    with pytest.raises(Violation, match="fencing"):
        commits.taken(late, 6.5)
