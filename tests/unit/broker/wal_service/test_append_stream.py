"""The append stream and `ottla.wal`, one thing at a time, on brokers inside this process."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

import pytest

from ottla.broker.cluster.membership import MembershipEvents
from ottla.broker.metrics.coordination import MeteredLease
from ottla.client import Admin, Producer
from ottla.coordination.held_lease import HeldLease
from ottla.protocol.wire.wal_calls import ReadReply, decode_read_reply
from ottla.testing import Cluster
from ottla.wal import (
    FencedError,
    InvalidRequestError,
    Log,
    LogClosedError,
    LogNotFoundError,
    LogSettings,
    SyncLog,
    TooLargeError,
    TooMuchInFlightError,
    TrimmedError,
    UnavailableError,
    UnexpectedEndError,
    reader,
)
from ottla.wal.values import Limits

SHORT = Limits(patience_s=0.5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(wal=True, storage="memory") as running:
        yield running


@pytest.fixture
def servers(cluster: Cluster) -> str:
    return cluster.wal_servers


async def test_appends_have_the_offsets_of_their_order(servers: str) -> None:
    async with await Log.open(servers, "order", create=LogSettings()) as log:
        offsets = await asyncio.gather(*(log.append(b"%d" % number) for number in range(3000)))
        assert offsets == list(range(3000))
        assert await log.append_many([b"a", b"b", b"c"]) == range(3000, 3003)
        entries = [entry async for entry in log.read(2998)]
        assert [(entry.offset, entry.data) for entry in entries] == [
            (2998, b"2998"),
            (2999, b"2999"),
            (3000, b"a"),
            (3001, b"b"),
            (3002, b"c"),
        ]
        assert [entry.data async for entry in log.read(1, 3)] == [b"1", b"2"]


@pytest.mark.parametrize("durability", ["memory", "disk"])
async def test_a_read_of_one_record_sends_no_other(
    servers: str, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search by bisection reads one record at a time, each of which may be followed by megabytes."""
    replies: list[bytes] = []

    def recorded(message: bytes) -> ReadReply:
        replies.append(message)
        return decode_read_reply(message)

    monkeypatch.setattr(reader, "decode_read_reply", recorded)
    async with await Log.open(servers, f"one-{durability}", create=LogSettings(durability=durability)) as log:
        for number, size in enumerate([10, 200_000, 10, 90_000, 90_000, 10, 10]):
            await log.append(b"%d" % number * size)
        for number, size in enumerate([10, 200_000, 10, 90_000, 90_000, 10, 10]):
            replies.clear()
            assert [entry.data async for entry in log.read(number, number + 1)] == [b"%d" % number * size]
            assert sum(map(len, replies)) < size + 200
        assert [entry.offset async for entry in log.read(1, 6)] == [1, 2, 3, 4, 5]


async def test_cuts_lose_nothing_and_double_nothing(servers: str, seed: int) -> None:
    """Far more is in flight at each cut than the five batches that Kafka would remember."""
    chance = random.Random(seed)
    log = await Log.open(servers, "cuts", create=LogSettings(), acks="all")
    futures: list[asyncio.Future[int]] = []
    resumed = 0
    for _ in range(40):
        for _ in range(chance.randrange(1, 15)):
            futures += [log.append(b"%d" % (len(futures) + place)) for place in range(chance.randrange(1, 20))]
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        channel = log._leaders._channel
        if channel is not None:
            await asyncio.sleep(chance.random() * 0.004)
            resumed += not all(future.done() for future in futures)
            channel.abort()
    offsets = await asyncio.gather(*futures)
    assert offsets == sorted(offsets)
    found = [(entry.offset, entry.data) async for entry in log.read(0)]
    await log.close()
    assert found == [(offset, b"%d" % number) for number, offset in enumerate(offsets)]
    assert resumed > 3, "nothing was in flight at any cut: nothing was tested"


