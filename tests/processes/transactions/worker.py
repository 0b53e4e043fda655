"""A worker that uses librdkafka: consume, transform, produce, with the offsets in the transaction. It exits when it
cannot continue, and the harness starts another one.

python -m tests.processes.transactions.worker PROTOCOL BOOTSTRAP GROUP SOURCE TARGET TRANSACTIONAL_ID HISTORY SEED
    SESSION_MS TIMEOUT_MS
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.processes.groups.history import Recorder

POLL_S = 0.2
CALL_S = 20.0
FLUSH_S = 5.0
RECORDS_MAX = 50
ABORTED_SHARE = 0.2
CANNOT_GO_ON = 3
NOBODY = -1
_METADATA_PREFIX = b"CGMDv2:"
_GENERATION = struct.Struct("=i")


class Worker:
    def __init__(self, arguments: list[str]) -> None:
        protocol, bootstrap, group, source, target, transactional_id, path, seed, session_ms, timeout_ms = arguments
        self._source, self._target = source, target
        self._is_eager = protocol == "eager"
        self._name = Path(path).stem
        self._recorder = Recorder(Path(path))
        self._chance = Random(int(seed))
        self._number = 0
        self._batch: list[Message] = []
        self._membership: object | None = None
        """The group metadata at the assignment: a member that has lost it must not commit under a newer one."""
        self._producer = Producer(_writing(bootstrap, transactional_id, int(timeout_ms)))
        self._consumer = Consumer(_reading(bootstrap, group, protocol, int(session_ms)))

    def run(self) -> NoReturn:
        _retried(lambda: self._producer.init_transactions(CALL_S))
        self._consumer.subscribe(
            [self._source], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        while True:
            self._poll()
            if self._batch:
                self._turn()

    def _poll(self) -> None:
        self._batch.clear()
        message = self._consumer.poll(POLL_S)
        while message is not None:
            if message.error() is None:
                self._batch.append(message)
            if len(self._batch) >= RECORDS_MAX:
                break
            message = self._consumer.poll(0)

    def _turn(self) -> None:
        membership = self._membership if self._is_eager else self._consumer.consumer_group_metadata()
        if membership is None:
            os._exit(CANNOT_GO_ON)
        self._number += 1
        aborts = self._chance.random() < ABORTED_SHARE
        self._recorder.write("began", self._number, len(self._batch))
        try:
            self._write("A" if aborts else "C")
            if aborts:
                self._producer.flush(FLUSH_S)
            else:
                self._commit(membership)
        except KafkaException as problem:
            error = problem.args[0]
            self._recorder.write("failed", self._number, error.name())
            if not error.txn_requires_abort():
                raise
            aborts = True
        if aborts:
            self._abort()

    def _write(self, end: str) -> None:
        self._producer.begin_transaction()
        for message in self._batch:
            value = f"{(message.value() or b'').decode()}|{self._name}.{self._number}.{end}"
            self._producer.produce(self._target, value, partition=message.partition() or 0)
            self._producer.poll(0)

    def _commit(self, membership: object) -> None:
        ends = {message.partition() or 0: (message.offset() or 0) + 1 for message in self._batch}
        places = [TopicPartition(self._source, partition, offset) for partition, offset in ends.items()]
        _retried(lambda: self._producer.send_offsets_to_transaction(places, membership, CALL_S))
        self._recorder.write("commits", self._number)
        _retried(lambda: self._producer.commit_transaction(CALL_S))
        self._recorder.write("committed", self._number)

    def _abort(self) -> None:
        """Aborts and seeks back to where the transaction began. An error here ends the worker."""
        _retried(lambda: self._producer.abort_transaction(CALL_S))
        self._recorder.write("aborted", self._number)
        first: dict[int, int] = {}
        for message in self._batch:
            first.setdefault(message.partition() or 0, message.offset() or 0)
        for partition, offset in first.items():
            self._consumer.seek(TopicPartition(self._source, partition, offset))

    def _on_assign(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        membership = consumer.consumer_group_metadata()
        self._membership = membership if _generation(membership) != NOBODY else None

    def _on_revoke(self, _: Consumer, places: list[TopicPartition]) -> None:
        """Called during a poll, without an open transaction: another member reads these partitions now."""
        gone = {place.partition for place in places}
        self._batch[:] = [message for message in self._batch if message.partition() not in gone]


def _generation(membership: Any) -> int:
    data = bytes(membership or b"")
    if not data.startswith(_METADATA_PREFIX):
        return NOBODY
    return int(_GENERATION.unpack_from(data, len(_METADATA_PREFIX))[0])


def _retried(call: Callable[[], object]) -> None:
    """Retries a call while its error is retriable. A worker that hangs is killed at the end."""
    while True:
        try:
            call()
            return
        except KafkaException as problem:
            if not problem.args[0].retriable():
                raise


def _reading(bootstrap: str, group: str, protocol: str, session_ms: int) -> dict[str, Any]:
    properties = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        "max.poll.interval.ms": 30_000,
        "reconnect.backoff.max.ms": 500,
    }
    if protocol == "consumer":
        return properties | {"group.protocol": "consumer"}
    return properties | {
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": session_ms // 6,
        "partition.assignment.strategy": "range",
    }


def _writing(bootstrap: str, transactional_id: str, timeout_ms: int) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "linger.ms": 5,
        "reconnect.backoff.max.ms": 500,
    }


if __name__ == "__main__":
    try:
        Worker(sys.argv[1:]).run()
    except KafkaException as problem:
        print(f"cannot go on: {problem}", file=sys.stderr, flush=True)
        os._exit(CANNOT_GO_ON)  # as after a crash: without an orderly shutdown
