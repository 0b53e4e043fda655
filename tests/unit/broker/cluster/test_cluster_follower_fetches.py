"""A leader's handling of follower fetches, sent by the test in the name of a stopped follower."""

from __future__ import annotations

from ottla.net.apis import open_connection
from ottla.net.connection import Address
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest
from ottla.protocol.wire.fetch_client import FetchResponse, encode_fetch_request, parse_fetch_response
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

FETCH, VERSION = 1, 17
TOPIC = "orders"


async def fetch_as(bench: ClusterBench, follower: int, leader: int, wanted: list[FetchPartition]) -> FetchResponse:
    """Fetches at most a byte, which the first batch exceeds."""
    broker = bench.broker(leader)
    topic = broker.topics.get(TOPIC)
    assert topic is not None
    registration = bench.cluster(leader).membership.image.registration(follower)
    assert registration is not None
    connection = await open_connection(
        Address(bench.name(leader), 9092),
        client_id="test",
        software_version="1",
        connect_timeout_ms=2000,
        request_timeout_ms=10_000,
    )
    request = FetchRequest(
        follower, 0, 1, 1, 0, 0, 0, [(topic.id, wanted)], [], replica_epoch=registration.member.broker_epoch
    )
    reply = await connection.request(FETCH, VERSION, [encode_fetch_request(VERSION, request)], what="fetching")
    connection.end()
    return parse_fetch_response(reply, VERSION)


def test_what_a_follower_has_counts_also_where_the_answer_has_no_room() -> None:
    with SimWorld(1) as world:
        bench = ClusterBench(world)
        bench.run(bench.create(TOPIC, partitions=4))
        for index in range(4):
            bench.until_in_sync(TOPIC, index)
            bench.run(bench.write(TOPIC, [b"1", b"2", b"3"], partition=index))
        leaders = [bench.leader(TOPIC, index) for index in range(4)]
        leader = next(number for number in leaders if leaders.count(number) > 1)
        first, second = [index for index in range(4) if leaders[index] == leader][:2]
        follower = next(number for number in bench.ids if number != leader)
        bench.kill(follower)
        epochs = {index: bench.partition(leader, TOPIC, index).leader_epoch for index in (first, second)}
        wanted = [
            FetchPartition(index, epochs[index], offset, epochs[index], 0, 1 << 20)
            for index, offset in ((first, 0), (second, 2))
        ]
        ((_, answers),) = bench.run(fetch_as(bench, follower, leader, wanted)).topics
        assert [bool(answer.records) for answer in answers] == [True, False]
        for index, end in ((first, 0), (second, 2)):
            leading = bench.partition(leader, TOPIC, index).leading
            assert leading is not None
            known = leading.follower(follower)
            assert known is not None
            assert known.end == end
