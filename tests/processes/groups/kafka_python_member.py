"""A group member that uses kafka-python. Rebalances happen inside `poll`, after a commit of all processed records."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Collection
from typing import Any

from kafka import KafkaConsumer
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import CommitFailedError, KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.processes.groups.history import Outcome
from tests.processes.groups.member import POLL_S, REBALANCE_TIMEOUT_MS, RECORDS_MAX, WORK_S, Account, Settings

ASSIGNORS = {"eager": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}
COMMIT_TIMEOUT_MS = 20_000


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no types
    def __init__(self, member: _Member) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        now = self._member.consumer.group_metadata()
        self._member.account.assigned((place.partition for place in assigned), now.generation_id, now.member_id)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._member.account.revoked(place.partition for place in revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._member.account.lost(place.partition for place in lost)


class _Member:
    def __init__(self, settings: Settings, account: Account) -> None:
        self._topic = settings.topic
        self.account = account
        self.consumer = _started(
            bootstrap_servers=settings.bootstrap.split(","),
            group_id=settings.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            session_timeout_ms=settings.session_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            max_poll_interval_ms=REBALANCE_TIMEOUT_MS,
            reconnect_backoff_max_ms=500,
            partition_assignment_strategy=[ASSIGNORS[settings.protocol]],
        )

    def run(self, stopping: threading.Event) -> None:
        self.consumer.subscribe([self._topic], listener=_Listener(self))
        while not stopping.is_set():
            if self.account.process(self._poll()):
                time.sleep(WORK_S)
                self._commit()
        self._commit()
        self.account.leaving()
        self.consumer.close()

    def _poll(self) -> list[tuple[int, int]]:
        try:
            found = self.consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=RECORDS_MAX)
        except KafkaError:
            traceback.print_exc()  # continues, as an application would
            return []
        return [(message.partition, message.offset) for batch in found.values() for message in batch]

    def _commit(self) -> None:
        offsets = self.account.uncommitted()
        if not offsets:
            return
        number = self.account.sends(offsets, self.consumer.group_metadata().generation_id)
        places = {TopicPartition(self._topic, index): OffsetAndMetadata(at, "", -1) for index, at in offsets.items()}
        try:
            self.consumer.commit(places, timeout_ms=COMMIT_TIMEOUT_MS)
            self.account.answered(number, offsets, Outcome.ACKED)
        except CommitFailedError as refused:
            self.account.answered(number, offsets, Outcome.REFUSED, type(refused).__name__)
        except KafkaError as problem:
            self.account.answered(number, offsets, Outcome.UNKNOWN, repr(problem))


def _started(**settings: Any) -> KafkaConsumer:
    """Starts the consumer, also while a broker is paused, which takes this library's whole startup timeout."""
    while True:
        try:
            return KafkaConsumer(**settings)
        except KafkaError:
            traceback.print_exc()


def run(settings: Settings, account: Account, stopping: threading.Event) -> None:
    _Member(settings, account).run(stopping)
