"""Producers of one transactional id on simulated hosts: one after the other, some of them zombies.

A producer commits and aborts transactions over several partitions, some with an offset in them. It dies in the middle
of one, or is taken for dead and continues as a zombie while the next one starts. With the new protocol (transaction
version 2) it retries every request without a reply, sometimes with the other outcome. With the old protocol it does
not: a late old request would count for the next transaction (ADR 12), so it requests a new epoch instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, NamedTuple

from ottla.protocol.model.errors import ErrorCode
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld
from tests.simulation.transactions_history import NEVER, Outcome, Transaction, TransactionHistory
from tests.simulation.transactions_wire import MOVING, NEW, OLD, Answer, Identity, LeaderOf, Wire
from tests.simulation.violations import Violation

AGAIN = MOVING | {
    ErrorCode.concurrent_transactions,
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
    ErrorCode.leader_not_available,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.network_exception,
    ErrorCode.kafka_storage_error,
}
FENCED = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping})
PATIENCE_S = 20.0
"""How long a request is retried."""
LONG_MS = 600_000
"""A timeout that never expires in a run, whatever the clocks do."""
TIMEOUTS_MS = (3000, 8000, LONG_MS)


class Places(NamedTuple):
    servers: list[str]
    topics: dict[str, int]
    """Topics with partition counts that are written to."""
    hosts: list[SimHost]
    leader_of: LeaderOf


class Worker:
    """The producers of one transactional id."""

    def __init__(self, name: str, seed: int, world: SimWorld, history: TransactionHistory, places: Places) -> None:
        self.name = name
        self.world = world
        self.history = history
        self.places = places
        self.rng = Random(f"{seed}/{name}")
        self.timeout_ms = self.rng.choice(TIMEOUTS_MS)
        self._host = self.rng.choice(places.hosts)
        self._versions = self.rng.choice(((OLD,), (NEW,), (OLD, NEW)))
        self.is_over = False
        self.has_stray_init = False
        """An InitProducerId got no reply. It may be executed at any later time, and fences the current producer."""
        self.lives: list[Life] = []
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def is_done(self) -> bool:
        return all(task.done() for task in self.tasks)

    def start(self) -> None:
        self._spawn(self._live())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a producer. All run on one host: a zombie keeps its connections."""
        self.tasks.append(self._host.spawn(work))

    async def _live(self) -> None:
        await asyncio.sleep(self.rng.random())
        while not self.is_over:
            await self._live_once(self.rng.choice((1, 3, 10)))
        # A transaction that never times out is ended by the next producer.
        if self.timeout_ms == LONG_MS or self.rng.random() < 0.5:
            while not await self._live_once(1, is_last=True):
                pass

    async def _live_once(self, transactions: int, *, is_last: bool = False) -> bool:
        """Runs one producer. Returns whether it started."""
        life = Life(self, self.rng.choice(self._versions), len(self.lives) + 1)
        self.lives.append(life)
        if not await life.init():
            life.wire.end()
            return False
        for _ in range(transactions):
            if not await life.transaction(may_die=not is_last) or (self.is_over and not is_last):
                break
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.2, 1.0)))
        if life.goes_on_as_zombie:
            self._spawn(life.haunt())
        else:
            life.wire.end()
        return True