async def test_conditional_appends(servers: str) -> None:
    async with await Log.open(servers, "conditional", create=LogSettings()) as log:
        assert await log.append(b"first", expected_end=0) == 0
        with pytest.raises(UnexpectedEndError) as refused:
            await log.append(b"again", expected_end=0)
        assert refused.value.end == 1
        # A pipeline of them: one that is refused does not stop those behind it.
        outcomes = await asyncio.gather(
            log.append(b"1", expected_end=1),
            log.append(b"no", expected_end=1),
            log.append(b"2", expected_end=2),
            log.append_many([b"3", b"4"], expected_end=3),
            return_exceptions=True,
        )
        assert outcomes[0] == 1
        assert isinstance(outcomes[1], UnexpectedEndError)
        assert list(outcomes[2:]) == [2, range(3, 5)]
        assert [entry.data async for entry in log.read(0)] == [b"first", b"1", b"2", b"3", b"4"]


async def test_a_fence_shuts_earlier_writers_out(servers: str) -> None:
    shared = await Log.open(servers, "fences", create=LogSettings())
    await shared.append(b"shared")
    first = await Log.open(servers, "fences", fence=True)
    assert first.fence_offset == 1
    assert (await first.tail()).epoch == first.epoch
    with pytest.raises(FencedError) as fenced:
        await shared.append(b"no")
    assert fenced.value.epoch == first.epoch
    await first.append(b"first")
    second = await Log.open(servers, "fences", fence=True)
    await second.append(b"second")
    with pytest.raises(FencedError):
        await first.append(b"no")
    with pytest.raises(FencedError):  # at once: this handle is done
        first.append(b"no")
    assert [entry.data async for entry in second.read(0)] == [b"shared", b"first", b"second"]
    for log in (shared, first, second):
        await log.close()


async def test_trimming_and_following(servers: str) -> None:
    log = await Log.open(servers, "trimmed", create=LogSettings())
    await asyncio.gather(*(log.append(b"%d" % number) for number in range(10)))
    assert await log.trim(6) == 6
    assert (await log.tail())[:2] == (6, 10)
    with pytest.raises(TrimmedError) as trimmed:
        [entry async for entry in log.read(0)]
    assert trimmed.value.start == 6
    with pytest.raises(InvalidRequestError):
        await log.trim(1000)
    seen: list[bytes] = []

    async def follow() -> None:
        async for entry in log.follow(8):
            seen.append(entry.data)
            if len(seen) == 5:
                return

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0.05)
    for number in range(10, 13):
        await log.append(b"%d" % number)
    await asyncio.wait_for(following, 20)
    assert seen == [b"8", b"9", b"10", b"11", b"12"]
    await log.close()


async def test_what_cannot_be(servers: str) -> None:
    with pytest.raises(LogNotFoundError):
        await Log.open(servers, "nowhere")
    with pytest.raises(ValueError, match="host:port"):
        await Log.open("nonsense", "nowhere")
    with pytest.raises(UnavailableError, match=r"within 0\.5 s"):
        await Log.open("127.0.0.1:1", "nowhere", limits=SHORT)
    log = await Log.open(servers, "limits", create=LogSettings(), limits=Limits(in_flight_bytes_max=10_000))
    with pytest.raises(TypeError):
        log.append("text")  # type: ignore[arg-type] # that is the point
    with pytest.raises(TooLargeError):
        await log.append(bytes(2 << 20))
    with pytest.raises(TooLargeError):
        log.append(bytes(20 << 20))
    log.append(bytes(9_900))
    with pytest.raises(TooMuchInFlightError):
        log.append(b"one more")
    await log.ready()
    assert await log.append(b"one more") == 1
    await log.close()
    with pytest.raises(LogClosedError):
        log.append(b"after the end")


def test_the_same_for_threads(servers: str) -> None:
    with SyncLog.open(servers, "threads", create=LogSettings(), fence=True) as log:
        assert log.fence_offset == 0
        futures = [log.append(b"%d" % number) for number in range(500)]
        assert [future.result(20) for future in futures] == list(range(1, 501))
        assert log.append_many([b"x", b"y"]) == range(501, 503)
        assert [entry.data for entry in log.read(499)] == [b"498", b"499", b"x", b"y"]
        following = log.follow(502)
        assert next(following).data == b"y"
        following.close()  # type: ignore[attr-defined] # a generator
        assert log.trim(10) == 10
        assert log.tail().start_offset == 10


