"""What a partition does when it gets another role."""

from __future__ import annotations

from ottla.machines.replication import LeaderReplication
from tests.support.sim_broker import BrokerBench


async def test_a_leader_drops_epochs_to_come_before_it_notes_its_own() -> None:
    """An epoch that nobody has led in is corrupt. Followers compare their history with this leader's epoch."""
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t")
    await bench.produce("t")
    partition = bench.partition("t")
    partition.log.epochs.note(99, 1)
    leading = LeaderReplication(
        partition.placement.leader,
        [partition.placement.leader],
        {partition.placement.leader: 1},
        min_in_sync=1,
        high_watermark=2,
        end=2,
        acknowledged_end=2,
        lag_max_ms=1000.0,
        now_ms=0.0,
        acknowledges_by_fetch=False,
    )
    partition.lead(leading, 7)
    assert list(partition.log.epochs)[-1] == (7, 2)
    assert partition.log.epochs.latest == 7
    await bench.stop()
