"""A worker that uses `ottla.client` and does what worker.py does with librdkafka. The arguments are the same.

python -m tests.processes.transactions.own_worker PROTOCOL BOOTSTRAP GROUP SOURCE TARGET TRANSACTIONAL_ID HISTORY SEED
    SESSION_MS TIMEOUT_MS
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

from ottla.client import Consumer, ConsumerRecord, Producer
from ottla.client.errors import ClientError, CommitFailedError, TransactionAbortedError
from tests.processes.groups.history import Recorder
from tests.processes.transactions.worker import ABORTED_SHARE, CANNOT_GO_ON, POLL_S, RECORDS_MAX


class Worker:
    def __init__(self, consumer: Consumer, producer: Producer, target: str, path: Path, seed: int) -> None:
        self._consumer = consumer
        self._producer = producer
        self._target = target
        self._name = path.stem
        self._recorder = Recorder(path)
        self._chance = Random(seed)
        self._number = 0

    async def turn(self) -> None:
        records = await self._consumer.fetch_records(RECORDS_MAX, timeout_ms=POLL_S * 1000)
        if not records:
            return
        self._number += 1
        aborts = self._chance.random() < ABORTED_SHARE
        self._recorder.write("began", self._number, len(records))
        try:
            await self._transact(records, aborts=aborts)
        except (TransactionAbortedError, CommitFailedError) as problem:
            self._recorder.write("failed", self._number, type(problem).__name__)
            aborts = True
        if aborts:
            self._recorder.write("aborted", self._number)
            await self._consumer.seek_to_committed()
        else:
            self._recorder.write("committed", self._number)

    async def _transact(self, records: list[ConsumerRecord], *, aborts: bool) -> None:
        mark = f"|{self._name}.{self._number}.{'A' if aborts else 'C'}".encode()
        async with self._producer.transaction() as transaction:
            for record in records:
                await transaction.enqueue(self._target, (record.value or b"") + mark, partition=record.partition)
            if aborts:
                await self._producer.flush()
                await transaction.abort()
            else:
                await transaction.send_offsets(self._consumer)
                self._recorder.write("commits", self._number)


def _reading(group: str, protocol: str, session_ms: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "group_id": group,
        "auto_commit": False,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 100,
        "max_poll_interval_ms": 30_000,
    }
    if protocol == "consumer":
        return {**settings, "group_protocol": "consumer"}
    sessions = {"session_timeout_ms": session_ms, "heartbeat_interval_ms": session_ms // 6}
    return {**settings, **sessions, "assignors": ["range"]}


async def run(arguments: list[str]) -> None:
    protocol, bootstrap, group, source, target, transactional_id, path, seed, session_ms, timeout_ms = arguments
    async with (
        Consumer(bootstrap, **_reading(group, protocol, int(session_ms))) as consumer,
        Producer(
            bootstrap, transactional_id=transactional_id, transaction_timeout_ms=int(timeout_ms), linger_ms=5
        ) as producer,
    ):
        consumer.subscribe([source])
        worker = Worker(consumer, producer, target, Path(path), int(seed))
        try:
            while True:
                await worker.turn()
        except ClientError as problem:
            print(f"cannot go on: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            os._exit(CANNOT_GO_ON)  # as after a crash: without an orderly shutdown


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
