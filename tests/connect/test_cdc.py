"""A database changes at random while connectors and brokers are killed: the replica equals the source, row by row.

`python -m tests.connect.cdc` does the same with a million changes, and with tables built by the pipeline.
"""

from __future__ import annotations

from pathlib import Path

from tests.connect import cdc


def test_killed_connectors_leave_a_replica_that_equals_the_source(tmp_path: Path, seed: int) -> None:
    with cdc.world(tmp_path) as world:
        report = cdc.run(world, changes=6_000, seed=seed, kill_every_s=3.0, kills_min=2)
    assert report.changes >= 6_000
    assert report.kills >= 2


def test_killed_brokers_do_not_either(tmp_path: Path, seed: int) -> None:
    with cdc.world(tmp_path, broker_count=3) as world:
        report = cdc.run(world, changes=4_000, seed=seed, kill_every_s=3.0, broker_kills_min=2)
    assert report.changes >= 4_000
    assert report.broker_kills >= 2
