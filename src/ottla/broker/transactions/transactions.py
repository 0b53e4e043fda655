"""The transactions of this broker, as handlers see them: which ids it coordinates, and a way to ask their coordinators.

asked = await broker.transactions.ask(EndTransaction(transactional_id="t", ...), "t")
                                        a reply of machines/transactions/replies, or Refused
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ottla.broker.coordinators.led_shards import LedShards
from ottla.broker.transactions.led_shard import LedShard, TransactionShardContext
from ottla.broker.transactions.marker_sender import MarkerSender
from ottla.broker.transactions.settings import STATE_TOPIC, state_topic_plan, transaction_config
from ottla.machines.transactions.decisions import Decisions
from ottla.machines.transactions.records import Transaction

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.partition.partition import Partition


class Transactions(LedShards[LedShard]):
    """The transaction coordinators of this broker."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, STATE_TOPIC, state_topic_plan)
        self._markers = MarkerSender(broker)
        self.decisions = Decisions()
        """Decisions since the broker started, over all partitions that it has led. For metrics."""

    def _new_shard(self, partition: Partition) -> LedShard:
        around = TransactionShardContext(
            self._clock,
            transaction_config(self._broker.config),
            self._loading,
            self._markers,
            self._broker.allocate_producer_id,
            self.decisions,
        )
        return LedShard(partition, around, self._on_ended)

    def stop(self) -> None:
        super().stop()
        self._markers.stop()

    def state_counts(self) -> Mapping[str, int]:
        """Returns the number of transactional ids in each state, in the partitions led here. For metrics."""
        counts: Counter[str] = Counter()
        for shard in self._serving():
            counts.update(transaction.state.label for transaction in shard.machine.tables.values())
        return counts

    def known(self) -> Iterator[Transaction]:
        """Iterates over the transactions of the partitions led here. The caller may yield to the event loop in between.
        For metrics."""
        for shard in list(self._serving()):
            yield from list(shard.machine.tables.values())