async def test_an_epoch_outlives_restarts_of_a_log_on_disk() -> None:
    with Cluster(wal=True) as cluster:
        log = await Log.open(cluster.wal_servers, "kept", create=LogSettings(durability="disk"), fence=True)
        first = await log.append(b"before")
        await asyncio.to_thread(cluster.kill)
        waiting = log.append(b"meanwhile")
        await asyncio.to_thread(cluster.start)
        assert await waiting == first + 1
        await asyncio.to_thread(cluster.restart)
        assert await log.append(b"after") == first + 2
        assert (await log.tail()).epoch == log.epoch
        newer = await Log.open(cluster.wal_servers, "kept", fence=True)
        assert (newer.epoch or 0) > (log.epoch or 0)
        with pytest.raises(FencedError):
            await log.append(b"too late")
        await log.close()
        await newer.close()


@pytest.mark.parametrize("durability", ["memory", "disk"])
@pytest.mark.parametrize("configs", [{}, {"message.timestamp.type": "LogAppendTime"}], ids=["created", "appended"])
async def test_times_never_go_back(cluster: Cluster, servers: str, durability: str, configs: dict[str, str]) -> None:
    """The leader before had a clock that is ahead: its record is there already."""
    name = f"times-{durability}-{len(configs)}"
    ahead_ms = time.time_ns() // 1_000_000 + 1_800_000
    log = await Log.open(servers, name, create=LogSettings(durability=durability))
    async with Producer(cluster.bootstrap_servers) as producer:
        await producer.send(name, b"of a fast clock", timestamp_ms=ahead_ms)
    async with Admin(cluster.bootstrap_servers) as admin:
        await admin.alter_configs(name, set_values=configs)
    await log.append(b"unfenced")
    await log.close()
    async with await Log.open(servers, name, fence=True) as fenced:
        await fenced.append_many([b"a", b"b"])
        times = [entry.timestamp_ms async for entry in fenced.read(0)]
    assert times == [ahead_ms] * 4


class Losses(MembershipEvents):
    def __init__(self) -> None:
        self.count = 0

    def on_lease_lost(self) -> None:
        self.count += 1


async def test_an_append_after_the_end_of_a_lease_finds_no_leader() -> None:
    """Its timer has not come yet, as after a pause. The broker comes back, and the record is written once."""
    losses = Losses()
    with Cluster(brokers=2, wal=True, storage="memory") as cluster:
        async with await Log.open(cluster.wal_servers, "leases", create=LogSettings(replicas=1), acks="leader") as log:
            assert await log.append(b"before") == 0
            leader = cluster.leader_of("leases")
            running = cluster._threads[leader or 0].running
            assert running is not None
            assert running.broker.cluster is not None
            membership = running.broker.cluster.membership
            membership.events.append(losses)
            assert isinstance(membership.lease, MeteredLease)
            assert isinstance(membership.lease._lease, HeldLease)
            membership.lease._lease.deadline_ms = 0.0
            assert await log.append(b"after") == 1
            assert losses.count == 1


async def test_writers_wait_while_the_backlog_is_full() -> None:
    """All of them together have many times as much in flight as the broker takes."""
    with Cluster(wal=True, config={"ottla.unacknowledged.max.bytes": str(1 << 20)}) as cluster:
        logs = [await Log.open(cluster.wal_servers, f"log-{n}", create=LogSettings(), acks="all") for n in range(6)]
        appends = [[log.append(bytes(100_000)) for _ in range(30)] for log in logs]
        for each in appends:
            assert await asyncio.gather(*each) == list(range(30))
        for log in logs:
            await log.close()

        _, broker = cluster._any()
        assert broker.backlog.waits > 0
