"""One run: inject faults, settle, check."""

from __future__ import annotations

import random
import time
from pathlib import Path

from ottla.wal import SyncLog
from tests.connect.sqlite.judging import Verdict, judge
from tests.connect.sqlite.world import LOG, World


def run(directory: Path, seed: int, transactions: int, *, brokers: int = 3, points: int = 50) -> tuple[Verdict, str]:
    begun_s = time.monotonic()
    world = World(directory, seed, transactions, brokers)
    try:
        world.torment()
        last = world.settle()
        with SyncLog.open(world.wal_servers, LOG) as log:
            verdict = judge(log, world.database, world.records.read(), last, random.Random(seed), points)
    except BaseException:
        print(world.log()[-4000:])
        raise
    finally:
        world.end()
    kills = ", ".join(f"{count} of a {name}" for name, count in world.kills.items())
    summary = (
        f"seed {seed}: {world.setting}; kills: {kills}; {world.connector_starts} starts of the connector; "
        f"{verdict.transactions} transactions and {verdict.snapshots} snapshots in {verdict.generations} generations; "
        f"{verdict.restored} restored and alike; {time.monotonic() - begun_s:.0f} s"
    )
    return verdict, summary
