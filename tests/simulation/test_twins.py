"""Compiled code and its plain Python twin make the same run: every packet, every write and every state of a cluster.

A run's digest covers its packets, disk operations and steps, so a reply that differs in one byte, or that is sent one
iteration of the event loop later, changes it.
"""

from __future__ import annotations

import pytest

from ottla.broker.api import fetch, produce, replica_fetch_fast_path
from ottla.broker.partition.pending_reply import PendingReply, PlainPendingReply
from ottla.broker.server import connection
from tests.simulation.cluster_run import ClusterRun

SEEDS = range(6)
WITH_PENDING_REPLIES = (fetch, produce, replica_fetch_fast_path, connection)

pytestmark = pytest.mark.skipif(PendingReply is PlainPendingReply, reason="the extensions are not built")


def digest_of(seed: int) -> str:
    run = ClusterRun(seed)
    run.world.trace.start()
    run.execute()
    run.check()
    return run.world.trace.digest


@pytest.mark.parametrize("seed", SEEDS)
def test_the_twins_make_the_same_run(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = digest_of(seed)
    monkeypatch.setattr(replica_fetch_fast_path, "ReplicaLink", replica_fetch_fast_path.PlainReplicaLink)
    for module in WITH_PENDING_REPLIES:
        monkeypatch.setattr(module, "PendingReply", PlainPendingReply)
    assert digest_of(seed) == compiled
