"""Writers that continue while the broker is killed; their acknowledgements go into the ledger.

Each value contains its writer and its number, which determine the rest of it, so that a reader can detect a changed
record.
"""

from __future__ import annotations

import functools
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ottla.testing.ledger import Found, Ledger
from tests.processes.traffic import plain_producer

IDENTITY = struct.Struct(">BQH")
FILLER = random.Random(20).randbytes(1 << 16)
BURST_RECORDS = 60
PAUSE_S = 0.001

Where = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Writer:
    """A source of records. An idempotent one continues across kills and resends unacknowledged records."""

    source: int
    idempotent: bool
    settings: Mapping[str, Any]

    def producer(self, bootstrap: str) -> Producer:
        if not self.idempotent:
            return plain_producer(bootstrap, message_timeout_ms=4_000, **self.settings)
        return plain_producer(
            bootstrap,
            enable_idempotence=True,
            message_send_max_retries=1_000_000,
            max_in_flight_requests_per_connection=5,
            message_timeout_ms=60_000,
            retry_backoff_ms=20,
            retry_backoff_max_ms=100,
            **self.settings,
        )


WRITERS = (
    Writer(0, idempotent=True, settings={}),
    Writer(1, idempotent=True, settings={"compression_type": "lz4", "linger_ms": 10}),
    Writer(2, idempotent=False, settings={}),
    Writer(3, idempotent=False, settings={"acks": 1, "linger_ms": 0}),
)


def value_of(source: int, sequence: int) -> bytes:
    """Returns a value, mostly small and sometimes large."""
    choice = (sequence * 2654435761 + source * 40503) & 0xFFFF_FFFF
    length = 20_000 + choice % 40_000 if choice % 97 == 0 else choice % 400
    return IDENTITY.pack(source, sequence, length) + FILLER[:length]


def identify(records: Sequence[tuple[int, bytes]]) -> list[Found]:
    """Returns the writer of each record. Raises if one differs from what was written."""
    found = []
    for offset, value in records:
        source, sequence, _ = IDENTITY.unpack_from(value)
        assert value == value_of(source, sequence), f"the record at {offset} came back different"
        found.append((offset, source, sequence))
    return found


class Load:
    """Runs the writers in a thread while it is not paused."""

    def __init__(
        self,
        bootstrap: str,
        partitions: Mapping[str, int],
        ledger: Ledger,
        chance: random.Random,
        *,
        without: Sequence[Where] = (),
        writers: Sequence[Writer] = WRITERS,
    ) -> None:
        self.ledger = ledger
        self.failures: Counter[str] = Counter()
        self._bootstrap = bootstrap
        self._places = [(topic, index) for topic, count in partitions.items() for index in range(count)]
        self._chance = chance
        self._not_for_idempotent = set(without)
        self._writers = writers
        self._producers = {writer.source: writer.producer(bootstrap) for writer in writers}
        self._sequences: Counter[tuple[int, Where]] = Counter()
        self._running = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._idle = threading.Event()
        self._thread.start()

    def resume(self) -> None:
        self._idle.clear()
        self._running.set()

    def pause(self) -> None:
        self._running.clear()
        self._idle.wait(10)

    def settle(self) -> None:
        """Waits until the outcome of every record is known. Call it while paused, with a serving broker."""
        for writer in self._writers:
            left = self._producers[writer.source].flush(70)
            assert left == 0, f"writer {writer.source} still waits for {left} records"

    def renew(self) -> None:
        """Replaces the producers by new ones without state. Call it while paused."""
        self.settle()
        self._producers = {writer.source: writer.producer(self._bootstrap) for writer in self._writers}

    def end(self) -> None:
        self.pause()
        self._ended = True
        self._running.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._ended:
            if not self._running.is_set():
                self._idle.set()
                self._running.wait()
                continue
            writer = self._chance.choice(self._writers)
            where = self._chance.choice(self._places)
            if not (writer.idempotent and where in self._not_for_idempotent):
                self._burst(writer, where)
            for producer in self._producers.values():
                producer.poll(0)
            time.sleep(PAUSE_S)

    def _burst(self, writer: Writer, where: Where) -> None:
        producer = self._producers[writer.source]
        for _ in range(self._chance.randrange(1, BURST_RECORDS)):
            sequence = self._sequences[writer.source, where]
            try:
                producer.produce(
                    where[0],
                    value=value_of(writer.source, sequence),
                    partition=where[1],
                    on_delivery=functools.partial(self._on_delivery, writer, sequence),
                )
            except BufferError:
                return
            except KafkaException as fatal:
                self.failures[f"fatal: {fatal.args[0].name()}"] += 1
                return
            self._sequences[writer.source, where] += 1

    def _on_delivery(self, writer: Writer, sequence: int, error: KafkaError | None, message: Message) -> None:
        where = (message.topic() or "", message.partition() or 0)
        if error is None:
            self.ledger.acknowledged(where, message.offset() or 0, writer.source, sequence)
        else:
            kind = "idempotent" if writer.idempotent else "plain"
            self.failures[f"{kind}: {error.name()}"] += 1
