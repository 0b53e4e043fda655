"""Groups through the clients in pure Python: kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import kafka.errors
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.group import MemberAssignment
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import BrokerResponseError
from kafka.structs import OffsetAndMetadata

from tests.conformance.clients.group_interface import CLASSIC, SESSION_MS, Described, GroupUser, Offsets
from tests.conformance.clients.interface import TIMEOUT_S, RefusedByBroker


class KafkaPythonGroupUser(GroupUser):
    name = "kafka-python"

    def consume(self, group: str, topic: str, count: int, protocol: str = CLASSIC) -> list[bytes]:
        found: list[bytes] = []
        read_up_to: dict[TopicPartition, OffsetAndMetadata] = {}
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=self.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            fetch_max_wait_ms=100,
        )
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and (left_s := deadline - time.monotonic()) > 0:
            # Without a short timeout: a poll that ends during a rebalance discards the assignment that follows.
            for place, messages in consumer.poll(timeout_ms=int(left_s * 1000), max_records=count - len(found)).items():
                found += [message.value for message in messages]
                read_up_to[place] = OffsetAndMetadata(messages[-1].offset + 1, "", -1)
        if found:
            consumer.commit(read_up_to)
        consumer.close()
        return found

    def groups(self) -> dict[str, str | None]:
        with self._admin() as admin:
            return {group["group_id"]: group["group_state"] for group in admin.list_groups()}

    def describe(self, group: str) -> Described:
        with self._admin() as admin:
            found = admin.describe_groups([group], include_authorized_operations=True)[group]
        members = tuple((each["client_id"], each["client_host"], _assigned(each)) for each in found["members"])
        return Described(found["group_state"], members)

    def offsets(self, group: str) -> Offsets:
        with self._admin() as admin:
            found = admin.list_group_offsets(group)[group]
        return {(place.topic, place.partition): value.offset for place, value in found.items()}

    def alter_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        wanted = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        with self._admin() as admin:
            _raise_first(admin.alter_group_offsets(group, wanted))

    def delete_offsets(self, group: str, topic: str, partition: int) -> None:
        with self._admin() as admin:
            _raise_first(admin.delete_group_offsets(group, [TopicPartition(topic, partition)]))

    def delete_group(self, group: str) -> None:
        with self._admin() as admin:
            outcome = admin.delete_groups([group])[group]
        if outcome != "OK":
            raise RefusedByBroker(getattr(kafka.errors, outcome).errno, outcome)

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            yield admin
        except BrokerResponseError as refused:
            raise RefusedByBroker(refused.errno, str(refused)) from None
        finally:
            admin.close()


def _assigned(member: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    topics = member["member_assignment"]["assigned_partitions"]
    return frozenset((each["topic"], index) for each in topics for index in each["partitions"])


def _raise_first(outcomes: Any) -> None:
    """Raises the first error of a result: an error class per partition, NoError if there is none."""
    for error in outcomes.values():
        if error.errno != 0:
            raise RefusedByBroker(error.errno, error.message)


class AiokafkaGroupUser(GroupUser):
    name = "aiokafka"
    can_change = can_delete_offsets = False

    def consume(self, group: str, topic: str, count: int, protocol: str = CLASSIC) -> list[bytes]:
        async def consume() -> list[bytes]:
            found: list[bytes] = []
            read_up_to: dict[Any, int] = {}
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=self.bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=SESSION_MS,
                fetch_max_wait_ms=100,
            )
            await consumer.start()
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < count and time.monotonic() < deadline:
                batches = await consumer.getmany(timeout_ms=200, max_records=count - len(found))
                for place, messages in batches.items():
                    found += [message.value for message in messages]
                    read_up_to[place] = messages[-1].offset + 1
            if found:
                await consumer.commit(read_up_to)
            await consumer.stop()
            return found

        return asyncio.run(asyncio.wait_for(consume(), TIMEOUT_S * 2))

    def groups(self) -> dict[str, str | None]:
        return {name: None for name, *_ in self._ask(lambda admin: admin.list_consumer_groups())}

    def describe(self, group: str) -> Described:
        (reply,) = self._ask(lambda admin: admin.describe_consumer_groups([group]))
        ((_error, _name, state, _type, _protocol, found, *_),) = reply.groups
        members = []
        for each in found:
            client_id, host, _metadata, assignment = each[-4:]
            topics = MemberAssignment.decode(assignment).assignment if assignment else []
            members.append(
                (client_id, host, frozenset((topic, index) for topic, indexes in topics for index in indexes))
            )
        return Described(state, tuple(members))

    def offsets(self, group: str) -> Offsets:
        found = self._ask(lambda admin: admin.list_consumer_group_offsets(group))
        return {(place.topic, place.partition): value.offset for place, value in found.items()}

    def _ask(self, ask: Callable[[AIOKafkaAdminClient], Any]) -> Any:
        async def run() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                return await ask(admin)
            finally:
                await admin.close()

        return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
