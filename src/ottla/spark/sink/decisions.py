"""The decisions of a query about what to write: a small topic per query, whose last record is valid.

    {"version": 1, "batch": 7, "run": "…", "done": false, "transactions": [["id", producer id, epoch, version], …]}

Before a process decides, it must fence all others and then read what they decided; entering the `DecisionLog` does both
in this order. A fenced process cannot write here any more, so what was read stays true until the next process enters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from ottla.client import Admin, Consumer, PreparedTransaction, Producer, TopicPartition
from ottla.client.errors import TopicExistsError
from ottla.spark.sink.options import SinkOptions

FORMAT_VERSION = 1
TAIL_OFFSETS = 64
"""The last decision is expected within this many offsets, including transaction markers. If it is not, the search is
widened."""
DECISION_TIMEOUT_MS = 60_000


class DecisionsError(Exception):
    """The decision topic contains something that this version does not understand."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The transactions that make up a batch."""

    batch: int
    run: str
    transactions: tuple[PreparedTransaction, ...] = ()
    done: bool = False
    """All transactions are committed."""

    def to_json(self) -> bytes:
        """Returns the value of the record in the decision topic."""
        body = {
            "version": FORMAT_VERSION,
            "batch": self.batch,
            "run": self.run,
            "done": self.done,
            "transactions": [list(each) for each in self.transactions],
        }
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Decision:
        """Parses a record of the decision topic. Raises DecisionsError if a later version wrote it."""
        body: dict[str, Any] = json.loads(text)
        if body.get("version") != FORMAT_VERSION:
            raise DecisionsError(
                f"the decision has version {body.get('version')}, written by a newer Ottla; upgrade Ottla"
            )
        transactions = tuple(PreparedTransaction(*each) for each in body["transactions"])
        return cls(int(body["batch"]), str(body["run"]), transactions, bool(body["done"]))


def ids_of(query: str) -> str:
    """Returns the prefix of the transactional ids of a query. It is unique, because names contain no colon."""
    return f"ottla-spark:{query}:"


def ids_of_run(query: str, run: str) -> str:
    """Returns the prefix of the transactional ids of one run's tasks."""
    return f"{ids_of(query)}{run[:8]}:"


class DecisionLog:
    """The decision topic of a query. `async with DecisionLog(...) as log` fences all other processes and sets
    `log.last`."""

    def __init__(self, options: SinkOptions, query: str) -> None:
        self._options = options
        self._query = query
        self.topic = options.decisions_topic or f"ottla-spark-{query}"
        client_id = options.producer.get("client_id", "ottla-spark")
        self._producer = Producer(
            options.servers,
            transactional_id=f"{ids_of(query)}decisions",
            transaction_timeout_ms=DECISION_TIMEOUT_MS,
            client_id=client_id,
        )
        self.last: Decision | None = None

    async def __aenter__(self) -> Self:
        await self._make_topic()
        try:
            await self._producer.start()  # from here on, no process that entered before can decide
            self.last = await self._read_last()
        except BaseException:
            await self._producer.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.close()

    async def record(self, decision: Decision) -> None:
        """Records a decision, which is durable when this returns. Raises ProducerFencedError if another process has
        entered."""
        async with self._producer.transaction() as transaction:
            await transaction.send(self.topic, decision.to_json(), key=self._query.encode(), partition=0)
        self.last = decision

    async def record_done(self) -> None:
        """Records that all transactions of the last decision are committed."""
        assert self.last is not None, "a decision was recorded before"
        await self.record(replace(self.last, done=True))

    async def _make_topic(self) -> None:
        async with Admin(self._options.servers) as admin:
            if self.topic in await admin.describe_topic_configs([self.topic], "cleanup.policy"):
                return
            try:
                await admin.create_topic(self.topic, partitions=1, configs={"cleanup.policy": "compact"})
            except TopicExistsError:
                return  # another task created it first

    async def _read_last(self) -> Decision | None:
        """Returns the last decision.

        No transaction is open here: fencing ended an earlier one, and nobody else writes to this topic.
        """
        at = TopicPartition(self.topic, 0)
        async with Consumer(
            self._options.servers, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([at])
            first = (await consumer.beginning_offsets([at]))[at]
            end = (await consumer.end_offsets([at]))[at]
            reach = TAIL_OFFSETS
            while True:
                since = max(first, end - reach)
                consumer.seek(at, since)
                values = await _values(consumer, at, end)
                if values:
                    return Decision.from_json(values[-1])
                if since == first:
                    return None
                reach *= 8


async def _values(consumer: Consumer, at: TopicPartition, end: int) -> Sequence[bytes]:
    values: list[bytes] = []
    while (found := await consumer.fetch_range(at, end, timeout_ms=DECISION_TIMEOUT_MS)) is not None:
        values += [value for value in found[0].column("value").to_pylist() if value is not None]
    return values
