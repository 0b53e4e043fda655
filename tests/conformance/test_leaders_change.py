"""The leader is killed or restarted in order while one client writes and another reads: both continue by themselves,
and acknowledged records are present once and in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ottla.bench.leaders import leader_of, wait_until_in_sync
from ottla.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import Ability, Client, Record
from tests.conformance.conftest import LEADERS_MOVE, NAMES, ClientOf, TopicOf, World
from tests.conformance.records import contents

pytestmark = pytest.mark.worlds(LEADERS_MOVE)

RECORDS = 600
PAUSES_MS = (8, 32, 128)
DOWN_S = 0.3


def restart(broker: BrokerProcess) -> None:
    assert broker.stop(40) == 0


FAULTS: dict[str, Callable[[BrokerProcess], None]] = {"killed": BrokerProcess.kill, "restarted": restart}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_the_leader_goes_in_mid_stream(
    client_of: ClientOf, fresh_topic: TopicOf, world: World, name: str, fault: str
) -> None:
    clients = client_of(name), client_of("kafka-python" if name == "confluent-kafka" else "confluent-kafka")
    for pause_ms in PAUSES_MS:
        if lose_the_leader(world, clients, fresh_topic(fault), fault, pause_ms):
            return
    raise AssertionError("the writer was faster than the fault, however slowly it wrote")


def lose_the_leader(world: World, clients: tuple[Client, Client], topic: str, fault: str, pause_ms: int) -> bool:
    """Checks what is written and read across the fault. Returns False if the writer ended before the fault did.

    On a busy machine the fault takes seconds. Such a run is correct but shows nothing, so the caller repeats it with a
    slower writer.
    """
    assert world.cluster is not None
    client, other = clients
    client.create_topic(topic)
    other.write(topic, [Record(b"first")])
    records = [Record(b"%d" % number, b"key") for number in range(RECORDS)]
    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(client.write, topic, records, pause_ms=pause_ms)
        reading = threads.submit(other.read, topic, RECORDS + 1)
        wait_for_records(other if other.name == "confluent-kafka" else client, topic, RECORDS // 6)
        broker = world.cluster.broker(leader_of(world.bootstrap, topic)[0])
        try:
            FAULTS[fault](broker)
            time.sleep(DOWN_S)
            in_mid_stream = not writing.done()
        finally:  # other tests need the broker too
            if not broker.running:
                broker.start()
        offsets = writing.result(120)
        found = reading.result(120)
    expected = [Record(b"first"), *records]
    if Ability.OFFSETS_OF_WRITES in client.abilities:
        assert offsets == list(range(1, RECORDS + 1))
    assert contents(found) == expected
    assert contents(client.read(topic, RECORDS + 1)) == expected
    wait_until_in_sync(world.bootstrap, topic, world.replicas)
    return in_mid_stream


def wait_for_records(client: Client, topic: str, count: int) -> None:
    deadline = time.monotonic() + 30
    while client.ends(topic)[1] < count:
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.05)