class Life:
    """One producer, from its InitProducerId on."""

    def __init__(self, worker: Worker, version: int, number: int) -> None:
        self.worker = worker
        self.version = version
        self.who = f"{worker.name}/{number}"
        self.number = number
        self.rng = Random(f"{worker.rng.random()}")
        self.wire = Wire(worker.name, worker.places.servers, worker.places.leader_of, self.rng)
        self.identity = Identity()
        self.init_sent_s = NEVER
        self.granted_s = NEVER
        """When it got its first epoch: from then on all earlier producers are fenced."""
        self.goes_on_as_zombie = False
        self._sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int] | str] = set()
        self._is_unsure = False
        """A request of the old protocol got no reply: it may still be executed at any time."""
        self._current: Transaction | None = None
        self._is_doubtful = False
        """The outcome of its transaction may be decided without a reply that says so."""

    # -- requests ----------------------------------------------------------------------------------------------------

    @property
    def _now_s(self) -> float:
        return self.worker.world.now_s

    async def _tried(self, what: str, ask: Callable[[], Awaitable[Answer]], *, repeats: bool = True) -> Answer:
        """Sends a request and retries it; `repeats` allows a retry after a missing reply."""
        deadline_s = self._now_s + PATIENCE_S
        while True:
            sent_s = self._now_s
            answer = await ask()
            self._check(what, answer, sent_s)
            if answer.error is None and not repeats:
                return answer
            if answer.error is not None and answer.error not in AGAIN:
                return answer
            if self._now_s > deadline_s:
                return Answer(None)
            await asyncio.sleep(self.rng.choice((0.02, 0.1, 0.5)))

    def _check(self, what: str, answer: Answer, sent_s: float) -> None:
        if answer.error is ErrorCode.unknown_server_error:
            raise Violation("server error", f"{self.who}: {what}")
        later = [life for life in self.worker.lives if life.number > self.number]
        if answer.error is ErrorCode.none:
            after = [life for life in later if life.granted_s < sent_s]
            if after:
                text = f"{self.who} {self.identity}: {what} at {sent_s:.6f} s, after {after[0].who} {after[0].identity}"
                raise Violation("fencing", text)
        elif answer.error in FENCED and not any(life.init_sent_s <= self._now_s for life in later):
            is_timed_out = self.worker.timeout_ms != LONG_MS
            if not is_timed_out and not self.worker.has_stray_init:
                text = f"{self.who} {self.identity}: {what} at {sent_s:.6f} s was {answer.error.name}"
                raise Violation("fenced", f"{text}, and there is nobody else")

    @property
    def _repeats(self) -> bool:
        return self.version >= NEW

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    async def init(self, *, goes_on: bool = False) -> bool:
        known = self.identity if goes_on else Identity()
        self.init_sent_s = min(self.init_sent_s, self._now_s)
        answer = await self._tried("init", lambda: self._init_once(known))
        if answer.error is not ErrorCode.none:
            return False
        self._take(answer)
        self.granted_s = min(self.granted_s, self._now_s)
        self._is_unsure = False
        return True

    async def _init_once(self, known: Identity) -> Answer:
        answer = await self.wire.init(known, self.worker.timeout_ms)
        self.worker.has_stray_init |= answer.error is None
        return answer

    def _take(self, answer: Answer) -> None:
        taken = Identity(int(answer.body.producer_id), int(answer.body.producer_epoch))
        if taken != self.identity:
            self._sequences.clear()
        self.identity = taken
        self.worker.history.granted(self.who, taken)

    async def transaction(self, *, may_die: bool) -> bool:
        """Runs a transaction. Returns False if this producer has stopped."""
        history, rng = self.worker.history, self.rng
        transaction = self._current = history.begin(self.worker.name)
        self._added.clear()
        for _ in range(rng.choice((0, 1, 2, 2, 3, 5))):
            if not await self._send(transaction):
                return await self._recover(transaction)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice((0.05, 0.5, 2.0)))
        if rng.random() < 0.4 and not await self._commit_offset(transaction):
            return await self._recover(transaction)
        if may_die and rng.random() < 0.12:
            self.goes_on_as_zombie = rng.random() < 0.6
            return False
        if not transaction.values and not transaction.has_offset and self.version < NEW:
            return True  # no transaction has begun
        if rng.random() < 0.75 and (transaction.values or transaction.has_offset):
            return await self._commit(transaction)
        return await self._abort(transaction)

    async def haunt(self) -> None:
        """Continues its transaction after a while, and then others, until it is fenced."""
        transaction = self._current
        assert transaction is not None
        await asyncio.sleep(self.rng.choice((0.0, 0.2, 1.0, 4.0)))
        goes_on = self.rng.random() < 0.5 or await self._send(transaction)
        if goes_on and await self._commit(transaction):
            goes_on = True
            while goes_on and not self.worker.is_over:
                await asyncio.sleep(0.2)
                goes_on = await self.transaction(may_die=False)
        self.wire.end()

    # -- content of a transaction ------------------------------------------------------------------------------------

    async def _send(self, transaction: Transaction) -> bool:
        rng, topics = self.rng, self.worker.places.topics
        topic = rng.choice(list(topics))
        place = topic, rng.randrange(topics[topic])
        if self.version < NEW and place not in self._added:
            identity = self.identity
            if not await self._is_done("add", lambda: self.wire.add_partition(identity, *place)):
                return False
            self._added.add(place)
        values = [self.worker.history.new_value(transaction) for _ in range(rng.choice((1, 1, 3)))]
        sequence, now_ms = self._sequences.get(place, 0), round(self._now_s * 1000)
        answer = await self._tried(
            "produce", lambda: self.wire.produce(self.identity, self.version, place, sequence, values, now_ms)
        )
        if answer.error is not ErrorCode.none:
            self._is_unsure |= self.version < NEW
            return False
        self._sequences[place] = sequence + len(values)
        for delta, value in enumerate(values):
            transaction.values[value] = (*place, answer.body + delta)
        return True

    async def _commit_offset(self, transaction: Transaction) -> bool:
        group, topic = self.worker.name, next(iter(self.worker.places.topics))
        transaction.has_offset = True
        if self.version < NEW and not await self._is_done(
            "add offsets", lambda: self.wire.add_offsets(self.identity, group)
        ):
            return False
        number = transaction.number
        return await self._is_done(
            "commit offset", lambda: self.wire.commit_offset(self.identity, self.version, group, topic, number)
        )

    async def _is_done(self, what: str, ask: Callable[[], Awaitable[Answer]]) -> bool:
        answer = await self._tried(what, ask, repeats=self._repeats)
        self._is_unsure |= answer.error is None and not self._repeats
        return answer.error is ErrorCode.none

    # -- end of a transaction ----------------------------------------------------------------------------------------

    async def _commit(self, transaction: Transaction) -> bool:
        transaction.outcome = Outcome.UNKNOWN
        self._is_doubtful = False
        answer = await self._tried("commit", lambda: self._end(commit=True), repeats=self._repeats)
        if answer.error is ErrorCode.none:
            transaction.outcome, transaction.settled_s = Outcome.COMMITTED, self._now_s
            if self.version >= NEW and self.rng.random() < 0.1:
                await self._ask_otherwise()
            return self._has_ended(answer)
        if answer.error is not None and not self._is_doubtful:
            transaction.outcome, transaction.settled_s = Outcome.ABORTED, self._now_s
        return await self._after_doubt(transaction)

    async def _end(self, *, commit: bool) -> Answer:
        answer = await self.wire.end_transaction(self.identity, self.version, commit=commit)
        # A retriable error may come from a coordinator that has written the decision.
        self._is_doubtful |= answer.error is None or answer.error in AGAIN
        return answer

    def _has_ended(self, answer: Answer) -> bool:
        if self.version >= NEW:
            self._take(answer)
        return True

    async def _after_doubt(self, transaction: Transaction) -> bool:
        """The transaction may be committed. A successful abort is authoritative."""
        if self.version >= NEW and self.rng.random() < 0.5:
            answer = await self._tried("abort after commit", lambda: self._end(commit=False))
            if answer.error is ErrorCode.none:
                transaction.outcome, transaction.settled_s = Outcome.ABORTED, self._now_s
                return self._has_ended(answer)
        return await self._begin_anew()

    async def _ask_otherwise(self) -> None:
        """Aborts after a commit, as a producer does that got no reply to its commit; this must fail."""
        answer = await self._tried("abort of what is committed", lambda: self._end(commit=False))
        if answer.error is ErrorCode.none:
            raise Violation("outcome", f"{self.who} {self.identity} committed, and then aborted the same")

    async def _abort(self, transaction: Transaction) -> bool:
        transaction.settled_s = self._now_s
        answer = await self._tried("abort", lambda: self._end(commit=False), repeats=self._repeats)
        if answer.error is not ErrorCode.none or self._is_unsure:
            return await self._begin_anew()
        return self._has_ended(answer)

    async def _recover(self, transaction: Transaction) -> bool:
        """Recovers from an error in the middle of a transaction."""
        if self._is_unsure or self.rng.random() < 0.3:
            return await self._begin_anew()
        return await self._abort(transaction)

    async def _begin_anew(self) -> bool:
        """Continues with the same producer id (KIP-360), or stops so that another producer takes over."""
        return self.rng.random() < 0.5 and await self.init(goes_on=True)
