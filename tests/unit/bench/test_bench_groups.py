"""The benchmark's group members join and get replies to their heartbeats, in both protocols."""

from __future__ import annotations

import os

import pytest

from ottla.bench import groups
from ottla.bench.calls import Caller
from ottla.bench.group_members import ClassicMember, Group, LatencyRecorder, MemberRefusedError, connect
from ottla.protocol.model.errors import ErrorCode
from ottla.testing import Cluster


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_what_is_measured(protocol: str) -> None:
    with Cluster() as cluster:
        port = int(cluster.bootstrap_servers.rpartition(":")[2])
        with Caller(port) as caller:
            caller.create_topics([groups.TOPIC], 2, {})
        found = dict(groups.drive(port, os.getpid(), protocol, 2, 2, 1.0))
    joined, *others = found.values()
    assert joined["seconds"] > 0
    assert [case.partition(" ")[0] for case in found] == ["2", "a", "and", "heartbeats,", "commits,"]
    assert all(figures["requests_per_s"] > 0 for figures in others)
    assert all(0 < figures["p50_us"] <= figures["p99_us"] for figures in others)


async def test_a_refusal_is_no_heartbeat() -> None:
    with Cluster() as cluster:
        connection = await connect(int(cluster.bootstrap_servers.rpartition(":")[2]))
        stranger = ClassicMember(Group("g", "t"), connection)
        stranger.member_id, stranger.generation = "m", 1
        stranger.prepare()
        assert await stranger.beat() is not ErrorCode.none
        assert await stranger.commit() is ErrorCode.unknown_topic_or_partition
        with pytest.raises(MemberRefusedError):
            await LatencyRecorder().time(stranger.beat())
        stranger.close()
