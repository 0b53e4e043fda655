"""Seeds of `HarshLogRun`: logs on a bad disk keep what they acknowledged.

To repeat one seed: `python -m tests.simulation.campaign --kind log --replay SEED`.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.harsh_log_run import HarshLogRun
from tests.simulation.state_faults import SEEDS_FROM

SEEDS = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 15, 5)
PINNED = (210_185, 210_224)
"""Each found a bug: a truncation that synced a segment again whose sync had failed; rescued records that were replayed
before the journal had filled the log up to them."""


@pytest.mark.parametrize(
    "seed", sorted({*range(SEEDS_FROM, SEEDS_FROM + SEEDS), *PINNED}), ids=lambda seed: f"seed-{seed}"
)
def test_logs_on_a_bad_disk_keep_what_they_acknowledged(seed: int) -> None:
    HarshLogRun(seed).execute()
