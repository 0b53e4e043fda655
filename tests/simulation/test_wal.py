"""Writers and fencing clients of logs under every kind of fault: `wal_run`.

To repeat one seed: `python -m tests.simulation.test_wal SEED`.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.simulation.wal_run import WalRun

SEEDS = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 40, 5)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_clients_saw_is_linearizable(seed: int) -> None:
    WalRun(seed).run()


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        run = WalRun(number)
        print(number, run.durability, [str(fault.kind.value) for fault in run.plan.faults], run.run())
