"""A group member that uses librdkafka through confluent-kafka."""

from __future__ import annotations

import os
import struct
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.processes.groups.history import NOT_KNOWN, Outcome
from tests.processes.groups.member import POLL_S, REBALANCE_TIMEOUT_MS, RECORDS_MAX, WORK_S, Account, Settings

REFUSALS = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)
DEBUG = "LIBRDKAFKA_DEBUG"
"""Environment variable with what librdkafka logs of itself, as `cgrp`, if a member does not do what it should."""
_METADATA_PREFIX = b"CGMDv2:"
_GENERATION = struct.Struct("=i")


class _Member:
    def __init__(self, settings: Settings, account: Account) -> None:
        self._settings = settings
        self._account = account
        self._consumer = Consumer(_properties(settings))
        self._consumer.subscribe(
            [settings.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            records = self._poll()
            if self._account.process(records):
                time.sleep(WORK_S)
                self._commit()
        self._commit()
        self._account.leaving()
        self._consumer.close()

    def _poll(self) -> list[tuple[int, int]]:
        found = []
        message = self._consumer.poll(POLL_S)
        while message is not None:
            if message.error() is None:
                found.append((message.partition() or 0, message.offset() or 0))
            if len(found) >= RECORDS_MAX:
                break
            message = self._consumer.poll(0)
        return found

    def _commit(self) -> None:
        offsets = self._account.uncommitted()
        if not offsets:
            return
        number = self._account.sends(offsets, self._generation())
        places = [TopicPartition(self._settings.topic, partition, offset) for partition, offset in offsets.items()]
        try:
            results = self._consumer.commit(offsets=places, asynchronous=False) or []
            error = next((each.error for each in results if each.error is not None), None)
        except KafkaException as refused:
            error = refused.args[0]
        if error is None:
            self._account.answered(number, offsets, Outcome.ACKED)
        else:
            outcome = Outcome.REFUSED if error.code() in REFUSALS else Outcome.UNKNOWN
            self._account.answered(number, offsets, outcome, error.name())

    def _generation(self) -> int:
        """Reads the generation from the group metadata for transactions, the only place that exposes it."""
        data = bytes(self._consumer.consumer_group_metadata() or b"")
        if not data.startswith(_METADATA_PREFIX):
            return NOT_KNOWN
        return int(_GENERATION.unpack_from(data, len(_METADATA_PREFIX))[0])

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._account.assigned(_indexes(places), self._generation(), consumer.memberid() or "")

    def _on_revoke(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._commit()
        self._account.revoked(_indexes(places))

    def _on_lost(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._account.lost(_indexes(places))


def _indexes(places: list[TopicPartition]) -> list[int]:
    return [place.partition for place in places]


def _properties(settings: Settings) -> dict[str, Any]:
    properties = {
        "bootstrap.servers": settings.bootstrap,
        "group.id": settings.group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 500,
        "max.poll.interval.ms": REBALANCE_TIMEOUT_MS,
    }
    if (debug := os.environ.get(DEBUG)) is not None:
        properties["debug"] = debug
    if settings.protocol == "consumer":
        return properties | {"group.protocol": "consumer"}
    return properties | {
        "session.timeout.ms": settings.session_ms,
        "heartbeat.interval.ms": settings.heartbeat_ms,
        "partition.assignment.strategy": "range" if settings.protocol == "eager" else "cooperative-sticky",
    }


def run(settings: Settings, account: Account, stopping: threading.Event) -> None:
    _Member(settings, account).run(stopping)
