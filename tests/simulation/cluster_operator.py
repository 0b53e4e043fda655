"""The operator of a simulated cluster: creates topics, moves replicas, and declares lost records as lost.

Operations may fail while brokers and links fail: the operator tries each once, and required ones are retried after the
faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from random import Random
from typing import Any

from ottla.client.admin.admin import Admin
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import ClientError, TopicExistsError
from ottla.client.producer.producer import Producer
from ottla.net.apis import ClientApi, call, open_connection
from ottla.net.connection import Address
from tests.simulation.cluster_clients import Clients
from tests.simulation.cluster_plan import ClusterPlan, PlannedTopic
from tests.simulation.violations import Violation

ELECT = ClientApi(43, "ElectLeaders", (2, 2))
REASSIGN = ClientApi(45, "AlterPartitionReassignments", (0, 0))
TIMEOUT = timedelta(seconds=5)
PREFERRED, UNCLEAN = 0, 1
CHURN = "sessions"
"""A topic that is created and deleted repeatedly."""


class Operator:
    def __init__(self, seed: int, servers: str, plan: ClusterPlan, clients: Clients) -> None:
        self._rng = Random(f"{seed}/operator")
        self._servers = servers
        self._plan = plan
        self._clients = clients
        self.done: Counter[str] = Counter()
        """Operations that succeeded."""
        self._created = 0
        """How often the recreated topic was requested; its records contain that number."""
        self._deleted = 0
        """The number of the last creation whose topic is certainly deleted."""

    async def create_topics(self) -> None:
        for topic in self._plan.topics:
            await self._create(topic)

    async def _create(self, topic: PlannedTopic) -> None:
        while True:
            try:
                async with self._admin() as admin:
                    await admin.create_topic(topic.name, **topic.settings())
            except TopicExistsError:
                return
            except ClientError:  # not all brokers are registered yet
                await asyncio.sleep(0.1)
            else:
                return

    async def work(self) -> None:
        """Runs all actions of the plan, each at its time or as soon as the previous ones are done."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for at_s, action in self._plan.actions:
            await asyncio.sleep(max(began_s + at_s - loop.time(), 0.0))
            try:
                async with asyncio.timeout(8):
                    await self._act(action)
            except (ClientError, TimeoutError):
                continue
            self.done[action] += 1

    async def _act(self, action: str) -> None:
        topic = self._rng.choice(self._plan.topics)
        match action:
            case "reassign":
                partition = self._rng.randrange(self._clients.partition_counts[topic.name])
                numbers = range(1, len(self._plan.brokers) + 1)
                await self._reassign(topic.name, partition, self._rng.sample(numbers, topic.factor))
            case "prefer leaders":
                await self._ask_controller(ELECT, {"election_type": PREFERRED, "topic_partitions": None})
            case "add partitions":
                total = self._clients.partition_counts[topic.name] + 1
                async with self._admin() as admin:
                    await admin.create_partitions(topic.name, total)
                self._clients.partition_counts[topic.name] = total
            case "create topic":
                await self._create_and_write()
            case "delete topic":
                created = self._created
                async with self._admin() as admin:
                    await admin.delete_topic(CHURN)
                self._deleted = created

    async def _create_and_write(self) -> None:
        self._created += 1
        async with self._admin() as admin:
            await admin.create_topic(CHURN, partitions=1, replication_factor=3)
        async with Producer(self._servers, delivery_timeout_ms=3000, request_timeout_ms=1000) as producer:
            for _ in range(3):
                await producer.send(CHURN, b"%d" % self._created, partition=0)

    async def check_deleted(self) -> None:
        """Checks that a deleted topic does not reappear, nor its records in a later topic of the same name."""
        async with self._admin() as admin:
            if CHURN not in [topic.name for topic in await admin.list_topics()]:
                return
        async with Consumer(self._servers, auto_offset_reset="earliest") as consumer:
            end = (await consumer.end_offsets([(CHURN, 0)]))[TopicPartition(CHURN, 0)]
            consumer.assign([(CHURN, 0)])
            found: list[int] = []
            while len(found) < end:
                found += [int(record.value or b"") for record in await consumer.fetch_records(100)]
        if found and min(found) <= self._deleted:
            raise Violation("deleted", f"{CHURN}: records of {found}, and {self._deleted} was deleted")

    async def _reassign(self, topic: str, partition: int, replicas: list[int]) -> None:
        target = {"partition_index": partition, "replicas": tuple(replicas)}
        await self._ask_controller(REASSIGN, {"topics": [{"name": topic, "partitions": [target]}]})

    async def give_up(self, places: Iterable[tuple[str, int]]) -> None:
        """Runs an unclean election of the remaining replicas; records that no replica has are lost."""
        named = [{"topic": topic, "partitions": (partition,)} for topic, partition in places]
        try:
            await self._ask_controller(ELECT, {"election_type": UNCLEAN, "topic_partitions": named})
        except ClientError:
            return

    def _admin(self) -> Admin:
        return Admin(self._servers, connect_timeout_ms=1000, request_timeout_ms=5000)

    async def _ask_controller(self, api: ClientApi, body: dict[str, Any]) -> Any:
        async with self._admin() as admin:
            cluster = await admin.describe_cluster()
        connection = await open_connection(
            Address(f"broker-{cluster.controller_id}", 9092)
            if cluster.controller_id > 0
            else Address("broker-1", 9092),
            client_id="operator",
            software_version="1",
            connect_timeout_ms=1000,
            request_timeout_ms=5000,
        )
        try:
            return await call(connection, api, {"timeout": TIMEOUT, **body}, what="asking the controller")
        finally:
            connection.end()
