"""Ottla's own transactional producers in a simulated cluster: one after the other, with zombies among them.

Errors are taken literally: if an error says that nothing is written, the transaction must not be found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from random import Random
from typing import Any, cast

from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import ClientError, DeliveryError, TransactionAbortedError
from ottla.client.groups.offsets import GroupProgress, OffsetAndMetadata
from ottla.client.groups.steps import Identity
from ottla.client.producer.producer import Producer
from ottla.client.transactions.transaction import Transaction as OpenTransaction
from ottla.sim.world import SimWorld
from tests.simulation.cluster_clients import METADATA_AGE_MS, started
from tests.simulation.transactions_history import NEVER, Outcome, Transaction, TransactionHistory
from tests.simulation.transactions_producers import LONG_MS, TIMEOUTS_MS, Places
from tests.simulation.violations import Violation


class LoneReader:
    """A consumer as `send_offsets` uses it: without a group protocol, with an offset that is a transaction's number."""

    def __init__(self, group: str, topic: str, number: int) -> None:
        self._group = group
        self._offsets = {(topic, 0): OffsetAndMetadata(number)}

    def progress(self, offsets: object) -> GroupProgress:
        return GroupProgress(self._group, cast(Any, self._offsets), Identity)


class ClientWorker:
    """The producers of one transactional id."""

    def __init__(self, name: str, seed: int, world: SimWorld, history: TransactionHistory, places: Places) -> None:
        self.name = name
        self.rng = Random(f"{seed}/{name}/client")
        self.is_over = False
        self.tasks: list[asyncio.Task[None]] = []
        self.granted_s: list[float] = []
        """When each of its producers got its epoch: from then on all earlier ones are fenced."""
        self._world = world
        self._history = history
        self._places = places
        self._host = self.rng.choice(places.hosts)
        self._forgotten: list[Producer] = []
        """Abandoned producers. They keep their connections open and do nothing."""
        self._timeout_ms = self.rng.choice(TIMEOUTS_MS)
        self._new_producer = partial(
            Producer,
            ",".join(f"{server}:9092" for server in places.servers),
            transactional_id=name,
            transaction_timeout_ms=self._timeout_ms,
            linger_ms=self.rng.choice((0, 5)),
            request_timeout_ms=3000,
            connect_timeout_ms=2000,
            delivery_timeout_ms=self.rng.choice((5000, 20_000)),
            metadata_max_age_ms=METADATA_AGE_MS,
        )

    @property
    def is_done(self) -> bool:
        return all(task.done() for task in self.tasks)

    def start(self) -> None:
        self._spawn(self._live())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(self._host.spawn(work))

    # -- successive producers ----------------------------------------------------------------------------------------

    async def _live(self) -> None:
        await asyncio.sleep(self.rng.random())
        while not self.is_over:
            await self._live_once(self.rng.choice((1, 3, 10)))
        if self._timeout_ms == LONG_MS or self.rng.random() < 0.5:
            await self._live_once(1, may_die=False)
        for producer in self._forgotten:
            await _closed(producer)

    async def _live_once(self, transactions: int, *, may_die: bool = True) -> None:
        place = len(self.granted_s)
        self.granted_s.append(NEVER)
        producer = await started(self._new_producer)
        self.granted_s[place] = self._world.now_s
        for _ in range(transactions):
            if may_die and self.rng.random() < 0.12:
                await self._die(producer, place)
                return
            if not await self._transaction(producer, place) or (self.is_over and may_die):
                break
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.2, 1.0)))
        await _closed(producer)

    async def _die(self, producer: Producer, place: int) -> None:
        """Abandons the producer in the middle of a transaction. Some continue later as zombies."""
        opened = producer.transaction()
        transaction = self._history.begin(self.name)
        try:
            await opened.__aenter__()
            await self._fill(opened, transaction, place)
        except ClientError:
            pass
        if self.rng.random() < 0.5:
            self._forgotten.append(producer)
        else:
            self._spawn(self._haunt(producer, opened, transaction, place))

    async def _haunt(self, producer: Producer, opened: OpenTransaction, transaction: Transaction, place: int) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.2, 1.0, 4.0)))
        goes_on = await self._end(opened, transaction, place, is_commit=True)
        while goes_on and not self.is_over:
            goes_on = await self._transaction(producer, place)
            await asyncio.sleep(0.2)
        await _closed(producer)

    # -- a transaction -----------------------------------------------------------------------------------------------

    async def _transaction(self, producer: Producer, place: int) -> bool:
        """Runs a transaction. Returns False if this producer has stopped."""
        transaction = self._history.begin(self.name)
        opened = producer.transaction()
        try:
            await opened.__aenter__()
        except ClientError:
            return False
        is_filled = True
        try:
            await self._fill(opened, transaction, place)
        except ClientError:
            is_filled = False
        is_commit = self.rng.random() < 0.75 and (is_filled or self.rng.random() < 0.5)
        return await self._end(opened, transaction, place, is_commit=is_commit)

    async def _fill(self, opened: OpenTransaction, transaction: Transaction, place: int) -> None:
        rng, topics = self.rng, self._places.topics
        for _ in range(rng.choice((0, 1, 2, 2, 3, 5))):
            topic = rng.choice(list(topics))
            partition, sent_s = rng.randrange(topics[topic]), self._world.now_s
            value = self._history.new_value(transaction)
            found = await opened.send(topic, value, partition=partition)
            self._check_fenced("send", place, sent_s)
            transaction.values[value] = topic, partition, found.offset
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice((0.05, 0.5, 2.0)))
        if rng.random() < 0.4:
            reader, sent_s = LoneReader(self.name, next(iter(topics)), transaction.number), self._world.now_s
            transaction.has_offset = True
            await opened.send_offsets(cast(Consumer, reader))
            self._check_fenced("send offsets", place, sent_s)

    async def _end(self, opened: OpenTransaction, transaction: Transaction, place: int, *, is_commit: bool) -> bool:
        is_anything = bool(transaction.values) or transaction.has_offset
        sent_s = self._world.now_s
        if is_commit:
            transaction.outcome = Outcome.UNKNOWN
        try:
            await (opened.commit() if is_commit else opened.abort())
        except ClientError as error:
            if isinstance(error, DeliveryError) and not error.may_be_written:
                transaction.outcome = Outcome.ABORTED
            transaction.settled_s = self._world.now_s
            return isinstance(error, TransactionAbortedError)
        if is_commit:
            transaction.outcome = Outcome.COMMITTED
        transaction.settled_s = self._world.now_s
        if is_anything:
            self._check_fenced("end", place, sent_s)
        return True

    def _check_fenced(self, what: str, place: int, sent_s: float) -> None:
        """Checks that a successful request was not sent by a fenced producer."""
        if any(granted_s < sent_s for granted_s in self.granted_s[place + 1 :]):
            raise Violation("fencing", f"{self.name}/{place + 1}: {what} at {sent_s:.6f} s, after another one began")


async def _closed(producer: Producer) -> None:
    """Closes the producer; the outcomes of its records and its transaction are recorded already."""
    try:
        await producer.close()
    except ClientError:
        return
