"""etcd and ZooKeeper stopped and killed while clients use them, and an etcd cluster that loses its leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.coordination.etcd.endpoints import Endpoints, unary
from ottla.coordination.port import Coordination, Lease, Put, Snapshot, UnavailableError
from ottla.protocol.wire.protobuf_messages import Message, integer, message
from ottla.testing.ports import reserve_ports
from tests.conformance.coordination.appending import KEY, Appender, Ledger, check_watched, until_committed
from tests.conformance.coordination.reading import reader_of
from tests.conformance.coordination.servers import (
    EtcdServer,
    ServerProcess,
    ZookeeperServer,
    etcd_cluster,
    running,
    why_no_etcd,
    why_no_zookeeper,
)
from tests.conformance.coordination.stores import Place

CLIENTS = 3
WORDS = 15


def place_of(servers: Sequence[ServerProcess]) -> Place:
    kind = "etcd" if isinstance(servers[0], EtcdServer) else "zookeeper"
    return Place(kind, ",".join(server.address for server in servers))


@pytest.fixture(params=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A separate server for each test."""
    if reason := why_no_etcd() if request.param == "etcd" else why_no_zookeeper():
        pytest.skip(reason)
    made: ServerProcess
    if request.param == "etcd":
        (made,) = etcd_cluster(tmp_path, 1)
    else:
        made = ZookeeperServer(tmp_path, *reserve_ports(1))
    with running([made]):
        yield made


@asynccontextmanager
async def clients_at_work(place: Place, request_timeout_ms: int = 5000) -> AsyncIterator[Ledger]:
    """Checks at the end that nothing is lost, repeated or missed by a watch."""
    clients = [await place.client(request_timeout_ms) for _ in range(CLIENTS)]
    ledger = Ledger()
    async with reader_of(clients[0], KEY) as reader:
        appenders = [Appender(client, f"client-{number}", ledger) for number, client in enumerate(clients)]
        await until_committed(ledger, WORDS)
        yield ledger
        await until_committed(ledger, WORDS)
        for appender in appenders:
            await appender.stop()
        entry = await clients[1].get(KEY)
        assert entry is not None
        await reader.until_revision(entry.version)
    for client in clients:
        await client.close()
    ledger.check(entry)
    check_watched(reader.batches, entry)


@pytest.mark.parametrize("end", [ServerProcess.stop, ServerProcess.kill], ids=["stopped", "killed"])
async def test_a_server_is_started_again(
    server: EtcdServer | ZookeeperServer, end: Callable[[ServerProcess], None]
) -> None:
    async with clients_at_work(place_of([server])) as ledger:
        await asyncio.to_thread(end, server)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(server.start)
    assert ledger.unknown or ledger.refused, "nobody noticed"


async def test_a_lease_survives_a_short_restart(server: ServerProcess) -> None:
    client = await place_of([server]).client(request_timeout_ms=1000)
    lease = await client.open_lease(40_000)
    await client.commit([], [Put("mine", b"value", lease.id)])
    await asyncio.to_thread(server.kill)
    with pytest.raises(UnavailableError):
        await lease.renew()
    await asyncio.to_thread(server.start)
    while not await renewed(lease):
        continue
    assert (await answered(client)).entries[0].lease == lease.id
    await client.close()


async def answered(client: Coordination) -> Snapshot:
    """Retries, since a server that has just started may still drop a connection."""
    while True:
        try:
            return await client.snapshot()
        except UnavailableError:
            await asyncio.sleep(0.1)


async def renewed(lease: Lease) -> bool:
    """Returns False if there was no reply."""
    try:
        assert await lease.renew(), "the lease is lost"
    except UnavailableError:
        return False
    return True


@dataclass
class MemberHeader(Message):
    member_id: int = integer(2)


@dataclass
class StatusResponse(Message):
    header: MemberHeader = message(1, MemberHeader)  # noqa: RUF009  # it creates the field
    leader: int = integer(4)


async def leader_of(members: list[EtcdServer]) -> EtcdServer:
    while True:
        for member in members:
            endpoints = Endpoints([member.address], None, 1.0)
            try:
                status = await endpoints.send(unary("/etcdserverpb.Maintenance/Status", Message(), StatusResponse))
            except UnavailableError:
                continue
            finally:
                await endpoints.close()
            if status.leader == status.header.member_id:
                return member
        await asyncio.sleep(0.1)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[EtcdServer]]:
    if reason := why_no_etcd():
        pytest.skip(reason)
    made = etcd_cluster(tmp_path, 3)
    with running(made):
        yield made


async def test_three_members_lose_their_leader(members: list[EtcdServer]) -> None:
    """A renewed lease survives: no member ends it early."""
    place = place_of(members)
    owner = await place.client()
    lease = await owner.open_lease(2000)
    await owner.commit([], [Put("mine", b"value", lease.id)])
    keeping = asyncio.create_task(keep(lease))
    async with clients_at_work(place) as ledger:
        for _ in range(2):
            leader = await leader_of(members)
            await asyncio.to_thread(leader.kill)
            await until_committed(ledger, WORDS)
            await asyncio.to_thread(leader.start)
    assert ledger.unknown or ledger.refused, "nobody noticed"
    assert not keeping.done(), keeping.result()
    keeping.cancel()
    assert await owner.get("mine") is not None
    await owner.close()


async def keep(lease: Lease) -> None:
    while True:
        await renewed(lease)
        await asyncio.sleep(0.1)


async def test_three_members_with_a_leader_that_hangs(members: list[EtcdServer]) -> None:
    leader = await leader_of(members)
    async with clients_at_work(place_of(members), request_timeout_ms=1500) as ledger:
        leader.pause()
        await until_committed(ledger, WORDS)
        leader.resume()
