"""A cluster whose brokers encrypt and authenticate everything, also among themselves."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ottla.broker.app import BrokerSettings, RunningBroker, start_broker
from ottla.client import Admin, AuthenticationFailedError, Consumer, Producer
from ottla.net.security import SaslLogin
from ottla.protocol.model.group_keys import DEVELOPMENT_DEFAULTS
from ottla.protocol.model.listeners import ListenerTable, SecurityProtocol, parse_listeners
from tests.unit.broker.security.secured import client_security, tls_properties

WAIT_S = 60.0
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="of brokers";'
LISTENERS = {
    "listeners": "CLIENT://127.0.0.1:0,BROKER://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENT:SASL_SSL,BROKER:SASL_SSL",
    "inter.broker.listener.name": "BROKER",
}


async def start(directory: Path, number: int) -> RunningBroker:
    table = parse_listeners(LISTENERS)
    assert isinstance(table, ListenerTable)
    properties = {
        **DEVELOPMENT_DEFAULTS,
        **tls_properties(),
        "node.id": str(number),
        "ottla.coordination": f"sqlite:{directory / 'coordination'}",
        "ottla.host.shared": "true",
        "min.insync.replicas": "2",
        "listener.name.client.scram-sha-512.sasl.jaas.config": JAAS,
        "listener.name.broker.scram-sha-512.sasl.jaas.config": JAAS,
    }
    return await start_broker(
        BrokerSettings(data_dir=str(directory / str(number)), port=0, properties=properties, listeners=table)
    )


async def test_two_brokers_replicate_and_coordinate_over_secured_listeners(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), AsyncExitStack() as stack:
        brokers = []
        for number in (1, 2):
            broker = await start(tmp_path, number)
            stack.push_async_callback(broker.stop, 1.0)
            brokers.append(broker)
        bootstrap = brokers[0].bootstrap
        root = client_security(SecurityProtocol.SASL_SSL, login=SaslLogin("SCRAM-SHA-512", "broker", "of brokers"))
        alice = client_security(SecurityProtocol.SASL_SSL, login=SaslLogin("SCRAM-SHA-256", "alice", "of alice"))
        async with Admin(bootstrap, security=root) as admin:
            while len((await admin.describe_cluster()).brokers) < 2:  # noqa: ASYNC110 - a broker does not notify
                await asyncio.sleep(0.05)
            await admin.set_scram_password("alice", "of alice")
            await admin.create_topic("orders", partitions=2, replication_factor=2)
        # With min.insync.replicas=2, acks=all and a transaction need both brokers for each partition.
        async with (
            Producer(brokers[1].bootstrap, security=alice, transactional_id="t") as producer,
            producer.transaction(),
        ):
            for partition in (0, 1):
                await producer.send("orders", b"%d" % partition, partition=partition)
        found: set[bytes | None] = set()
        async with Consumer(
            bootstrap, security=alice, group_id="g", auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.subscribe(["orders"])
            while len(found) < 2:
                found |= {record.value for record in await consumer.fetch_records(10)}
        async with Admin(brokers[1].bootstrap, security=root) as admin:
            await admin.delete_scram_user("alice")
        for broker in brokers:  # every broker rejects a deleted user at once
            with pytest.raises(AuthenticationFailedError):
                async with Admin(broker.bootstrap, security=alice):
                    pass
