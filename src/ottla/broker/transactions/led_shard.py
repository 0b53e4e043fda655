"""One partition of `__transaction_state` while this broker leads it: its coordinator and the effects of its decisions.

**Effects** begin when the records that decided them are committed, so that no marker announces what a failover could
undo (safety: last-stable-offset). The result of an effect is a step too. If nothing can be appended at that time, the
result is postponed. If the shard ends first, the result is dropped: the next coordinator carries out the effect again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ottla.broker.coordinators import led_shard
from ottla.broker.coordinators.led_shard import RETRY_MS, Decide, State, Ticket
from ottla.broker.coordinators.log_replay import Replayable
from ottla.broker.partition.partition import Partition
from ottla.broker.transactions.marker_sender import MarkerSender, Results
from ottla.machines.coordinators import Instant
from ottla.machines.transactions.config import TransactionConfig
from ottla.machines.transactions.coordinator import TransactionCoordinator
from ottla.machines.transactions.decisions import Decisions
from ottla.machines.transactions.effects import Effect, WriteMarkers
from ottla.machines.transactions.encoding import encode
from ottla.machines.transactions.requests import DescribeTransaction, ListTransactions
from ottla.machines.transactions.shard import Step
from ottla.ports import Clock
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.bridge import RowEncoder, Traits, seal
from ottla.protocol.records.envelope import INT32_MAX
from ottla.reach import branch

_POSTPONED = branch("the result of an effect waits until the coordinator can append", __name__)
_NOT_ACKNOWLEDGED = branch("effects are dropped because their decision was not acknowledged", __name__)

log = logging.getLogger("ottla.transactions")

PLAIN = Traits()


class TransactionShardContext(NamedTuple):
    """What all shards of a broker share."""

    clock: Clock
    config: TransactionConfig
    loading: asyncio.Lock
    markers: MarkerSender
    allocate_producer_id: Callable[[], Awaitable[int | Refused]]
    decisions: Decisions


class LedShard(led_shard.LedShard):
    """The transaction coordinator of one partition."""

    who = "transactions"
    reads = (DescribeTransaction, ListTransactions)

    def __init__(
        self, partition: Partition, around: TransactionShardContext, ended: Callable[[LedShard], None]
    ) -> None:
        super().__init__(partition, around.clock, around.loading, ended)
        self._around = around
        self.machine = TransactionCoordinator(around.config, around.decisions)
        self._under_way: set[asyncio.Task[None]] = set()
        self._postponed: list[Decide] = []
        """Results of effects that arrived while nothing could be appended."""

    # -- life cycle -------------------------------------------------------------------------------------------

    def _loads(self) -> Replayable:
        return ReplayAdapter(self.machine)

    def _serve(self) -> None:
        self.state = State.SERVING
        epoch = self.partition.leader_epoch
        self._step(lambda *now: self.machine.loaded(epoch, Instant(*now)))

    def _on_end(self) -> None:
        for task in self._under_way:
            task.cancel()

    # -- steps ------------------------------------------------------------------------------------------------

    def _handle(self, ticket: Ticket, request: Any) -> Decide:
        return lambda *now: self.machine.handle(ticket, request, Instant(*now))

    def _batch_of(self, records: Sequence[Any], timestamp_ms: int) -> bytearray:
        encoder = RowEncoder(INT32_MAX)
        for record in records:
            key, value = encode(record)
            encoder.append(key, value, (), timestamp_ms)
        assert encoder.record_count == len(records), "all records of a step must fit into one batch"
        return seal(encoder.take(), PLAIN)

    def _on_due(self) -> None:
        postponed, self._postponed = self._postponed, []
        for decide in postponed:
            self._note(decide)
        if self.state is State.SERVING:
            self._step(lambda *now: self.machine.tick(Instant(*now)))

    def _note(self, decide: Decide) -> None:
        """Takes a step for the result of an effect, or postpones it."""
        if self.state is not State.SERVING:
            return
        if self._refusal() is not None:
            _POSTPONED()
            self._postponed.append(decide)
        else:
            self._step(decide)

    # -- effects ----------------------------------------------------------------------------------------------

    def _after(self, step: Step) -> None:
        if step.effects and self.state is State.SERVING:
            self._begin_when_committed(step.effects, self.partition.log.end_offset)

    def _begin_when_committed(self, effects: tuple[Effect, ...], end: int) -> None:
        if self.state is not State.SERVING:
            return
        if end <= self.partition.high_watermark:
            self._begin(effects)
        else:
            self.partition.when_acknowledged(end, lambda error: self._on_acknowledged(effects, end, error))

    def _on_acknowledged(self, effects: tuple[Effect, ...], end: int, error: ErrorCode) -> None:
        if error is ErrorCode.none:
            self._begin(effects)
        elif error is ErrorCode.not_enough_replicas_after_append and self.is_current:
            # The records are in the log. Whether they stay is known when the high watermark reaches them.
            self._clock.call_later(RETRY_MS, partial(self._begin_when_committed, effects, end))
        else:
            _NOT_ACKNOWLEDGED()
            self.end(f"the append was not acknowledged: {error.name}")

    def _begin(self, effects: tuple[Effect, ...]) -> None:
        if self.state is not State.SERVING:
            return
        for effect in effects:
            task = asyncio.ensure_future(self._do(effect))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _do(self, effect: Effect) -> None:
        try:
            if isinstance(effect, WriteMarkers):
                await self._around.markers.send(effect, partial(self._on_marked, effect))
            else:
                self._on_allocated(effect.transactional_id, await self._around.allocate_producer_id())
        except Exception:
            log.exception("%s: %s failed", self.name, type(effect).__name__)
            self.end("an effect on another broker failed")

    def _on_marked(self, effect: WriteMarkers, results: Results) -> None:
        producer = effect.producer_id, effect.producer_epoch
        name = effect.transactional_id
        self._note(lambda *now: self.machine.markers_written(name, *producer, results, Instant(*now)))

    def _on_allocated(self, transactional_id: str, outcome: int | Refused) -> None:
        if isinstance(outcome, Refused):
            self._note(lambda *now: self.machine.producer_id_refused(transactional_id, Instant(*now)))
        else:
            self._note(lambda *now: self.machine.producer_id_allocated(transactional_id, outcome, Instant(*now)))


class ReplayAdapter:
    """Adapts the machine for loading. No record of this topic is part of a transaction."""

    def __init__(self, machine: TransactionCoordinator) -> None:
        self._machine = machine

    @property
    def unreadable(self) -> list[str]:
        return self._machine.unreadable

    @property
    def skipped(self) -> Counter[int]:
        return self._machine.skipped

    def replay(self, key: bytes | None, value: bytes | None, producer_id: int | None = None) -> None:
        self._machine.replay(key, value)

    def replay_marker(self, producer_id: int, *, is_committed: bool) -> None:
        """Does nothing."""
