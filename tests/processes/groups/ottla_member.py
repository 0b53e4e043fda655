"""A group member that uses `ottla.client`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from ottla.client import Consumer, TopicPartition
from ottla.client.errors import (
    BrokerRefusedError,
    ClientError,
    CommitFailedError,
    ConnectionLostError,
    NoBrokerError,
    RebalancingError,
    RequestTimedOutError,
)
from tests.processes.groups.history import NOT_KNOWN, Outcome
from tests.processes.groups.member import POLL_S, REBALANCE_TIMEOUT_MS, RECORDS_MAX, WORK_S, Account, Settings


class _Member:
    def __init__(self, settings: Settings, account: Account) -> None:
        self._settings = settings
        self._account = account
        self._consumer = Consumer(settings.bootstrap, **_options(settings))

    async def run(self, stopping: threading.Event) -> None:
        await self._start()
        async with self._consumer:
            self._consumer.subscribe(
                [self._settings.topic],
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                on_lost=lambda places: self._account.lost(_indexes(places)),
            )
            while not stopping.is_set():
                records = await self._consumer.fetch_records(RECORDS_MAX, timeout_ms=POLL_S * 1000)
                if self._account.process((record.partition, record.offset) for record in records):
                    await asyncio.sleep(WORK_S)
                    await self._commit()
            await self._commit()
            self._account.leaving()

    async def _start(self) -> None:
        """Waits for a broker. A consumer does not: no broker at its start is an error."""
        while True:
            try:
                await self._consumer.start()
                return
            except (NoBrokerError, ConnectionLostError, RequestTimedOutError):
                await asyncio.sleep(POLL_S)

    async def _commit(self) -> None:
        offsets = self._account.uncommitted()
        if not offsets:
            return
        number = self._account.sends(offsets, self._generation())
        try:
            await self._consumer.commit({(self._settings.topic, at): offset for at, offset in offsets.items()})
        except (CommitFailedError, RebalancingError) as refused:
            self._account.answered(number, offsets, Outcome.REFUSED, refused.error.name)
        except ClientError as unknown:
            error = unknown.error.name if isinstance(unknown, BrokerRefusedError) else unknown
            self._account.answered(number, offsets, Outcome.UNKNOWN, error)
        else:
            self._account.answered(number, offsets, Outcome.ACKED)

    def _generation(self) -> int:
        identity = self._consumer.group_identity
        return NOT_KNOWN if identity is None else identity.generation

    def _on_assigned(self, places: list[TopicPartition]) -> None:
        identity = self._consumer.group_identity
        self._account.assigned(_indexes(places), self._generation(), "" if identity is None else identity.member_id)

    async def _on_revoked(self, places: list[TopicPartition]) -> None:
        await self._commit()
        self._account.revoked(_indexes(places))


def _indexes(places: list[TopicPartition]) -> list[int]:
    return [place.partition for place in places]


def _options(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "group_id": settings.group,
        "auto_commit": False,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 100,
        "max_poll_interval_ms": REBALANCE_TIMEOUT_MS,
    }
    if settings.protocol == "consumer":
        return {**options, "group_protocol": "consumer"}
    return {
        **options,
        "session_timeout_ms": settings.session_ms,
        "heartbeat_interval_ms": settings.heartbeat_ms,
        "assignors": ["range" if settings.protocol == "eager" else "cooperative-sticky"],
    }


def run(settings: Settings, account: Account, stopping: threading.Event) -> None:
    asyncio.run(_Member(settings, account).run(stopping))
