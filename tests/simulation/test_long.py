"""Seeds of `LongRun`: logs that roll, expire, are compacted and trimmed lose nothing that they must keep.

One seed again: `python -m tests.simulation.campaign --kind long --replay SEED`.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from ottla.protocol.model.durability import Durability
from tests.simulation.cluster_plan import RunOptions
from tests.simulation.long_plan import ACTIONS, drawn_plan
from tests.simulation.long_run import LongRun
from tests.simulation.state_faults import SEEDS_FROM

COUNT = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 80, 2)
SEEDS = (*range(COUNT), *range(SEEDS_FROM, SEEDS_FROM + COUNT))
"""Half of them have topics of the class `memory` and all faults that states trigger."""
PINNED = (3, 10, 37, 44, 210_043)
"""Each found a bug: a lookup by time that answered with the timestamp of a deleted record, where a log starts in the
middle of a batch; a replica that could not begin with a log that starts there; a segment that retention removed while
it was still written (twice); a replica that had diverged below such a start, and could not begin there either."""


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in sorted({*SEEDS, *PINNED})])
def test_long_logs_keep_what_they_must(seed: int) -> None:
    run = LongRun(seed)
    run.execute()
    run.check()


def test_everything_is_drawn() -> None:
    plans = [drawn_plan(seed, RunOptions()) for seed in range(100)]
    actions = Counter(action for plan in plans for _, action in plan.actions)
    assert min(actions[action] for action in ACTIONS) >= 20
    assert any(len(plan.topics) == 4 for plan in plans)
    later = [drawn_plan(SEEDS_FROM + seed, RunOptions()) for seed in range(20)]
    assert any(topic.durability is Durability.MEMORY for plan in later for topic in plan.topics)
