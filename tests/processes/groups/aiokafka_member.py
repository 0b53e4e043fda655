"""A group member that uses aiokafka. Its callbacks run beside the processing loop, so a lock separates them."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Collection

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from tests.processes.groups.history import NOT_KNOWN, Outcome
from tests.processes.groups.member import POLL_S, REBALANCE_TIMEOUT_MS, RECORDS_MAX, WORK_S, Account, Settings


class _Member(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no types
    def __init__(self, settings: Settings, account: Account) -> None:
        self._topic = settings.topic
        self._account = account
        self._lock = asyncio.Lock()
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.bootstrap,
            group_id=settings.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            session_timeout_ms=settings.session_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            max_poll_interval_ms=REBALANCE_TIMEOUT_MS,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )

    async def run(self, stopping: threading.Event) -> None:
        self._consumer.subscribe([self._topic], listener=self)
        await self._consumer.start()
        while not stopping.is_set():
            records = await self._poll()
            async with self._lock:
                if self._account.process(records):
                    await asyncio.sleep(WORK_S)
                    await self._commit()
        async with self._lock:
            await self._commit()
            self._account.leaving()
        await self._consumer.stop()

    async def _poll(self) -> list[tuple[int, int]]:
        try:
            found = await self._consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=RECORDS_MAX)
        except KafkaError:
            traceback.print_exc()  # continues, as an application would
            return []
        return [(message.partition, message.offset) for batch in found.values() for message in batch]

    async def _commit(self) -> None:
        offsets = self._account.uncommitted()
        if not offsets:
            return
        number = self._account.sends(offsets, self._generation())
        try:
            await self._consumer.commit({TopicPartition(self._topic, index): at for index, at in offsets.items()})
            self._account.answered(number, offsets, Outcome.ACKED)
        except (CommitFailedError, IllegalStateError) as refused:  # the second means that it is no longer assigned
            self._account.answered(number, offsets, Outcome.REFUSED, refused)
        except KafkaError as problem:
            self._account.answered(number, offsets, Outcome.UNKNOWN, problem)

    def _generation(self) -> int:
        return int(self._consumer._coordinator.generation)  # the library has no public accessor

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        member_id = self._consumer._coordinator.member_id
        self._account.assigned((place.partition for place in assigned), self._generation(), member_id)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        async with self._lock:
            is_member = self._generation() != NOT_KNOWN
            (self._account.revoked if is_member else self._account.lost)(place.partition for place in revoked)


def run(settings: Settings, account: Account, stopping: threading.Event) -> None:
    async def main() -> None:
        await _Member(settings, account).run(stopping)

    asyncio.run(main())
